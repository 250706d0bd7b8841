#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/core/error.h"
#include "engine/core/random.h"
#include "engine/nn/network.h"
#include "tests/engine/nn/kernel_sets.h"
#include "tests/engine/nn/small_model.h"

namespace galley::nn {
namespace {

using namespace galley::testing;
using model::AdaptedLinear;
using model::ModelConfig;
using model::Projection;

constexpr uint64_t kDropoutSeed = 99;

std::unique_ptr<TrainNetwork> make(Rig& rig, const ModelConfig& config, const BaseWeights& weights,
                                   const model::MemorySettings& settings,
                                   const std::vector<float>& parameters, double dropout = 0) {
  auto network = TrainNetwork::create(*rig.device, *rig.stream, rig.ops, config, weights, settings,
                                      dropout, kDropoutSeed);
  if (!parameters.empty()) {
    std::memcpy(network->parameters(), parameters.data(), parameters.size() * sizeof(float));
  }
  return network;
}

std::vector<float> gradients_of(TrainNetwork& network) {
  return {network.gradients(), network.gradients() + network.num_trainable()};
}

/// Masks as the device draws them: dropout of ones.
MaskSource masks_of(Rig& rig, const Batch& batch, double dropout) {
  return [&rig, batch, dropout](int layer, Projection projection, size_t row, int64_t tokens,
                                int64_t in) {
    uint64_t first = 0;
    for (size_t r = 0; r < row; ++r) first += batch.rows[r].size();
    std::vector<uint64_t> ids;
    for (int64_t i = 0; i < tokens; ++i) ids.push_back(first + static_cast<uint64_t>(i));
    std::vector<float> ones(static_cast<size_t>(tokens * in), 1.0f), mask(ones.size());
    rig.ops.token->dropout({ones.data(), tokens, in, in},
                           {static_cast<float>(dropout), kDropoutSeed,
                            random_stream("dropout", {static_cast<uint64_t>(layer),
                                                      static_cast<uint64_t>(projection)}),
                            ids.data()},
                           {mask.data(), tokens, in, in}, device::Write::kSet);
    return mask;
  };
}

struct GradientCase {
  std::string name;
  SmallShape shape;
  std::vector<std::string> targets;  // empty: all seven
  std::vector<int64_t> layers;       // empty: all
  double dropout = 0;
  bool recompute = false;
  device::KernelSet kernels = device::KernelSet::kAuto;
};

/// Compares every tensor's gradient with central differences of the f64 forward pass: along one
/// random direction over the whole tensor and at three entries.
void check_gradients(const GradientCase& test) {
  SCOPED_TRACE(test.name);
  Rig rig(1, test.kernels);
  const ModelConfig config = small_config(test.shape);
  const SmallWeights values(config, 7);
  const auto weights = rig.load(config, values);
  const Batch batch = random_batch({9, 1, 14, 5}, config.vocab_size, 3);
  const StepPlan step = train_step(batch);
  const auto linears = adapt(config, test.targets, test.layers);
  const auto parameters = random_parameters(linears, 11);
  model::MemorySettings settings = settings_for(linears, step);
  settings.recompute_blocks = test.recompute;
  settings.dropout = test.dropout > 0;
  settings.logits_chunk_rows = 4;  // several chunks
  const auto network = make(rig, config, *weights, settings, parameters, test.dropout);
  network->zero_gradients();
  const double scale = 1.0 / static_cast<double>(step.targets.size());
  const double loss = network->forward_backward(step, scale);
  const MaskSource mask = test.dropout > 0 ? masks_of(rig, batch, test.dropout) : MaskSource{};
  std::vector<double> point(parameters.begin(), parameters.end());
  const double expected = reference_loss(config, values, linears, point, batch, mask);
  EXPECT_NEAR(loss, expected, 2e-5 * expected);
  const auto gradients = gradients_of(*network);
  const auto slope = [&](const std::vector<std::pair<size_t, double>>& direction) {
    constexpr double kStep = 1e-5;
    std::vector<double> moved = point;
    for (const auto& [i, d] : direction) moved[i] += kStep * d;
    const double above = reference_loss(config, values, linears, moved, batch, mask);
    moved = point;
    for (const auto& [i, d] : direction) moved[i] -= kStep * d;
    const double below = reference_loss(config, values, linears, moved, batch, mask);
    return (above - below) / (2 * kStep) * scale;
  };
  Random random(5, random_stream("direction"));
  for (const model::TrainableTensor& tensor : model::trainable_tensors(linears)) {
    SCOPED_TRACE(tensor.name);
    double largest = 0, along = 0, size = 0;
    std::vector<std::pair<size_t, double>> direction;
    for (size_t i = tensor.offset; i < tensor.offset + tensor.num_elements(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(gradients[i])));
      direction.emplace_back(i, random.normal());
      along += direction.back().second * gradients[i];
      size += std::abs(direction.back().second * gradients[i]);
    }
    EXPECT_GT(largest, 0);
    EXPECT_NEAR(along, slope(direction), 2e-5 * size + 1e-8);
    for (int k = 0; k < 3; ++k) {
      const size_t i = tensor.offset + random.below(tensor.num_elements());
      EXPECT_NEAR(gradients[i], slope({{i, 1.0}}), 3e-5 * largest + 1e-8);
    }
  }
}

TEST(TrainNetworkTest, gradients_of_all_seven_match_finite_differences) {
  check_gradients({.name = "plain"});
  check_gradients({.name = "tied", .shape = {.tied = true}});
  check_gradients({.name = "biases", .shape = {.attention_bias = true, .mlp_bias = true}});
}

class TrainKernelsTest : public ::testing::TestWithParam<device::KernelSet> {};

TEST_P(TrainKernelsTest, gradients_match_finite_differences) {
  GALLEY_NEED_KERNELS(GetParam());
  check_gradients({.name = "plain", .kernels = GetParam()});
  check_gradients({.name = "dropout, recompute",
                   .shape = {.layers = 2, .tied = true, .attention_bias = true},
                   .dropout = 0.3,
                   .recompute = true,
                   .kernels = GetParam()});
}

GALLEY_FOR_KERNEL_SETS(TrainKernelsTest);

TEST(TrainNetworkTest, gradients_match_for_head_shapes) {
  check_gradients({.name = "one kv head", .shape = {.layers = 2, .kv_heads = 1}});
  check_gradients({.name = "all heads", .shape = {.layers = 2, .kv_heads = 4}});
  check_gradients({.name = "wide heads", .shape = {.layers = 2, .head_dim = 10}});
  check_gradients({.name = "odd sizes",
                   .shape = {.vocab = 51,
                             .hidden = 21,
                             .intermediate = 33,
                             .layers = 2,
                             .heads = 6,
                             .kv_heads = 3,
                             .head_dim = 4}});
}

TEST(TrainNetworkTest, gradients_of_subsets_match_finite_differences) {
  check_gradients({.name = "q and v", .targets = {"q_proj", "v_proj"}});
  check_gradients({.name = "down only", .targets = {"down_proj"}});
  check_gradients({.name = "o only", .targets = {"o_proj"}});
  check_gradients({.name = "k only", .targets = {"k_proj"}});
  check_gradients({.name = "gate only", .targets = {"gate_proj"}});
  check_gradients({.name = "up only", .targets = {"up_proj"}});
  check_gradients({.name = "upper layers", .layers = {1, 2}});
  check_gradients({.name = "one layer", .layers = {1}});
  check_gradients({.name = "down of the top", .targets = {"down_proj"}, .layers = {2}});
  check_gradients({.name = "gap", .targets = {"o_proj", "up_proj"}, .layers = {0, 2}});
}

TEST(TrainNetworkTest, gradients_with_dropout_match_finite_differences) {
  check_gradients({.name = "dropout", .dropout = 0.3});
  check_gradients({.name = "dropout, recompute", .dropout = 0.3, .recompute = true});
  check_gradients(
      {.name = "dropout, q and down", .targets = {"q_proj", "down_proj"}, .dropout = 0.5});
}

TEST(TrainNetworkTest, rank_and_scaling_of_each_linear_count) {
  Rig rig;
  const ModelConfig config = small_config({.layers = 2});
  const SmallWeights values(config, 7);
  const auto weights = rig.load(config, values);
  auto linears = adapt(config, {}, {});
  for (size_t i = 0; i < linears.size(); ++i) {
    linears[i].rank = 1 + static_cast<int64_t>(i % 5);
    linears[i].scaling = 0.25 * static_cast<double>(1 + i % 4);
  }
  const Batch batch = random_batch({12, 7}, config.vocab_size, 3);
  const StepPlan step = train_step(batch);
  const auto parameters = random_parameters(linears, 4);
  const auto network = make(rig, config, *weights, settings_for(linears, step), parameters);
  network->zero_gradients();
  const double loss = network->forward_backward(step, 1);
  const std::vector<double> point(parameters.begin(), parameters.end());
  const double expected = reference_loss(config, values, linears, point, batch);
  EXPECT_NEAR(loss, expected, 1e-5 * expected);
}

struct Outcome {
  double loss = 0;
  std::vector<float> gradients;
};

/// One step of a 3-layer model under the given settings; the batch in `pieces` micro batches.
Outcome outcome(Rig& rig, const std::function<void(model::MemorySettings*)>& change,
                size_t pieces = 1, double dropout = 0) {
  const ModelConfig config = small_config({});
  const SmallWeights values(config, 7);
  const auto weights = rig.load(config, values);
  const Batch batch = random_batch({30, 17, 41, 8, 1, 23}, config.vocab_size, 3);
  const auto linears = adapt(config, {}, {});
  model::MemorySettings settings = settings_for(linears, train_step(batch));
  settings.dropout = dropout > 0;
  change(&settings);
  const auto network =
      make(rig, config, *weights, settings, random_parameters(linears, 11), dropout);
  network->zero_gradients();
  Outcome result;
  const double scale = 1.0 / static_cast<double>(train_step(batch).targets.size());
  const size_t rows = batch.rows.size();
  for (size_t i = 0; i < pieces; ++i) {
    const StepPlan step = train_step(batch, i * rows / pieces, (i + 1) * rows / pieces);
    result.loss += network->forward_backward(step, scale);
  }
  result.gradients = gradients_of(*network);
  return result;
}

TEST(TrainNetworkTest, recomputation_gives_the_same_bits) {
  for (const double dropout : {0.0, 0.25}) {
    Rig rig(2);
    const Outcome kept = outcome(
        rig, [](model::MemorySettings*) {}, 1, dropout);
    const Outcome again = outcome(
        rig, [](model::MemorySettings* s) { s->recompute_blocks = true; }, 1, dropout);
    EXPECT_EQ(kept.loss, again.loss);
    EXPECT_EQ(kept.gradients, again.gradients);
  }
}

TEST(TrainNetworkTest, repeated_steps_give_the_same_bits) {
  Rig rig(2);
  const Outcome first = outcome(rig, [](model::MemorySettings*) {});
  const Outcome second = outcome(rig, [](model::MemorySettings*) {});
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_EQ(first.gradients, second.gradients);
}

TEST(TrainNetworkTest, micro_batches_sum_to_the_whole_batch) {
  for (const double dropout : {0.0, 0.25}) {
    Rig rig;
    const Outcome whole = outcome(
        rig, [](model::MemorySettings*) {}, 1, dropout);
    for (const size_t pieces : {2u, 3u, 6u}) {
      const Outcome split = outcome(
          rig, [](model::MemorySettings*) {}, pieces, dropout);
      EXPECT_NEAR(whole.loss, split.loss, 1e-6 * whole.loss);
      EXPECT_LT(
          relative_error(split.gradients.data(), whole.gradients.data(), whole.gradients.size()),
          2e-5);
    }
  }
}

TEST(TrainNetworkTest, chunks_of_logits_do_not_change_the_result) {
  Rig rig;
  const Outcome whole = outcome(rig, [](model::MemorySettings*) {});
  for (const int64_t rows : {1, 7, 1000}) {
    const Outcome chunked =
        outcome(rig, [&](model::MemorySettings* s) { s->logits_chunk_rows = rows; });
    EXPECT_NEAR(whole.loss, chunked.loss, 1e-6 * whole.loss);
    EXPECT_LT(
        relative_error(chunked.gradients.data(), whole.gradients.data(), whole.gradients.size()),
        2e-5);
  }
}

TEST(TrainNetworkTest, rows_do_not_see_each_other) {
  Rig rig;
  const ModelConfig config = small_config({});
  const SmallWeights values(config, 7);
  const auto weights = rig.load(config, values);
  const auto linears = adapt(config, {}, {});
  const Batch batch = random_batch({20, 20}, config.vocab_size, 3);
  Batch other = batch;
  other.rows[0] = random_batch({20}, config.vocab_size, 77).rows[0];
  other.is_target[0].assign(20, false);
  Batch alone{{batch.rows[1]}, {batch.is_target[1]}};
  const auto network = make(rig, config, *weights, settings_for(linears, train_step(batch)),
                            random_parameters(linears, 11));
  const double both = network->loss_only(train_step(other));
  const double one = network->loss_only(train_step(alone));
  EXPECT_NEAR(both, one, 1e-6 * one);
}

TEST(TrainNetworkTest, pain_P145_positions_restart_in_every_row) {
  Rig rig;
  const ModelConfig config = small_config({});
  const SmallWeights values(config, 7);
  const auto weights = rig.load(config, values);
  const auto linears = adapt(config, {}, {});
  const Batch batch = random_batch({20, 13, 20}, config.vocab_size, 3);
  model::MemorySettings settings = settings_for(linears, train_step(batch));
  settings.max_position =
      20;  // of a row: positions that ran on over the pack would leave the table
  const auto network = make(rig, config, *weights, settings, random_parameters(linears, 11));
  double separate = 0;
  for (size_t row = 0; row < 3; ++row)
    separate += network->loss_only(train_step(batch, row, row + 1));
  EXPECT_NEAR(network->loss_only(train_step(batch)), separate, 1e-6 * separate);
  EXPECT_THROW(network->loss_only(train_step(random_batch({21}, config.vocab_size, 3))), Error);
}

TEST(TrainNetworkTest, pain_P146_the_second_copy_of_a_row_is_no_easier) {
  Rig rig;
  const ModelConfig config = small_config({});
  const SmallWeights values(config, 7);
  const auto weights = rig.load(config, values);
  const auto linears = adapt(config, {}, {});
  Batch batch = random_batch({25, 25}, config.vocab_size, 3);
  batch.rows[1] = batch.rows[0];
  const std::vector<bool> targets = batch.is_target[0], none(25, false);
  const auto network = make(rig, config, *weights, settings_for(linears, train_step(batch)),
                            random_parameters(linears, 11));
  batch.is_target = {targets, none};
  const double first = network->loss_only(train_step(batch));
  batch.is_target = {none, targets};
  EXPECT_NEAR(network->loss_only(train_step(batch)), first, 1e-6 * first);
}

TEST(TrainNetworkTest, loss_only_equals_the_loss_of_a_step_and_leaves_gradients) {
  Rig rig;
  const ModelConfig config = small_config({});
  const SmallWeights values(config, 7);
  const auto weights = rig.load(config, values);
  const auto linears = adapt(config, {"q_proj", "down_proj"}, {1});
  const StepPlan step = train_step(random_batch({20, 11}, config.vocab_size, 3));
  const auto network =
      make(rig, config, *weights, settings_for(linears, step), random_parameters(linears, 11));
  network->zero_gradients();
  const double loss = network->forward_backward(step, 1);
  const auto before = gradients_of(*network);
  EXPECT_EQ(network->loss_only(step), loss);
  EXPECT_EQ(gradients_of(*network), before);
  network->zero_gradients();
  for (const float value : gradients_of(*network)) ASSERT_EQ(value, 0.0f);
}

TEST(TrainNetworkTest, without_adapters_it_scores_the_base_model) {
  Rig rig;
  const ModelConfig config = small_config({});
  const SmallWeights values(config, 7);
  const auto weights = rig.load(config, values);
  const Batch batch = random_batch({20, 11}, config.vocab_size, 3);
  const StepPlan step = train_step(batch);
  const auto network = make(rig, config, *weights, settings_for({}, step), {});
  const double expected = reference_loss(config, values, {}, {}, batch);
  EXPECT_NEAR(network->loss_only(step), expected, 1e-5 * expected);
  EXPECT_EQ(network->forward_backward(step, 1), network->loss_only(step));
}

TEST(TrainNetworkTest, bf16_weights_equal_f32_weights_of_the_same_values) {
  Rig rig;
  const ModelConfig config = small_config({});
  const SmallWeights values(config, 7);
  const auto packed = rig.load(config, values, DType::kBf16);
  EXPECT_EQ(packed->dtype(), DType::kBf16);
  // The same weights rounded beforehand, held in f32.
  std::vector<uint16_t> bits;
  std::vector<float> rounded;
  const auto source = values.source();
  const auto wide = BaseWeights::load(
      *rig.device, *rig.stream, *rig.ops.linear, config,
      [&](const model::WeightId& id) {
        model::StoredTensor tensor = source(id);
        rounded = tensor.to_f32();
        const bool linear = tensor.shape.size() == 2;
        for (float& value : rounded) {
          if (linear) value = bf16_to_f32(f32_to_bf16(value));
        }
        tensor.bytes = reinterpret_cast<const std::byte*>(rounded.data());
        return tensor;
      },
      DType::kF32);
  const auto linears = adapt(config, {}, {});
  const StepPlan step = train_step(random_batch({20, 11}, config.vocab_size, 3));
  model::MemorySettings settings = settings_for(linears, step);
  const auto parameters = random_parameters(linears, 11);
  const auto f32 = make(rig, config, *wide, settings, parameters);
  settings.weight_dtype = DType::kBf16;
  const auto bf16 = make(rig, config, *packed, settings, parameters);
  f32->zero_gradients();
  bf16->zero_gradients();
  const double loss = f32->forward_backward(step, 1);
  EXPECT_NEAR(bf16->forward_backward(step, 1), loss, 1e-6 * loss);
  EXPECT_LT(relative_error(bf16->gradients(), f32->gradients(), f32->num_trainable()), 1e-5);
}

TEST(TrainNetworkTest, planned_bytes_are_allocated_bytes) {
  const std::vector<std::vector<std::string>> targets = {{}, {"q_proj", "v_proj"}, {"down_proj"}};
  for (const bool recompute : {false, true}) {
    for (const bool dropout : {false, true}) {
      for (const DType dtype : {DType::kF32, DType::kBf16}) {
        for (const auto& names : targets) {
          Rig rig(2);
          const uint64_t fixed = rig.device->allocated_bytes();
          const DeviceTraits traits = rig.device->traits();
          EXPECT_EQ(fixed, traits.gemm_workspace_bytes + traits.attention_workspace_bytes);
          const ModelConfig config = small_config({.tied = dropout, .attention_bias = recompute});
          const SmallWeights values(config, 7);
          const auto weights = rig.load(config, values, dtype);
          const StepPlan step = train_step(random_batch({20, 11}, config.vocab_size, 3));
          model::MemorySettings settings = settings_for(
              adapt(config, names, recompute ? std::vector<int64_t>{1} : std::vector<int64_t>{}),
              step);
          settings.recompute_blocks = recompute;
          settings.dropout = dropout;
          settings.weight_dtype = dtype;
          const model::MemoryPlan plan = model::memory_plan(config, {}, {}, settings, traits);
          EXPECT_EQ(weights->bytes(), plan.weights_bytes);
          EXPECT_EQ(rig.device->allocated_bytes(), fixed + plan.weights_bytes);
          const auto network = make(rig, config, *weights, settings, {}, dropout ? 0.1 : 0);
          EXPECT_EQ(rig.device->allocated_bytes(), plan.total_bytes());
          for (int i = 0; i < 2; ++i) network->forward_backward(step, 1);
          EXPECT_EQ(rig.device->allocated_bytes(), plan.total_bytes());
          EXPECT_EQ(rig.device->peak_allocated_bytes(), plan.total_bytes());
        }
      }
    }
  }
}

TEST(TrainNetworkTest, a_network_that_does_not_fit_says_so_before_any_step) {
  Rig rig;
  const ModelConfig config = small_config({});
  const SmallWeights values(config, 7);
  const auto weights = rig.load(config, values);
  model::MemorySettings settings;
  settings.linears = adapt(config, {}, {});
  settings.micro_batch_tokens = int64_t{1} << 24;
  settings.micro_batch_rows = 1;
  settings.max_position = 128;
  const uint64_t before = rig.device->allocated_bytes();
  try {
    make(rig, config, *weights, settings, {});
    FAIL() << "should not fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kOutOfMemory);
    EXPECT_NE(std::string(error.what()).find("activations"), std::string::npos);
  }
  EXPECT_EQ(rig.device->allocated_bytes(), before);
}

TEST(TrainNetworkTest, a_step_that_breaks_its_limits_is_refused) {
  Rig rig;
  const ModelConfig config = small_config({});
  const SmallWeights values(config, 7);
  const auto weights = rig.load(config, values);
  const auto linears = adapt(config, {}, {});
  const StepPlan step = train_step(random_batch({20, 11}, config.vocab_size, 3));
  const auto network = make(rig, config, *weights, settings_for(linears, step), {});
  EXPECT_THROW(network->loss_only(train_step(random_batch({32}, config.vocab_size, 3))), Error);
  StepPlan hole = step;
  hole.segments[1].row += 1;
  EXPECT_THROW(network->loss_only(hole), Error);
  StepPlan outside = step;
  outside.target_rows[0] = 31;
  EXPECT_THROW(network->loss_only(outside), Error);
}

}  // namespace
}  // namespace galley::nn
