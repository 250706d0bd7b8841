#include "engine/model/layout.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/core/error.h"
#include "engine/model/memory_plan.h"
#include "tests/engine/model/memory_plan_cases.h"

namespace galley::model {
namespace {

std::string message_of(const ModelConfig& config, const ParallelLayout& layout) {
  try {
    require_layout(config, layout);
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kBadConfig);
    return error.what();
  }
  return "";
}

bool mentions(const std::string& text, const std::vector<std::string>& parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [&](const std::string& part) { return text.find(part) != std::string::npos; });
}

TEST(LayoutTest, shards_are_contiguous_and_nearly_even) {
  for (const int64_t count : {1, 2, 9, 64, 257, 1536}) {
    for (int parts = 1; parts <= 9; ++parts) {
      int64_t next = 0;
      for (int i = 0; i < parts; ++i) {
        const IndexRange range = shard_range(count, parts, i);
        EXPECT_EQ(range.begin, next);
        EXPECT_EQ(range.size(), count / parts + (i < count % parts ? 1 : 0));
        next = range.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST(LayoutTest, group_ranks_go_by_tensor_parallel_neighbour_then_stage_then_replica) {
  const ParallelLayout layout{.tp_size = 2, .pp_size = 3, .dp_size = 2};
  EXPECT_EQ(worker_position(layout, 1), (WorkerPosition{1, 0, 0}));
  EXPECT_EQ(worker_position(layout, 2), (WorkerPosition{0, 1, 0}));
  EXPECT_EQ(worker_position(layout, 6), (WorkerPosition{0, 0, 1}));
  for (int rank = 0; rank < layout.num_workers(); ++rank) {
    EXPECT_EQ(group_rank(layout, worker_position(layout, rank)), rank);
  }
}

TEST(LayoutTest, text_and_json_say_all_of_it) {
  EXPECT_EQ(to_text(ParallelLayout{}), "1 GPU");
  EXPECT_EQ(to_text({.tp_size = 2}), "tp 2");
  ParallelLayout layout{.tp_size = 2, .pp_size = 3, .dp_size = 2, .stage_layers = {10, 10, 4}};
  EXPECT_EQ(to_text(layout), "tp 2 x pp 3 (layers 10 + 10 + 4) x dp 2");
  EXPECT_EQ(layout_from_json(to_json(layout)), layout);
  layout.sequence_parallel = SequenceParallel::kYes;
  EXPECT_EQ(layout_from_json(to_json(layout)), layout);
  EXPECT_TRUE(mentions(to_text(layout), {"sequence parallel"}));
  EXPECT_EQ(layout_from_json(Json::object()), ParallelLayout{});
}

TEST(LayoutTest, nine_heads_over_two_workers_are_five_and_four) {
  const ParallelLayout layout{.tp_size = 2};
  const WorkerShape first = worker_shape(smollm2(), layout, {.tp_rank = 0});
  const WorkerShape second = worker_shape(smollm2(), layout, {.tp_rank = 1});
  EXPECT_EQ(first.num_heads, 5);
  EXPECT_EQ(second.num_heads, 4);
  // Head 4 uses key/value head 1, as head 5 does: both workers hold it.
  EXPECT_EQ(first.first_kv_head, 0);
  EXPECT_EQ(first.num_kv_heads, 2);
  EXPECT_EQ(second.first_kv_head, 1);
  EXPECT_EQ(second.num_kv_heads, 2);
  EXPECT_EQ(second.first_in_group(), 2);
  EXPECT_EQ(second.rows_of(Projection::kQ), (IndexRange{320, 576}));
  EXPECT_EQ(second.rows_of(Projection::kK), (IndexRange{64, 192}));
  EXPECT_EQ(second.columns_of(Projection::kO), (IndexRange{320, 576}));
  EXPECT_EQ(second.rows_of(Projection::kO), (IndexRange{0, 576}));
  EXPECT_EQ(second.columns_of(Projection::kDown), (IndexRange{768, 1536}));
  EXPECT_EQ(second.columns_of(Projection::kUp), (IndexRange{0, 576}));
}

TEST(LayoutTest, workers_hold_everything_once_but_shared_key_value_heads) {
  for (const ModelConfig& config :
       {smollm2(), llama(257, 60, 100, 5, 6, 3, true), llama(257, 64, 96, 7, 4, 1, false),
        llama(128256, 4096, 14336, 32, 32, 8, false)}) {
    for (int tp = 1; tp <= 4; ++tp) {
      int64_t heads = 0, features = 0, tokens = 0;
      std::set<int64_t> kv_heads;
      for (int rank = 0; rank < tp; ++rank) {
        const WorkerShape shape = worker_shape(config, {.tp_size = tp}, {.tp_rank = rank});
        EXPECT_EQ(shape.first_head, heads);
        EXPECT_EQ(shape.first_feature, features);
        EXPECT_EQ(shape.first_token, tokens);
        EXPECT_GT(shape.intermediate, 0);
        EXPECT_GT(shape.vocab_size, 0);
        heads += shape.num_heads;
        features += shape.intermediate;
        tokens += shape.vocab_size;
        for (int64_t h = 0; h < shape.num_heads; ++h) {
          const int64_t own = (shape.first_in_group() + h) / shape.heads_per_kv;
          EXPECT_EQ(shape.first_kv_head + own, (shape.first_head + h) / shape.heads_per_kv);
          EXPECT_LT(own, shape.num_kv_heads);
          kv_heads.insert(shape.first_kv_head + own);
        }
        for (int p = 0; p < kNumProjections; ++p) {
          const auto projection = static_cast<Projection>(p);
          EXPECT_EQ(shape.rows_of(projection).size(), shape.projection_out(projection));
          EXPECT_EQ(shape.columns_of(projection).size(), shape.projection_in(projection));
        }
      }
      EXPECT_EQ(heads, config.num_heads);
      EXPECT_EQ(features, config.intermediate);
      EXPECT_EQ(tokens, config.vocab_size);
      EXPECT_EQ(static_cast<int64_t>(kv_heads.size()), config.num_kv_heads);
    }
  }
}

TEST(LayoutTest, wide_ranges_begin_at_whole_panels_where_that_is_nearly_even) {
  // 151,936 tokens over 8: 18,992 each are no multiple of 32, 19,008 are.
  const ModelConfig wide = llama(151936, 5120, 13824, 48, 40, 8, false);
  for (int rank = 0; rank < 8; ++rank) {
    const WorkerShape shape = worker_shape(wide, {.tp_size = 8}, {.tp_rank = rank});
    EXPECT_EQ(shape.first_token % 32, 0);
    EXPECT_LE(static_cast<double>(shape.vocab_size), 1.03 * 18992);
    EXPECT_EQ(shape.intermediate, 1728);
  }
  // 257 over 4 would be 96, 64, 64, 33 in whole panels: 65, 64, 64, 64 instead.
  const ModelConfig small = llama(257, 64, 96, 2, 4, 4, true);
  EXPECT_EQ(worker_shape(small, {.tp_size = 4}, {}).vocab_size, 65);
  EXPECT_EQ(worker_shape(small, {.tp_size = 4}, {.tp_rank = 3}).vocab_size, 64);
}

TEST(LayoutTest, stages_hold_ranges_of_layers_and_the_ends) {
  const ParallelLayout layout{.tp_size = 2, .pp_size = 3, .stage_layers = {12, 12, 6}};
  const WorkerShape middle = worker_shape(smollm2(), layout, {.tp_rank = 1, .pp_rank = 1});
  EXPECT_EQ(middle.first_layer, 12);
  EXPECT_EQ(middle.num_layers, 12);
  EXPECT_FALSE(middle.has_embedding);
  EXPECT_FALSE(middle.has_head);
  EXPECT_TRUE(worker_shape(smollm2(), layout, {.pp_rank = 0}).has_embedding);
  const WorkerShape last = worker_shape(smollm2(), layout, {.pp_rank = 2});
  EXPECT_TRUE(last.has_head);
  EXPECT_FALSE(last.has_embedding);
  EXPECT_EQ(last.first_layer, 24);
  EXPECT_EQ(stage_layers(smollm2(), {.pp_size = 4}), (std::vector<int>{8, 8, 7, 7}));
}

TEST(LayoutTest, sequence_parallel_workers_share_the_tokens) {
  const ParallelLayout layout{.tp_size = 2, .sequence_parallel = SequenceParallel::kYes};
  const WorkerShape first = worker_shape(smollm2(), layout, {});
  const WorkerShape second = worker_shape(smollm2(), layout, {.tp_rank = 1});
  EXPECT_EQ(first.stream_tokens(7), (IndexRange{0, 4}));
  EXPECT_EQ(second.stream_tokens(7), (IndexRange{4, 7}));
  EXPECT_EQ(second.stream_tokens(1).size(), 0);
  const ParallelLayout alone{.sequence_parallel = SequenceParallel::kYes};
  EXPECT_EQ(worker_shape(smollm2(), alone, {}).sequence_parallel, SequenceParallel::kNo);
}

TEST(LayoutTest, what_cannot_be_divided_is_refused_with_the_nearest_that_can) {
  const ModelConfig config = smollm2();
  EXPECT_TRUE(mentions(message_of(config, {.tp_size = 10}),
                       {"plan.tp", "10", "9 query heads", "LlamaForCausalLM", "9 or less"}));
  EXPECT_TRUE(
      mentions(message_of(config, {.pp_size = 31}), {"plan.pp", "30 layers", "30 or less"}));
  EXPECT_TRUE(mentions(message_of(config, {.pp_size = 2, .stage_layers = {20, 9}}),
                       {"plan.stage_layers", "20 + 9 = 29", "30", "15 + 15"}));
  EXPECT_TRUE(mentions(message_of(config, {.pp_size = 2, .stage_layers = {30, 0}}),
                       {"stage 1", "plan.stage_layers"}));
  EXPECT_TRUE(mentions(message_of(config, {.pp_size = 2, .stage_layers = {30}}),
                       {"plan.stage_layers", "1 stage,", "plan.pp"}));
  EXPECT_TRUE(mentions(message_of(config, {.tp_size = 0}), {"plan.tp", "at least 1"}));
  EXPECT_TRUE(mentions(message_of(config, {.dp_size = -1}), {"plan.dp", "at least 1"}));
  EXPECT_TRUE(mentions(message_of(llama(3, 64, 96, 2, 4, 4, true), {.tp_size = 4}),
                       {"3 tokens in its vocabulary"}));
  EXPECT_EQ(message_of(config, {.tp_size = 9, .pp_size = 30, .dp_size = 4}), "");
}

TEST(LayoutTest, pain_P056_more_workers_than_key_value_heads_is_settled_by_the_config_alone) {
  const ModelConfig config = llama(257, 64, 96, 2, 8, 2, true);
  EXPECT_EQ(message_of(config, {.tp_size = 4}), "");
  for (int rank = 0; rank < 4; ++rank) {
    const WorkerShape shape = worker_shape(config, {.tp_size = 4}, {.tp_rank = rank});
    EXPECT_EQ(shape.num_heads, 2);
    EXPECT_EQ(shape.num_kv_heads, 1);
    EXPECT_EQ(shape.first_kv_head, rank / 2);
  }
  EXPECT_TRUE(mentions(message_of(config, {.tp_size = 9}), {"8 query heads", "plan.tp to 8"}));
}

}  // namespace
}  // namespace galley::model
