#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/core/random.h"
#include "engine/nn/network.h"
#include "tests/engine/nn/small_model.h"

namespace galley::nn {
namespace {

using namespace galley::testing;
using model::ModelConfig;

struct Fixture {
  explicit Fixture(SmallShape shape = {}, int num_adapters = 0)
      : config(small_config(shape)), values(config, 7), weights(rig.load(config, values)) {
    for (int i = 0; i < num_adapters; ++i) {
      model::Adapter& adapter = adapters.emplace_back();
      adapter.linears = adapt(
          config,
          i % 2 == 0 ? std::vector<std::string>{} : std::vector<std::string>{"q_proj", "down_proj"},
          {}, 2 + i);
      adapter.values = random_parameters(adapter.linears, 50 + static_cast<uint64_t>(i));
    }
  }
  std::unique_ptr<InferenceNetwork> make(const InferenceNetwork::Limits& limits) {
    return InferenceNetwork::create(*rig.device, *rig.stream, rig.ops, config, *weights, limits,
                                    adapters);
  }
  std::vector<float> expected(const std::vector<int32_t>& ids, int adapter) {
    std::vector<double> logits;
    if (adapter < 0) {
      logits = reference_logits(config, values, {}, {}, ids);
    } else {
      const model::Adapter& a = adapters[static_cast<size_t>(adapter)];
      logits = reference_logits(config, values, a.linears, {a.values.begin(), a.values.end()}, ids);
    }
    return {logits.begin(), logits.end()};
  }
  std::vector<int32_t> ids(int count, uint64_t seed) {
    return random_batch({count}, config.vocab_size, seed).rows[0];
  }
  size_t vocab() const { return static_cast<size_t>(config.vocab_size); }

  Rig rig;
  ModelConfig config;
  SmallWeights values;
  std::unique_ptr<BaseWeights> weights;
  std::vector<model::Adapter> adapters;
};

/// Adds ids[begin, end) of a sequence to a step; all rows are asked for.
void add(StepPlan* step, const std::vector<int32_t>& ids, size_t begin, size_t end, int64_t slot,
         int adapter) {
  step->segments.push_back({.kind = end - begin == 1 ? SegmentKind::kDecode : SegmentKind::kPrefill,
                            .row = static_cast<int64_t>(step->ids.size()),
                            .num_tokens = static_cast<int64_t>(end - begin),
                            .position = static_cast<int64_t>(begin),
                            .sequence_slot = slot,
                            .adapter = adapter});
  for (size_t i = begin; i < end; ++i) {
    step->target_rows.push_back(static_cast<int32_t>(step->ids.size()));
    step->ids.push_back(ids[i]);
  }
}

constexpr double kTolerance = 3e-5;

double error_of(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  return relative_error(a.data(), b.data(), b.size());
}

TEST(InferenceNetworkTest, a_whole_prompt_matches_the_definition) {
  for (const SmallShape& shape :
       {SmallShape{}, SmallShape{.tied = true, .attention_bias = true, .mlp_bias = true},
        SmallShape{.heads = 6, .kv_heads = 1, .head_dim = 10},
        SmallShape{.tied = true, .qkv_bias = true}, SmallShape{.sliding_window = 7},
        SmallShape{.attention_bias = true, .qk_norm = true, .sliding_window = 1},
        SmallShape{.heads = 6, .kv_heads = 3, .head_dim = 10, .qk_norm = true}}) {
    Fixture f(shape);
    const auto network = f.make({.max_tokens = 33, .num_slots = 1, .max_positions = 40});
    const auto ids = f.ids(33, 5);
    StepPlan step;
    add(&step, ids, 0, 33, 0, -1);
    std::vector<float> logits(33 * f.vocab());
    network->run(step, logits.data());
    EXPECT_LT(error_of(logits, f.expected(ids, -1)), kTolerance);
  }
}

TEST(InferenceNetworkTest, chunks_and_decodes_match_the_whole) {
  Fixture f;
  const auto network = f.make({.max_tokens = 12, .num_slots = 2, .max_positions = 40});
  const auto ids = f.ids(40, 5);
  for (const size_t chunk : {1u, 5u, 12u}) {
    std::vector<float> logits(40 * f.vocab());
    for (size_t begin = 0; begin < 40; begin += chunk) {
      StepPlan step;
      add(&step, ids, begin, std::min<size_t>(begin + chunk, 40), 1, -1);
      network->run(step, logits.data() + begin * f.vocab());
    }
    EXPECT_LT(error_of(logits, f.expected(ids, -1)), kTolerance) << chunk;
  }
}

/// A window and head norms beside the cache: chunks that are longer and shorter than the window,
/// and keys that an earlier step has written and a later one must not see any more.
TEST(InferenceNetworkTest, windows_and_head_norms_match_the_whole_in_chunks) {
  for (const SmallShape& shape :
       {SmallShape{.sliding_window = 7}, SmallShape{.qk_norm = true},
        SmallShape{.qkv_bias = true, .qk_norm = true, .sliding_window = 7}}) {
    Fixture f(shape, 1);
    const auto network = f.make({.max_tokens = 12, .num_slots = 2, .max_positions = 40});
    const auto ids = f.ids(40, 5);
    for (const int adapter : {-1, 0}) {
      const auto expected = f.expected(ids, adapter);
      for (const size_t chunk : {1u, 5u, 12u}) {
        std::vector<float> logits(40 * f.vocab());
        for (size_t begin = 0; begin < 40; begin += chunk) {
          StepPlan step;
          add(&step, ids, begin, std::min<size_t>(begin + chunk, 40), 1, adapter);
          network->run(step, logits.data() + begin * f.vocab());
        }
        EXPECT_LT(error_of(logits, expected), kTolerance) << chunk << " adapter " << adapter;
      }
    }
  }
}

TEST(InferenceNetworkTest, mixed_steps_of_several_sequences_and_adapters) {
  Fixture f({}, 3);
  const auto network =
      f.make({.max_tokens = 64, .num_slots = 5, .max_positions = 30, .max_logit_rows = 7});
  std::vector<std::vector<int32_t>> ids;
  for (uint64_t i = 0; i < 5; ++i) ids.push_back(f.ids(20 + static_cast<int>(i), 20 + i));
  const std::vector<int> adapter = {0, -1, 2, 2, 1};
  // Sequences start at different times; each step mixes prefill chunks and decodes.
  std::vector<size_t> done = {0, 0, 0, 0, 0};
  std::vector<std::vector<float>> logits(5);
  for (int round = 0; round < 60; ++round) {
    StepPlan step;
    std::vector<std::pair<size_t, size_t>> parts;
    for (size_t s = 0; s < 5; ++s) {
      if (round < static_cast<int>(s) || done[s] == ids[s].size()) continue;
      const size_t count = done[s] < 9 ? std::min<size_t>(4 + s, ids[s].size() - done[s]) : 1;
      add(&step, ids[s], done[s], done[s] + count, static_cast<int64_t>(s), adapter[s]);
      done[s] += count;
      parts.emplace_back(s, count);
    }
    if (parts.empty()) break;
    std::vector<float> rows(step.ids.size() * f.vocab());
    network->run(step, rows.data());
    const float* next = rows.data();
    for (const auto& [s, count] : parts) {
      logits[s].insert(logits[s].end(), next, next + count * f.vocab());
      next += count * f.vocab();
    }
  }
  for (size_t s = 0; s < 5; ++s) {
    EXPECT_LT(error_of(logits[s], f.expected(ids[s], adapter[s])), kTolerance) << s;
  }
}

TEST(InferenceNetworkTest, one_adapter_for_all_rows_matches_the_definition) {
  Fixture f({}, 2);
  const auto network = f.make({.max_tokens = 20, .num_slots = 1, .max_positions = 20});
  const auto ids = f.ids(20, 5);
  for (const int adapter : {0, 1, -1}) {
    StepPlan step;
    add(&step, ids, 0, 20, 0, adapter);
    std::vector<float> logits(20 * f.vocab());
    network->run(step, logits.data());
    EXPECT_LT(error_of(logits, f.expected(ids, adapter)), kTolerance) << adapter;
  }
}

TEST(InferenceNetworkTest, a_slot_can_be_used_again) {
  Fixture f;
  const auto network = f.make({.max_tokens = 20, .num_slots = 1, .max_positions = 20});
  for (uint64_t seed = 1; seed < 4; ++seed) {
    const int length = 5 * static_cast<int>(4 - seed);
    const auto ids = f.ids(length, seed);
    StepPlan step;
    add(&step, ids, 0, ids.size(), 0, -1);
    std::vector<float> logits(ids.size() * f.vocab());
    network->run(step, logits.data());
    EXPECT_LT(error_of(logits, f.expected(ids, -1)), kTolerance);
  }
}

TEST(InferenceNetworkTest, only_the_asked_rows_come_back) {
  Fixture f;
  const auto network =
      f.make({.max_tokens = 20, .num_slots = 1, .max_positions = 20, .max_logit_rows = 2});
  const auto ids = f.ids(20, 5);
  StepPlan step;
  add(&step, ids, 0, 20, 0, -1);
  step.target_rows = {19, 3, 4, 5, 0};
  std::vector<float> logits(5 * f.vocab());
  network->run(step, logits.data());
  const auto all = f.expected(ids, -1);
  for (size_t i = 0; i < 5; ++i) {
    const float* expected = all.data() + static_cast<size_t>(step.target_rows[i]) * f.vocab();
    EXPECT_LT(relative_error(logits.data() + i * f.vocab(), expected, f.vocab()), kTolerance);
  }
  step.target_rows.clear();
  network->run(step, nullptr);  // fills the cache only
}

TEST(InferenceNetworkTest, planned_bytes_are_allocated_bytes) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const int adapters : {0, 2}) {
      Fixture f({.qkv_bias = adapters > 0, .qk_norm = adapters > 0}, adapters);
      f.weights.reset();
      const uint64_t fixed = f.rig.device->allocated_bytes();
      f.weights = f.rig.load(f.config, f.values, dtype);
      const InferenceNetwork::Limits limits{.max_tokens = 20, .num_slots = 3, .max_positions = 40};
      const auto plan = model::inference_memory_plan(
          f.config, InferenceNetwork::memory_settings(dtype, limits, f.adapters),
          f.rig.device->traits());
      const auto network = f.make(limits);
      EXPECT_EQ(fixed, plan.workspace_bytes);
      EXPECT_EQ(f.rig.device->allocated_bytes(), plan.total_bytes());
      const auto ids = f.ids(20, 5);
      StepPlan step;
      add(&step, ids, 0, 20, 2, adapters - 1);
      std::vector<float> logits(20 * f.vocab());
      network->run(step, logits.data());
      EXPECT_EQ(f.rig.device->allocated_bytes(), plan.total_bytes());
    }
  }
}

TEST(InferenceNetworkTest, a_step_that_breaks_its_limits_is_refused) {
  Fixture f;
  const auto network = f.make({.max_tokens = 20, .num_slots = 2, .max_positions = 15});
  const auto ids = f.ids(20, 5);
  const auto refuses = [&](size_t begin, size_t end, int64_t slot, int adapter) {
    StepPlan step;
    add(&step, ids, begin, end, slot, adapter);
    step.target_rows.clear();
    EXPECT_THROW(network->run(step, nullptr), Error) << begin << " " << end << " " << slot;
  };
  refuses(0, 16, 0, -1);  // beyond max_positions
  refuses(10, 20, 0, -1);
  refuses(0, 5, 2, -1);  // no such slot
  refuses(0, 5, 0, 0);   // no such adapter
}

}  // namespace
}  // namespace galley::nn
