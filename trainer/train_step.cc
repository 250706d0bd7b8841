#include "trainer/train_step.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::trainer {
namespace {

// PyTorch's clip_grad_norm_ adds it to the norm before dividing.
constexpr double kClipEpsilon = 1e-6;

void require_finite(double value, const char* what, int64_t step) {
  if (std::isfinite(value)) return;
  // Before the first update nothing of ours can have spoilt the numbers.
  const char* remedy = step == 1
                           ? "Before any training, so look for NaN or infinity in the model's "
                             "weights, or use f32 weights"
                           : "A smaller learning rate, clipping, or f32 weights may help";
  throw Error(Reason::kNumerics, cat("step ", step, ": the ", what,
                                     " is not finite; nothing of this step is saved. ", remedy));
}

/// Over all elements of the adapter, each of which one worker of a replica counts.
double counted_squares(const StepWork& work) {
  if (work.group->position().dp_rank > 0) return 0;  // the same as in the first replica
  double sum = 0;
  for (const model::IndexRange& range : work.network->shards().counted) {
    sum += work.optimizer->sum_of_squares(work.network->gradients() + range.begin, range.size());
  }
  return sum;
}

/// All find the same and throw the same; but the first to do so ends the waits of the others, who
/// must have heard of it by then.
void meet_before_the_end(const WorkerGroup& group) {
  if (group.alone()) return;
  std::array<double, 1> here = {1};
  try {
    group.all()->all_reduce_host(here);
  } catch (const Error&) {  // somebody is further already
  }
}

/// The one exchange of a step: sums of losses and squares, and what the leader wants.
struct Exchanged {
  double loss = 0, squares = 0;
  uint32_t flags = 0;
};
Exchanged exchange(const StepWork& work, double own_loss) {
  const WorkerGroup& group = *work.group;
  const uint32_t flags = group.leads() && work.leader_flags ? work.leader_flags() : 0;
  // Tensor-parallel workers of the last stage all have the same loss.
  std::array<double, 3> values = {group.position().tp_rank == 0 ? own_loss : 0.0,
                                  counted_squares(work), static_cast<double>(flags)};
  if (!group.alone()) group.all()->all_reduce_host(values);
  return {values[0], values[1], static_cast<uint32_t>(values[2])};
}

}  // namespace

StepOutcome train_step(const StepWork& work, const OptimizerSettings& settings, int64_t step,
                       double learning_rate, const std::function<void(size_t)>& between) {
  nn::TrainNetwork& network = *work.network;
  StepOutcome outcome;
  outcome.num_tokens = work.num_tokens;
  outcome.num_targets = work.num_targets;
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, work.num_targets));
  network.zero_gradients();
  const double sum = work.pipeline->run(work.batches, scale, between);
  network.reduce_gradients();
  const Exchanged exchanged = exchange(work, sum);
  outcome.flags = exchanged.flags;
  outcome.loss = exchanged.loss * scale;
  outcome.gradient_norm = std::sqrt(exchanged.squares);
  if (!std::isfinite(outcome.loss + outcome.gradient_norm)) meet_before_the_end(*work.group);
  require_finite(outcome.loss, "loss", step);
  require_finite(outcome.gradient_norm, "gradient", step);
  device::AdamWStep update{.learning_rate = learning_rate,
                           .beta1 = settings.beta1,
                           .beta2 = settings.beta2,
                           .epsilon = settings.epsilon,
                           .weight_decay = settings.weight_decay,
                           .step = step};
  if (settings.clip_norm > 0 && outcome.gradient_norm > settings.clip_norm) {
    update.gradient_scale =
        static_cast<float>(settings.clip_norm / (outcome.gradient_norm + kClipEpsilon));
  }
  if (network.num_trainable() == 0) return outcome;  // a stage without adapted layers
  work.pipeline->throttle().begin();
  work.optimizer->adamw(network.parameters(), network.gradients(), network.first_moments(),
                        network.second_moments(), static_cast<int64_t>(network.num_trainable()),
                        update);
  work.pipeline->throttle().end();
  return outcome;
}

StepOutcome train_step(nn::TrainNetwork& network, device::OptimizerOps& optimizer,
                       std::span<const MicroBatch> batches, const OptimizerSettings& settings,
                       int64_t step, double learning_rate,
                       const std::function<void(size_t)>& between) {
  const WorkerGroup group({}, 0, nullptr);
  PipelineRun pipeline(network, group);
  StepWork work{.network = &network,
                .optimizer = &optimizer,
                .pipeline = &pipeline,
                .group = &group,
                .batches = batches};
  for (const MicroBatch& batch : batches) {
    work.num_tokens += batch.num_tokens;
    work.num_targets += batch.num_targets;
  }
  return train_step(work, settings, step, learning_rate, between);
}

}  // namespace galley::trainer
