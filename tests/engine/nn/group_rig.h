// Groups of workers for tests: one thread each, with its own host device, in any layout.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/group_transport.h"
#include "engine/device/communicator.h"
#include "engine/model/pipeline.h"
#include "engine/nn/network.h"
#include "tests/engine/nn/small_model.h"

namespace galley::testing {

/// What every worker of a group has in common.
struct GroupSettings {
  model::ParallelLayout layout;
  model::ModelConfig config;
  nn::BaseWeights::Source weights;
  DType weight_dtype = DType::kF32;
  model::MemorySettings memory;
  double dropout = 0;
  uint64_t dropout_seed = 0;
  device::KernelSet kernels = device::KernelSet::kAuto;
};

/// One worker, used by its thread.
class GroupWorker {
 public:
  GroupWorker(const GroupSettings& settings, GroupTransport* transport);
  int rank() const { return rank_; }
  const model::WorkerPosition& position() const { return place_.position; }
  nn::TrainNetwork& network() { return *network_; }
  device::OptimizerOps& optimizer() { return *rig_.ops.optimizer; }
  device::Communicator& group() { return *group_; }
  void set_parameters(const std::vector<float>& whole);
  /// Micro batches of this worker's replica, by the pipeline's list of its stage. The sum of their
  /// losses on the last stage, else 0. Gradients are added to, and not yet summed.
  double run(const std::vector<nn::StepPlan>& micro_batches, double gradient_scale);
  /// The micro batches of a global batch that this worker's replica takes: every dp-th.
  std::vector<nn::StepPlan> share_of(const std::vector<nn::StepPlan>& global_batch) const;
  uint64_t planned_bytes() const;
  uint64_t allocated_bytes() const { return rig_.device->allocated_bytes(); }

 private:
  int neighbour(int stages) const;
  void run_step(const model::PipelineStep& step, const std::vector<nn::StepPlan>& micro_batches,
                double gradient_scale, double* loss);

  const GroupSettings& settings_;
  const int rank_;
  const model::WorkerPlace place_;
  Rig rig_;
  std::unique_ptr<nn::BaseWeights> weights_;
  std::unique_ptr<device::Communicator> group_, tensor_, replicas_;
  std::unique_ptr<nn::TrainNetwork> network_;
};

/// Runs `body` on every worker, each in its own thread; the first exception is thrown again.
void run_group(const GroupSettings& settings, const std::function<void(GroupWorker&)>& body);

/// One global batch: the sum of losses and the gradient of the whole adapter.
struct GroupGradients {
  double loss = 0;
  std::vector<float> whole;
  bool replicated_bits_equal = true;  // gradients of what several workers hold
  bool planned_is_allocated = true;   // of every worker
};
GroupGradients group_gradients(const GroupSettings& settings, const std::vector<float>& parameters,
                               const std::vector<nn::StepPlan>& global_batch,
                               double gradient_scale);

}  // namespace galley::testing
