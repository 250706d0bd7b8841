// `galley launch --requeue`: asks Slurm to start the own job again, but not for ever.
#pragma once

#include <functional>
#include <string>

#include "engine/core/env.h"
#include "launcher/run_directory.h"

namespace galley::launcher {

struct RequeueResult {
  bool requeued = false;
  std::string text;  // for people
};

/// Runs `scontrol requeue JOB`; true when it worked. Nothing: there is no scontrol here.
using RequeueCommand = std::function<std::optional<bool>(const std::string& job_id)>;
std::optional<bool> scontrol_requeue(const std::string& job_id);

/// Requeues the Slurm job of `environment` unless that was done `max_in_a_row` times without a new
/// saved step. Keeps its count in the run directory.
RequeueResult requeue_run(const RunDirectory& directory, const Environment& environment,
                          int max_in_a_row, const RequeueCommand& command = scontrol_requeue);

}  // namespace galley::launcher
