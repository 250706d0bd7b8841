#include "trainer/pipeline_run.h"

#include "engine/core/error.h"
#include "engine/model/group_ranks.h"

namespace galley::trainer {
namespace {

using model::PipelineOp;

}  // namespace

PipelineRun::PipelineRun(nn::TrainNetwork& network, const WorkerGroup& group,
                         const model::ModelConfig& config,
                         const std::vector<model::AdaptedLinear>& linears, double slowdown)
    : network_(network), group_(group), throttle_(slowdown, group) {
  shape_.num_stages = group.place().layout.pp_size;
  shape_.stage = group.position().pp_rank;
  shape_.first_trained_stage = model::first_trained_stage(config, group.place().layout, linears);
}

PipelineRun::PipelineRun(nn::TrainNetwork& network, const WorkerGroup& group)
    : network_(network), group_(group), throttle_(1, group) {
  GALLEY_CHECK(group.alone());
}

double PipelineRun::run(std::span<const MicroBatch> batches, double gradient_scale,
                        const std::function<void(size_t)>& between) {
  shape_.num_micro_batches = static_cast<int>(batches.size());
  model::pipeline_1f1b(shape_, &steps_);
  double loss = 0;
  for (const model::PipelineStep& step : steps_) {
    const auto index = static_cast<size_t>(step.micro_batch);
    if (step.op == PipelineOp::kForward || step.op == PipelineOp::kBackward) between(index);
    loss += run_step(step, batches[index], gradient_scale);
  }
  settle();
  return loss;
}

/// What is on its way to a neighbour may be overwritten by the next operation.
void PipelineRun::settle() {
  if (!group_.alone()) group_.all()->finish_sends();
}

double PipelineRun::run_step(const model::PipelineStep& step, const MicroBatch& batch,
                             double gradient_scale) {
  const int64_t elements = network_.stage_elements(batch.num_tokens);
  double loss = 0;
  switch (step.op) {
    case PipelineOp::kReceiveInput:
      if (network_.stage_input(step.slot) == network_.stage_output()) settle();
      group_.all()->receive(group_.neighbour(-1), network_.stage_input(step.slot), elements);
      break;
    case PipelineOp::kForward:
      settle();
      throttle_.begin();
      network_.forward(step.slot, batch.step);
      throttle_.end();
      break;
    case PipelineOp::kSendOutput:
      group_.all()->send(group_.neighbour(+1), network_.stage_output(), elements);
      break;
    case PipelineOp::kReceiveGradient:
      settle();
      group_.all()->receive(group_.neighbour(+1), network_.stage_gradient(), elements);
      break;
    case PipelineOp::kBackward:
      settle();
      throttle_.begin();
      loss = network_.backward(step.slot, batch.step, gradient_scale);
      throttle_.end();
      break;
    case PipelineOp::kSendGradient:
      group_.all()->send(group_.neighbour(-1), network_.stage_gradient(), elements);
      break;
  }
  return loss;
}

}  // namespace galley::trainer
