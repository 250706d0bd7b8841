// What a rank does between the start of the world and its end: rank 0 coordinates (and serves as an
// agent where its machine has no other rank), the others serve. Works over any Channel, so that a
// whole run fits into one process of threads.
//
// Called once per rank from the thread that owns the channel.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/core/channel.h"
#include "engine/core/env.h"
#include "launcher/agent.h"
#include "launcher/coordinator.h"
#include "launcher/prepare.h"
#include "launcher/run.h"
#include "launcher/signals.h"

namespace galley::launcher {

/// What a run is made of; tests put in their own parts.
struct RunParts {
  using Report = std::function<void(const std::string&)>;
  std::function<std::string(const RunOptions&, const Environment&)> run_directory =
      resolve_run_directory;
  std::function<PreparedRun(const RunOptions&, const Environment&, const Report&)> prepare =
      prepare_run;
  std::function<std::unique_ptr<placement::Policy>()> policy = placement::policy_best_fit;
  std::function<bool(const PreparedJob&, const std::string&)> adapter_is_valid;  // empty: reads it
  std::function<int64_t(const std::string&)> newest_checkpoint = trainer::newest_checkpoint_step;
  WorkerStarter start_worker;
  std::function<void()> all_heard = [] {};  // called when every rank has been heard
  double hello_deadline_s = 30;
  CoordinatorSettings coordinator;
  AgentSettings agent;
};

/// What this rank says of itself in its first message.
Json own_hello(const Channel& channel, const Environment& environment);

struct RankEnd {
  int code = 0;
  bool may_finalize = false;  // every rank is alive and has said goodbye
};

/// `signals` may be nullptr. Neither throws: errors end the run with their code on all ranks.
RankEnd coordinate(Channel& channel, const RunOptions& options, const Environment& environment,
                   const RunParts& parts, SignalInbox* signals);
RankEnd serve_as_agent(Channel& channel, const Environment& environment, const RunParts& parts,
                       SignalInbox* signals);

}  // namespace galley::launcher
