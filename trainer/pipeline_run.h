// PipelineRun: carries out the pipeline's list of one stage (model::pipeline_1f1b) for the micro
// batches of a step. A worker without stages has the same list without transfers.
//
// Owned by the worker's thread.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/model/pipeline.h"
#include "engine/nn/network.h"
#include "trainer/data_order.h"
#include "trainer/throttle.h"
#include "trainer/worker_group.h"

namespace galley::trainer {

class PipelineRun {
 public:
  /// All must outlive it. `linears` of the whole model.
  PipelineRun(nn::TrainNetwork& network, const WorkerGroup& group, const model::ModelConfig& config,
              const std::vector<model::AdaptedLinear>& linears, double slowdown);
  /// Of a worker alone.
  PipelineRun(nn::TrainNetwork& network, const WorkerGroup& group);
  /// Steps of so many micro batches or fewer allocate nothing.
  void reserve(size_t most_micro_batches) { steps_.reserve(kOperations * most_micro_batches); }
  /// Around other work of this worker in a step, too.
  Throttle& throttle() { return throttle_; }
  /// Runs the micro batches of this worker's replica: adds to the gradients; returns the sum of
  /// their losses on the last stage, else 0. `between` is called before each forward and backward
  /// with the number of the micro batch.
  double run(std::span<const MicroBatch> batches, double gradient_scale,
             const std::function<void(size_t micro_batch)>& between);

 private:
  static constexpr size_t kOperations = 6;  // of one micro batch on one stage
  double run_step(const model::PipelineStep& step, const MicroBatch& batch, double gradient_scale);
  void settle();

  nn::TrainNetwork& network_;
  const WorkerGroup& group_;
  Throttle throttle_;
  model::PipelineShape shape_;
  std::vector<model::PipelineStep> steps_;
};

}  // namespace galley::trainer
