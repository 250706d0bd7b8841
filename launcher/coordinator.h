// Coordinator: decides what runs where and what follows from what happened. A pure state machine.
//
// Inputs are messages of agents, ticks and stop requests, each with `now` (seconds of any steady
// clock); outputs are an ordered list: records for the journal, messages to agents, lines for
// people. The driver (coordinator_loop) carries them out in that order, so every decision is in the
// journal before it takes effect. No clock, no I/O, no threads; one thread owns it.
//
// A job runs as a group of one or more workers (Attempt). Whichever of them fails, the others are
// ended; its GPUs and cores come back, and the job starts again, when all have been reaped.
// Members: coordinator.cc (planning, time, ends), coordinator_groups.cc (workers and their news),
// coordinator_view.cc (what people see).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/json.h"
#include "engine/core/log.h"
#include "launcher/attempt.h"
#include "launcher/core_pool.h"
#include "launcher/prepare.h"
#include "launcher/world.h"
#include "placement/planner.h"
#include "trainer/run_job.h"

namespace galley::launcher {

enum class LostAgents {
  kEndTheRun,  // mpirun's default: the run stops with 75 and the same command resumes
  kGoOn,       // under --enable-recovery: the other agents go on
};

struct CoordinatorSettings {
  double agent_silent_s = 15;    // an agent without a sign of life for so long is lost
  int max_restarts = 3;          // of a job in a row without a new step
  double worker_timeout_s = 10;  // without a sign of life; the least without one of progress
  double deadline_factor = 20;   // times the longest predicted operation
  double kill_after_s = 10;      // second signal: wait so long for workers to be reaped
  double checkpoint_every_s = 600;
  int keep_checkpoints = 2;
  std::optional<double> end_at;  // wall time ends, in the clock of `now`
  std::string entropy;           // random, of this start: what groups meet by is derived from it
  LostAgents lost_agents = LostAgents::kEndTheRun;
};

enum class JobState { kWaiting, kRunning, kFinished, kFailed, kRefused, kStopped, kSkipped };
std::string_view job_state_name(JobState state);

/// What a job has used in all attempts, of this run and of earlier ones (from the journal).
struct JobTotals {
  int attempts = 0;
  int restarts = 0;  // after a failure
  double gpu_seconds = 0;
  int64_t tokens = 0;
  uint64_t peak_bytes = 0;  // measured by the agents
};

/// A job as the coordinator gets it at start.
struct CoordinatorJob {
  PreparedJob prepared;
  std::string directory;         // RUN/jobs/NAME
  bool finished = false;         // its adapter is there and valid
  int64_t checkpoint_step = -1;  // newest valid checkpoint; -1: none
  JobTotals totals;
  trainer::JobProgress last;  // of an earlier run
  // Of the last attempt of an earlier run, for the tables:
  std::string place;
  uint64_t predicted_bytes = 0, low_bytes = 0, high_bytes = 0;
};

/// One worker of a group, for the tables.
struct WorkerRow {
  std::string place;  // "n1:gpu0 a100-40gb"
  uint64_t predicted_bytes = 0, low_bytes = 0, high_bytes = 0;
  uint64_t peak_bytes = 0;  // measured
};

/// One line of the table that people see.
struct JobRow {
  std::string name;
  JobState state = JobState::kWaiting;
  std::string place;  // "n1:gpu0 a100-40gb", "n1:gpu0-1 a100-40gb (tp 2)"
  trainer::JobProgress progress;
  double seconds_left = -1;  // -1: not known yet
  // Of a group: of the worker with the least room; totals.peak_bytes: the largest of all workers
  // and attempts; attempt_peak_bytes: of that worker in this attempt.
  uint64_t predicted_bytes = 0, low_bytes = 0, high_bytes = 0;
  uint64_t attempt_peak_bytes = 0;
  std::vector<WorkerRow> workers;  // by group rank; empty alone
  JobTotals totals;
  std::string adapter;  // when finished
  std::string reason;   // when failed, refused, skipped or waiting
};

struct Output {
  enum class Kind { kJournal, kSend, kEvent } kind = Kind::kEvent;
  Json json;   // record or message
  int to = 0;  // rank
  LogLevel level = LogLevel::kInfo;
  std::string job;  // empty: about the run
  std::string text;
};

class Coordinator {
 public:
  Coordinator(CoordinatorSettings settings, RunWorld world, std::vector<CoordinatorJob> jobs,
              std::vector<std::pair<std::string, std::string>> bad_jobs,
              std::unique_ptr<placement::Policy> policy, double now);

  /// A message of the agent with this rank. Late news of an older attempt is ignored.
  void handle(int from, const Json& message, double now);
  /// Deadlines, wall time; to be called at least every second.
  void tick(double now);
  /// A request to stop: `signal` came to `rank`. The first one lets workers checkpoint at their
  /// next step border; the same signal to the same rank again ends them at once. (One order reaches
  /// many ranks, and often as different signals: Slurm's TERM and the USR1 that launch makes of
  /// it.)
  void request_stop(int rank, int signal, const std::string& why, double now);
  /// Ends everything at once; the run gets this reason (a full disk under the journal).
  void fail_run(Reason reason, const std::string& why, double now);

  std::vector<Output> take_outputs();
  /// No worker is left and nothing more will start.
  bool done() const;
  /// Of the whole run; meaningful when done().
  Reason reason() const;
  int exit_code() const;
  std::string reason_text() const;
  /// Every rank has answered to the end: MPI may be finalized.
  bool everybody_alive() const { return lost_.empty(); }
  bool stopping() const { return stop_level_ > 0; }
  std::vector<JobRow> table(double now) const;
  /// Longest checkpoint so far, in seconds; 0: none yet.
  double longest_checkpoint_s() const { return longest_checkpoint_s_; }
  const RunWorld& world() const { return world_; }
  /// Something was left to plan; if not, an older plan.json still tells where jobs ran.
  bool has_plan() const { return first_plan_.has_value(); }
  /// Cluster and first placement plan, for plan.json.
  Json plan_json() const;

 private:
  struct Job {
    CoordinatorJob given;
    JobState state = JobState::kWaiting;
    int restarts_in_a_row = 0;  // without a new step
    int64_t best_step = 0;      // ever reached
    std::string reason_text;
    Reason reason = Reason::kOk;
    bool started_once = false;  // the first note about waiting has been given
    // Of the current or last attempt:
    placement::Assignment assignment;
    Attempt attempt;
    bool lateness_told = false;
    double first_step_at = 0;
    int64_t first_step = 0;
    trainer::JobProgress progress;
    std::vector<placement::GpuIndex> avoid;
    std::map<placement::GpuIndex, int> deaths;
  };

  // coordinator.cc
  void schedule(double now);
  void refuse(Job& job, const std::string& reason);
  void retry_or_fail(Job& job, const Attempt::Failure& failure);
  void fail(Job& job, Reason reason, const std::string& text);
  void lose_agent(int rank, double now);
  void stop_gracefully(const std::string& why, double now);
  void stop_at_once(const std::string& why, double now);
  void check_wall_time(double now);
  double stop_margin() const;
  std::vector<placement::QueuedJob> queue() const;
  std::vector<placement::RunningJob> running() const;
  double remaining_fraction(const Job& job) const;
  bool any(JobState state) const;

  // coordinator_groups.cc
  void start(Job& job, const placement::Assignment& assignment, double now);
  Json assign_message(const Job& job, int worker) const;
  GroupMeeting meeting(const Job& job) const;
  trainer::TrainAssignment train_assignment(const Job& job, int worker) const;
  Job* find_attempt(int from, const Json& message);
  void on_news(Job& job, int worker, const Json& message, double now);
  void on_started(Job& job, const Json& message, double now);
  void on_progress(Job& job, const Json& message, double now);
  void on_checkpointed(Job& job, const Json& message);
  /// Ends what is left of a group that has failed; closes an attempt that is over.
  void settle(Job& job, double now);
  void close_attempt(Job& job, double now);
  void finish(Job& job);
  void check_group(Job& job, double now);
  double progress_deadline(const placement::Assignment& assignment) const;
  void send_to_worker(const Job& job, int worker, Json message);
  void end_workers(const Job& job);
  std::string worker_text(const Job& job, int worker) const;

  // coordinator_view.cc
  double seconds_left(const Job& job, double now) const;
  JobRow row_of(const Job& job, double now) const;

  void journal(Json record);
  void send(int to, Json message);
  void event(LogLevel level, const std::string& job, const std::string& text);

  CoordinatorSettings settings_;
  RunWorld world_;
  std::vector<Job> jobs_;
  std::vector<std::pair<std::string, std::string>> bad_jobs_;
  std::unique_ptr<placement::Policy> policy_;
  CorePool cores_;
  std::vector<Output> outputs_;
  std::map<int, double> last_sign_;  // by agent's rank
  std::set<int> lost_;
  std::map<std::pair<int, int>, int> stop_requests_;  // by rank and signal
  int stop_level_ = 0;                                // 1: at the next step border, 2: at once
  double stopped_at_ = 0;
  std::string stop_why_;
  std::optional<Reason> run_reason_;  // what ended the run as a whole
  double longest_checkpoint_s_ = 0;
  double created_at_ = 0;
  int64_t num_starts_ = 0;  // of groups, in this run
  std::optional<Json> first_plan_;
};

/// Bytes of one worker, also where the prediction tells only of one.
predictor::WorkerNeed need_of(const predictor::Prediction& prediction, int worker);
/// "n1:gpu0 a100-40gb"; of a group "n1:gpu0-1 a100-40gb (tp 2)" or, unlike,
/// "n1:gpu0 a100-40gb + n2:gpu1 rtx6000-24gb (pp 2)".
std::string place_text(const placement::Cluster& cluster,
                       const std::vector<placement::GpuIndex>& gpus,
                       const model::ParallelLayout& layout);

}  // namespace galley::launcher
