// run_job: one training job in one worker, from assignment to adapter.
//
// Opens its device, loads and packs the weights, resumes from the newest valid checkpoint, trains,
// checkpoints, writes the adapter. A worker of a group does its part of that: all of them call
// run_job, and talk to each other through the GroupTransport only; the one with rank 0 (the leader)
// writes files and decides when to stop. Single-threaded apart from the device's pool; talks to the
// outside through JobEvents only. Never touches MPI.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/group_transport.h"
#include "engine/core/json.h"
#include "engine/device/host/host_device.h"
#include "engine/model/layout.h"
#include "engine/model/train_spec.h"

namespace galley::trainer {

/// Everything a worker needs to know; a value with a JSON form (sent in the Assign message).
struct TrainAssignment {
  model::TrainSpec spec;
  std::string job_directory;  // RUN/jobs/NAME
  std::string token_file;     // RUN/tokens/NAME.bin
  int64_t micro_batch_tokens = 0;
  bool recompute_blocks = false;
  DType weight_dtype = DType::kF32;
  bool may_round_inputs = false;  // products with bf16 weights may round their left operand
  std::string precision_note;     // told as a warning before any work; ""
  uint64_t capacity_bytes = 0;    // of the (emulated) GPU
  int threads = 1;
  std::vector<int> cpus;
  double checkpoint_every_s = 600;
  int keep_checkpoints = 2;
  uint64_t planned_bytes = 0;  // what the plan said; the trainer checks that it allocates just that
  // A worker alone has the layout 1 x 1 x 1 and no meeting.
  model::ParallelLayout layout;
  int group_rank = 0;
  GroupMeeting meeting;                // how the members meet (launcher); size = num_workers()
  std::vector<double> replica_shares;  // of the tokens of a global batch, by dp rank; empty: equal
  double slowdown = 1;  // of an emulated GPU: it takes so many times the time that it needs
};
Json to_json(const TrainAssignment& assignment);
TrainAssignment train_assignment_from_json(const Json& json);

struct JobProgress {
  int64_t step = 0, total_steps = 0;  // optimizer steps done
  double epoch = 0;
  double loss = 0;           // mean over the targets of the last global batch, before its step
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;  // used in the last step
  int64_t step_tokens = 0, step_targets = 0;
  double tokens_per_second = 0;  // of the last step
  uint64_t allocated_bytes = 0;  // by the device
  int64_t checkpoint_step = 0;   // of the newest checkpoint
};

enum class JobCommand {
  kNone,
  kCheckpoint,
  kStop
};  // kStop: checkpoint at the next step border, return

/// The worker's way to talk to its agent. Called from run_job's thread.
class JobEvents {
 public:
  virtual ~JobEvents() = default;
  /// Sign of progress: loading, an operation, a micro batch ("load 35 %", "step 12, micro batch
  /// 3").
  virtual void alive(const std::string& what) = 0;
  /// Resumed at `step` (0: from scratch); `note` names a skipped broken checkpoint or another
  /// machine.
  virtual void started(int64_t step, int64_t total_steps, const std::string& note) = 0;
  virtual void progress(const JobProgress& progress) = 0;
  virtual void checkpointed(int64_t step, double seconds) = 0;
  virtual void warn(const std::string& message) = 0;
  /// This worker waits for another one of its group: no sign of progress, but nothing that it could
  /// help. Called a few times a second; throws when waiting is of no use any more.
  virtual void waiting() = 0;
  /// Asked between micro batches and steps.
  virtual JobCommand command() = 0;
};

struct JobResult {
  enum class Outcome { kFinished, kStopped } outcome = Outcome::kFinished;
  JobProgress last;
  std::string adapter_directory;  // when finished
  uint64_t planned_bytes = 0, allocated_bytes = 0;
};

/// Throws Error for what ends the job (kNumerics, kBadCheckpoint, kDiskFull, kOutOfMemory, ...;
/// kWorkerDied when another worker of the group is gone). When a finished adapter is already there
/// and valid it returns kFinished at once. `transport`: of a worker of a group, all members with
/// the same assignment but for group_rank, threads, cpus and bytes; null alone. A command counts
/// when the leader sees it; every worker returns at the same step. Of a group only the leader
/// reports started, progress and checkpointed.
JobResult run_job(const TrainAssignment& assignment, JobEvents& events,
                  GroupTransport* transport = nullptr);

/// Newest valid checkpoint of a job directory: its step, or -1.
int64_t newest_checkpoint_step(const std::string& job_directory);
/// Writes the adapter of a checkpoint file as a PEFT folder (`galley export`).
void export_checkpoint(const std::string& checkpoint, const std::string& folder);
/// What is inside a checkpoint (`galley inspect`): tensors, shapes, spec, step, checksums.
Json inspect_checkpoint(const std::string& checkpoint);

}  // namespace galley::trainer
