// One optimizer step: gradients of the micro batches of a global batch, clipping, AdamW.
//
// The gradient is that of the sum of all losses over the number of all targets of the global batch,
// however it is cut into micro batches. Plain functions; owned by the worker's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "engine/device/ops.h"
#include "engine/nn/network.h"
#include "trainer/data_order.h"
#include "trainer/pipeline_run.h"
#include "trainer/worker_group.h"

namespace galley::trainer {

struct OptimizerSettings {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  double clip_norm = 0;  // 0: none
};

struct StepOutcome {
  double loss = 0;           // mean over all targets, before the update
  double gradient_norm = 0;  // before clipping
  int64_t num_tokens = 0, num_targets = 0;
  uint32_t flags = 0;  // StepFlags of the leader
};

/// What the leader of a group asks of all workers at the end of a step.
enum StepFlags : uint32_t { kFlagStop = 1, kFlagCheckpoint = 2 };

/// One worker's part of a step.
struct StepWork {
  nn::TrainNetwork* network = nullptr;
  device::OptimizerOps* optimizer = nullptr;
  PipelineRun* pipeline = nullptr;
  const WorkerGroup* group = nullptr;
  std::span<const MicroBatch> batches;          // of its replica
  int64_t num_tokens = 0, num_targets = 0;      // of the whole global batch
  std::function<uint32_t()> leader_flags = {};  // asked of the leader once, after its gradients
};

/// Runs step `step` (from 1); all workers of the group together. `between` is called before each
/// forward and backward of a micro batch with its number. Error(kNumerics) on every worker when the
/// loss or the gradient is not finite; the parameters are untouched then.
StepOutcome train_step(const StepWork& work, const OptimizerSettings& settings, int64_t step,
                       double learning_rate,
                       const std::function<void(size_t micro_batch)>& between);
/// The same of a worker alone, with all micro batches of the global batch.
StepOutcome train_step(nn::TrainNetwork& network, device::OptimizerOps& optimizer,
                       std::span<const MicroBatch> batches, const OptimizerSettings& settings,
                       int64_t step, double learning_rate,
                       const std::function<void(size_t micro_batch)>& between);

}  // namespace galley::trainer
