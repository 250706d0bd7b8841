#include "trainer/train_step.h"

#include <algorithm>
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

}  // namespace

StepOutcome train_step(nn::TrainNetwork& network, device::OptimizerOps& optimizer,
                       std::span<const MicroBatch> batches, const OptimizerSettings& settings,
                       int64_t step, double learning_rate,
                       const std::function<void(size_t)>& between) {
  StepOutcome outcome;
  for (const MicroBatch& batch : batches) {
    outcome.num_tokens += batch.num_tokens;
    outcome.num_targets += batch.num_targets;
  }
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, outcome.num_targets));
  network.zero_gradients();
  double sum = 0;
  for (size_t i = 0; i < batches.size(); ++i) {
    between(i);
    sum += network.forward_backward(batches[i].step, scale);
  }
  outcome.loss = sum * scale;
  require_finite(outcome.loss, "loss", step);

  const auto count = static_cast<int64_t>(network.num_trainable());
  outcome.gradient_norm = std::sqrt(optimizer.sum_of_squares(network.gradients(), count));
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
  optimizer.adamw(network.parameters(), network.gradients(), network.first_moments(),
                  network.second_moments(), count, update);
  return outcome;
}

}  // namespace galley::trainer
