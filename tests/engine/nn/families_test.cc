// Gradients of blocks with windows, biases of q, k and v, and head norms, against the definition,
// for every way in which a layer can be adapted: each decides anew what backward keeps and makes
// again.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/core/random.h"
#include "engine/nn/network.h"
#include "tests/engine/nn/kernel_sets.h"
#include "tests/engine/nn/small_model.h"

namespace galley::nn {
namespace {

using namespace galley::testing;
using model::AdaptedLinear;
using model::ModelConfig;

struct FamilyCase {
  std::string name;
  SmallShape shape;
};

std::vector<FamilyCase> families() {
  return {
      {"window", {.layers = 2, .sliding_window = 5}},
      {"biases of q, k, v", {.layers = 2, .tied = true, .qkv_bias = true}},
      {"head norms", {.layers = 2, .heads = 6, .kv_heads = 3, .qk_norm = true}},
      {"all of it", {.layers = 2, .attention_bias = true, .qk_norm = true, .sliding_window = 3}}};
}

/// A model and a batch of its rows, longer and shorter than the windows.
struct Rows {
  Rows(const SmallShape& shape, device::KernelSet kernels)
      : rig(1, kernels),
        config(small_config(shape)),
        values(config, 7),
        weights(rig.load(config, values)),
        batch(random_batch({9, 1, 14, 4}, config.vocab_size, 3)),
        step(train_step(batch)) {}

  /// Gradients of the mean loss.
  std::vector<float> gradients(const std::vector<AdaptedLinear>& linears,
                               const std::vector<float>& parameters, bool recompute) {
    model::MemorySettings settings = settings_for(linears, step);
    settings.recompute_blocks = recompute;
    const auto network =
        TrainNetwork::create(*rig.device, *rig.stream, rig.ops, config, *weights, settings, 0, 0);
    std::memcpy(network->parameters(), parameters.data(), parameters.size() * sizeof(float));
    network->zero_gradients();
    network->forward_backward(step, 1.0 / static_cast<double>(step.targets.size()));
    return {network->gradients(), network->gradients() + network->num_trainable()};
  }

  Rig rig;
  ModelConfig config;
  SmallWeights values;
  std::unique_ptr<BaseWeights> weights;
  Batch batch;
  StepPlan step;
};

/// Each tensor's gradient along a random direction, by central differences.
void check_gradients(const Rows& rows, const std::vector<AdaptedLinear>& linears,
                     const std::vector<float>& parameters, const std::vector<float>& gradients) {
  const std::vector<double> point(parameters.begin(), parameters.end());
  Random random(5, random_stream("direction"));
  constexpr double kStep = 1e-5;
  for (const model::TrainableTensor& tensor : model::trainable_tensors(linears)) {
    SCOPED_TRACE(tensor.name);
    std::vector<double> above = point, below = point;
    double along = 0, size = 0;
    for (size_t i = tensor.offset; i < tensor.offset + tensor.num_elements(); ++i) {
      const double direction = random.normal();
      above[i] += kStep * direction;
      below[i] -= kStep * direction;
      along += direction * gradients[i];
      size += std::abs(direction * gradients[i]);
    }
    const double rise = reference_loss(rows.config, rows.values, linears, above, rows.batch) -
                        reference_loss(rows.config, rows.values, linears, below, rows.batch);
    const double slope = rise / (2 * kStep) / static_cast<double>(rows.step.targets.size());
    EXPECT_GT(size, 0);
    EXPECT_NEAR(along, slope, 2e-5 * size + 1e-8);
  }
}

class FamiliesTest : public ::testing::TestWithParam<device::KernelSet> {};

TEST_P(FamiliesTest, gradients_match_finite_differences_however_a_layer_is_adapted) {
  GALLEY_NEED_KERNELS(GetParam());
  const std::vector<std::string> targets[] = {
      {"q_proj"}, {"k_proj"}, {"v_proj"}, {"o_proj"}, {"q_proj", "k_proj"}, {"up_proj"}, {}};
  for (const FamilyCase& family : families()) {
    SCOPED_TRACE(family.name);
    Rows rows(family.shape, GetParam());
    for (const auto& chosen : targets) {
      for (const std::vector<int64_t>& layers : {std::vector<int64_t>{}, std::vector<int64_t>{1}}) {
        SCOPED_TRACE((chosen.empty() ? "all" : chosen[0]) + (layers.empty() ? "" : " of layer 1"));
        const auto linears = adapt(rows.config, chosen, layers);
        const auto parameters = random_parameters(linears, 11);
        const auto gradients = rows.gradients(linears, parameters, false);
        check_gradients(rows, linears, parameters, gradients);
        EXPECT_EQ(rows.gradients(linears, parameters, true), gradients) << "whole blocks again";
      }
    }
  }
}

GALLEY_FOR_KERNEL_SETS(FamiliesTest);

}  // namespace
}  // namespace galley::nn
