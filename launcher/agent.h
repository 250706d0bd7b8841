// Agent: holds a rank's place in the MPI world, starts, watches and fences the workers of its GPUs.
//
// An event loop in steps; the driver (rank_loop) calls step() and sleeps between. Never waits for a
// worker or for MPI. One thread owns it, the process's main thread. Several workers of one group
// may be under one agent; for those of a group that spans nodes it relays bytes (AgentRelay).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/channel.h"
#include "engine/core/log.h"
#include "launcher/agent_relay.h"
#include "launcher/protocol.h"
#include "launcher/worker_process.h"

namespace galley::launcher {

struct AgentSettings {
  double beat_every_s = 1;
  double memory_every_s = 0.02;      // samples of a worker's resident memory
  double memory_report_s = 1;        // a new peak is told at most so often
  double first_word_s = 30;          // from the start of a worker's program to its first message
  double leave_s = 10;               // from its last word to its end
  double coordinator_silent_s = 25;  // after the first beat: the coordinator is gone
  std::string host;
};

class Agent {
 public:
  /// `channel` must outlive the agent.
  Agent(Channel* channel, WorkerStarter starter, AgentSettings settings);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  /// Where it writes from now on; nullptr: nowhere. Not owned.
  void set_log(Log* log) { log_ = log; }
  /// A message for agents that has arrived.
  void handle(const Json& message, double now);
  /// A bulk piece of another agent that has arrived.
  void take_bulk(const std::string& bytes, double now) { relay_.take(bytes, now); }
  /// One round over the workers; true when there was something to do.
  bool step(double now);
  /// File descriptors whose readiness ends a sleep.
  std::vector<int> wait_fds() const;
  /// Longest sleep between two rounds.
  double longest_sleep_s(double now) const;
  /// After "quit", or when the coordinator is gone: the code of the run.
  bool quit() const { return quit_; }
  int exit_code() const { return exit_code_; }
  /// The coordinator says that every rank is alive.
  bool may_finalize() const { return may_finalize_; }

 private:
  struct Worker;

  void assign(const Json& message, double now);
  void start_process(Worker& worker, const Json& message);
  void end_workers(double now);
  bool step_worker(Worker& worker, double now);
  bool take_messages(Worker& worker, double now);
  void on_message(Worker& worker, const Json& message, double now);
  void on_waiting(Worker& worker, double now);
  void on_sign(Worker& worker, const Json& message, double now);
  void log_message(const Worker& worker, const Json& message);
  void sample_memory(Worker& worker, double now);
  void check_deadlines(Worker& worker, double now);
  void kill(Worker& worker, Reason reason, const std::string& text);
  Json last_word(const Worker& worker, const WorkerExit& exit) const;
  void report_end(Worker& worker, const WorkerExit& exit);
  Json about(const Worker& worker, std::string_view kind) const;
  void log(LogLevel level, const std::string& job, const std::string& text);

  Channel* channel_;
  WorkerStarter starter_;
  AgentSettings settings_;
  Log* log_ = nullptr;
  std::string logs_folder_;  // told by "run"
  std::vector<std::unique_ptr<Worker>> workers_;
  AgentRelay relay_;
  double last_beat_ = -1;
  double coordinator_beat_ = -1;  // -1: none yet
  bool quit_ = false;
  bool may_finalize_ = false;
  int exit_code_ = 0;
};

}  // namespace galley::launcher
