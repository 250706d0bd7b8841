// A group in any layout has the loss and the gradients of one worker.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "tests/engine/nn/group_rig.h"

namespace galley::nn {
namespace {

using namespace galley::testing;

struct ParallelCase {
  std::string name;
  SmallShape shape;
  std::vector<std::string> targets = {};  // all seven
  std::vector<int64_t> layers = {};       // all
  bool recompute = false;
  double dropout = 0;
};

SmallShape heads(int64_t heads, int64_t kv_heads, int64_t layers = 4, int64_t vocab = 257) {
  return {.vocab = vocab,
          .hidden = 36,
          .intermediate = 44,
          .layers = layers,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = 6};
}
SmallShape with(SmallShape shape, const std::function<void(SmallShape*)>& change) {
  change(&shape);
  return shape;
}

std::vector<ParallelCase> cases() {
  return {
      {"heads 9 on 3", heads(9, 3)},
      {"heads 6 on 3, tied", with(heads(6, 3), [](SmallShape* s) { s->tied = true; })},
      {"one kv head", heads(4, 1)},
      {"as many kv heads", heads(4, 4)},
      {"biases", with(heads(6, 2), [](SmallShape* s) { s->attention_bias = s->mlp_bias = true; })},
      {"head norms, window", with(heads(6, 3),
                                  [](SmallShape* s) {
                                    s->qk_norm = true;
                                    s->sliding_window = 5;
                                  })},
      {"some linears", heads(9, 3), {"q_proj", "v_proj", "down_proj"}},
      {"upper layers", heads(6, 2), {"k_proj", "o_proj", "gate_proj"}, {2, 3}},
      {"recompute", heads(9, 3), {}, {}, true},
      {"dropout", heads(9, 3), {}, {}, false, 0.2},
      {"recompute with dropout, upper layers", heads(4, 2), {}, {1, 3}, true, 0.3},
  };
}

model::ParallelLayout layout(int tp, int pp, int dp, std::vector<int> stage_layers = {}) {
  model::ParallelLayout layout;
  layout.tp_size = tp;
  layout.pp_size = pp;
  layout.dp_size = dp;
  layout.stage_layers = std::move(stage_layers);
  return layout;
}

std::vector<model::ParallelLayout> layouts() {
  std::vector<model::ParallelLayout> all = {
      layout(2, 1, 1), layout(3, 1, 1), layout(4, 1, 1),         layout(1, 2, 1),
      layout(1, 3, 1), layout(1, 4, 1), layout(1, 2, 1, {1, 3}), layout(1, 3, 1, {2, 1, 1}),
      layout(1, 1, 2), layout(1, 1, 3), layout(2, 2, 2),         layout(2, 2, 1, {3, 1}),
      layout(3, 1, 2), layout(1, 2, 2)};
  for (const int tp : {2, 3, 4}) {
    all.push_back(layout(tp, 1, 1));
    all.back().sequence_parallel = model::SequenceParallel::kYes;
  }
  all.push_back(layout(2, 2, 2));
  all.back().sequence_parallel = model::SequenceParallel::kYes;
  return all;
}

class ParallelNetwork : public ::testing::TestWithParam<size_t> {};

TEST_P(ParallelNetwork, every_layout_has_the_gradients_of_one_worker) {
  const ParallelCase c = cases()[GetParam()];
  SCOPED_TRACE(c.name);
  const model::ModelConfig config = small_config(c.shape);
  const SmallWeights weights(config, 11);
  const Batch batch = random_batch({7, 1, 12, 3, 9, 5}, config.vocab_size, 3);
  std::vector<StepPlan> micro_batches;
  for (size_t row = 0; row < batch.rows.size(); row += row == 0 ? 2 : 1) {
    micro_batches.push_back(train_step(batch, row, row + (row == 0 ? 2 : 1)));
  }
  GroupSettings settings;
  settings.config = config;
  settings.weights = weights.source();
  settings.memory = settings_for(adapt(config, c.targets, c.layers), train_step(batch, 2, 3));
  settings.memory.micro_batch_rows = 2;
  settings.memory.recompute_blocks = c.recompute;
  settings.memory.dropout = c.dropout > 0;
  settings.memory.logits_chunk_rows = 5;
  settings.dropout = c.dropout;
  settings.dropout_seed = 9;
  const auto parameters = random_parameters(settings.memory.linears, 5);
  const double scale = 1.0 / 17;
  const GroupGradients alone = group_gradients(settings, parameters, micro_batches, scale);
  EXPECT_TRUE(alone.planned_is_allocated);
  const auto tensors = model::trainable_tensors(settings.memory.linears);
  for (const model::ParallelLayout& shape : layouts()) {
    if (shape.tp_size > config.num_heads) continue;
    SCOPED_TRACE(model::to_text(shape));
    settings.layout = shape;
    const GroupGradients group = group_gradients(settings, parameters, micro_batches, scale);
    EXPECT_NEAR(group.loss, alone.loss, 1e-6 * alone.loss);
    EXPECT_TRUE(group.replicated_bits_equal);
    EXPECT_TRUE(group.planned_is_allocated);
    for (const model::TrainableTensor& tensor : tensors) {
      const double error =
          relative_error(group.whole.data() + tensor.offset, alone.whole.data() + tensor.offset,
                         tensor.num_elements());
      EXPECT_LE(error, 5e-5) << tensor.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ParallelNetwork, ::testing::Range<size_t>(0, cases().size()));

TEST(ParallelNetworkAlone, a_failing_worker_ends_the_others) {
  const model::ModelConfig config = small_config(heads(4, 2));
  const SmallWeights weights(config, 11);
  GroupSettings settings;
  settings.config = config;
  settings.weights = weights.source();
  settings.layout = layout(2, 2, 1);
  const StepPlan step = train_step(random_batch({5}, config.vocab_size, 3));
  settings.memory = settings_for(adapt(config, {}, {}), step);
  try {
    run_group(settings, [&](GroupWorker& worker) {
      if (worker.rank() == 2) throw Error(Reason::kNumerics, "on purpose");
      worker.run({step, step, step}, 1);
    });
    FAIL() << "nobody threw";
  } catch (const Error& error) {
    EXPECT_TRUE(error.reason() == Reason::kNumerics || error.reason() == Reason::kWorkerDied);
  }
}

}  // namespace
}  // namespace galley::nn
