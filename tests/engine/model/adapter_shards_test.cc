#include "engine/model/adapter_shards.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/engine/model/memory_plan_cases.h"

namespace galley::model {
namespace {

struct Case {
  ModelConfig config;
  std::vector<AdaptedLinear> linears;
  ParallelLayout layout;
};

std::vector<std::vector<AdaptedLinear>> adapter_sets(const ModelConfig& config) {
  LoraSettings patterned;
  patterned.rank = 4;
  patterned.rank_pattern = {{"k_proj", 3}, {"layers.1.mlp.down_proj", 1}, {"v_proj", 7}};
  return {adapt(config, {}, {}, 5), adapt(config, {"k_proj", "v_proj"}, {}, 2),
          adapt(config, {"o_proj", "up_proj"}, {0, 3}, 3), adapt(config, {"v_proj"}, {2}, 4),
          adapted_linears(config, patterned)};
}

template <typename Check>
void for_all_cases(const Check& check) {
  for (const auto& [heads, kv_heads] :
       {std::pair<int, int>{9, 3}, {6, 3}, {4, 2}, {4, 1}, {4, 4}}) {
    const ModelConfig config = llama(37, heads * 8, 50, 4, heads, kv_heads, true);
    for (const auto& linears : adapter_sets(config)) {
      for (int tp = 1; tp <= 4; ++tp) {
        for (int pp = 1; pp <= 3; ++pp) {
          SCOPED_TRACE(std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads, tp " +
                       std::to_string(tp) + " pp " + std::to_string(pp));
          check(Case{config, linears, {.tp_size = tp, .pp_size = pp}});
        }
      }
    }
  }
}

AdapterShards shards_of(const Case& given, int tp_rank, int pp_rank) {
  return adapter_shards(given.config, given.linears,
                        {given.layout, {.tp_rank = tp_rank, .pp_rank = pp_rank}});
}

std::vector<float> numbered(uint64_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);  // exact: below 2^24
  return values;
}

/// Place in the whole flat vector of each element of a worker's.
std::vector<size_t> places(const AdapterShards& shards) {
  const std::vector<float> whole = numbered(shards.num_whole);
  std::vector<float> flat(shards.num_elements);
  take_shard(shards, whole, flat);
  return {flat.begin(), flat.end()};
}

TEST(AdapterShardsTest, the_parts_of_all_workers_are_the_whole_bit_for_bit) {
  for_all_cases([](const Case& given) {
    const std::vector<float> whole = numbered(num_trainable(given.linears));
    std::vector<float> rebuilt(whole.size(), -1.0f);
    for (int pp = 0; pp < given.layout.pp_size; ++pp) {
      for (int tp = 0; tp < given.layout.tp_size; ++tp) {
        const AdapterShards shards = shards_of(given, tp, pp);
        ASSERT_EQ(shards.num_whole, whole.size());
        std::vector<float> flat(shards.num_elements, -2.0f);
        take_shard(shards, whole, flat);
        EXPECT_EQ(std::count(flat.begin(), flat.end(), -2.0f), 0);
        put_shard(shards, flat, rebuilt);
      }
    }
    EXPECT_EQ(rebuilt, whole);
  });
}

TEST(AdapterShardsTest, one_worker_has_the_whole_in_its_own_order) {
  const ModelConfig config = smollm2();
  const auto linears = adapt(config, {});
  const AdapterShards shards = adapter_shards(config, linears, {});
  const auto tensors = trainable_tensors(linears);
  ASSERT_EQ(shards.tensors.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(shards.tensors[i].name, tensors[i].name);
    EXPECT_EQ(shards.tensors[i].offset, tensors[i].offset);
    EXPECT_EQ(shards.tensors[i].whole_offset, tensors[i].offset);
    EXPECT_EQ(shards.tensors[i].num_elements(), tensors[i].num_elements());
    EXPECT_FALSE(shards.tensors[i].replicated);
  }
  EXPECT_EQ(shards.num_replicated, 0u);
  EXPECT_EQ(shards.num_shared, 0u);
  ASSERT_EQ(shards.counted.size(), 1u);
  EXPECT_EQ(shards.counted[0].size(), static_cast<int64_t>(shards.num_elements));
}

TEST(AdapterShardsTest, every_element_is_counted_by_exactly_one_worker) {
  for_all_cases([](const Case& given) {
    std::vector<int> counts(num_trainable(given.linears), 0);
    for (int pp = 0; pp < given.layout.pp_size; ++pp) {
      for (int tp = 0; tp < given.layout.tp_size; ++tp) {
        const AdapterShards shards = shards_of(given, tp, pp);
        const std::vector<size_t> place = places(shards);
        int64_t end = 0;
        for (const IndexRange& range : shards.counted) {
          EXPECT_GE(range.begin, end);
          EXPECT_GT(range.size(), 0);
          end = range.end;
          for (int64_t i = range.begin; i < range.end; ++i) {
            ++counts[place[static_cast<size_t>(i)]];
          }
        }
      }
    }
    EXPECT_EQ(std::count(counts.begin(), counts.end(), 1), static_cast<long>(counts.size()));
  });
}

TEST(AdapterShardsTest, elements_on_several_workers_are_replicated_or_shared) {
  for_all_cases([](const Case& given) {
    for (int pp = 0; pp < given.layout.pp_size; ++pp) {
      std::vector<int> holders(num_trainable(given.linears), 0);
      std::vector<AdapterShards> all;
      for (int tp = 0; tp < given.layout.tp_size; ++tp) {
        all.push_back(shards_of(given, tp, pp));
        for (const size_t place : places(all.back())) ++holders[place];
      }
      std::vector<int64_t> shared_place(all[0].num_shared, -1);
      for (const AdapterShards& shards : all) {
        const std::vector<size_t> place = places(shards);
        // Replicated ones lie alike on all.
        ASSERT_EQ(shards.num_replicated, all[0].num_replicated);
        ASSERT_EQ(shards.num_shared, all[0].num_shared);
        std::vector<bool> shared(place.size(), false);
        for (const SharedRun& run : shards.shared) {
          for (uint64_t i = 0; i < run.count; ++i) {
            ASSERT_LT(run.shared_offset + i, shards.num_shared);
            ASSERT_LT(run.offset + i, place.size());
            EXPECT_GE(run.offset, shards.num_replicated);
            shared[run.offset + i] = true;
            int64_t& same = shared_place[run.shared_offset + i];
            const auto here = static_cast<int64_t>(place[run.offset + i]);
            EXPECT_TRUE(same == -1 || same == here);
            same = here;
          }
        }
        for (size_t i = 0; i < place.size(); ++i) {
          if (i < shards.num_replicated) {
            EXPECT_EQ(holders[place[i]], given.layout.tp_size);
          } else {
            EXPECT_EQ(shared[i], holders[place[i]] > 1);
          }
        }
      }
      EXPECT_EQ(std::count(shared_place.begin(), shared_place.end(), -1), 0);
    }
  });
}

TEST(AdapterShardsTest, tensors_and_linears_have_the_widths_of_the_worker) {
  for_all_cases([](const Case& given) {
    for (int pp = 0; pp < given.layout.pp_size; ++pp) {
      for (int tp = 0; tp < given.layout.tp_size; ++tp) {
        const WorkerShape shape =
            worker_shape(given.config, given.layout, {.tp_rank = tp, .pp_rank = pp});
        const AdapterShards shards = shards_of(given, tp, pp);
        ASSERT_EQ(shards.tensors.size(), 2 * shards.linears.size());
        uint64_t sum = 0;
        for (size_t i = 0; i < shards.linears.size(); ++i) {
          const AdaptedLinear& linear = shards.linears[i];
          const ShardTensor &a = shards.tensors[2 * i], &b = shards.tensors[2 * i + 1];
          EXPECT_GE(linear.layer, shape.first_layer);
          EXPECT_LT(linear.layer, shape.first_layer + shape.num_layers);
          EXPECT_EQ(linear.in, shape.projection_in(linear.projection));
          EXPECT_EQ(linear.out, shape.projection_out(linear.projection));
          EXPECT_EQ(a.num_elements(), static_cast<uint64_t>(linear.rank * linear.in));
          EXPECT_EQ(b.num_elements(), static_cast<uint64_t>(linear.rank * linear.out));
          const bool row = linear_split(linear.projection) == LinearSplit::kRow;
          EXPECT_EQ(a.replicated, given.layout.tp_size > 1 && !row);
          EXPECT_EQ(b.replicated, given.layout.tp_size > 1 && row);
          EXPECT_EQ(a.name, linear.name_a());
          EXPECT_EQ(b.name, linear.name_b());
          sum += a.num_elements() + b.num_elements();
        }
        EXPECT_EQ(shards.num_elements, sum);
      }
    }
  });
}

TEST(AdapterShardsTest, nine_heads_over_two_workers_share_the_middle_key_value_head) {
  const ModelConfig config = smollm2();
  const auto linears = adapt(config, {"k_proj"}, {4}, 16);
  const WorkerPlace second{{.tp_size = 2}, {.tp_rank = 1}};
  const AdapterShards shards = adapter_shards(config, linears, second);
  EXPECT_EQ(shards.num_replicated, 16u * 576);
  EXPECT_EQ(shards.num_elements, 16u * (576 + 128));
  EXPECT_EQ(shards.num_shared, 16u * 64);
  ASSERT_EQ(shards.shared.size(), 1u);
  EXPECT_EQ(shards.shared[0].offset, 16u * 576);
  EXPECT_EQ(shards.shared[0].shared_offset, 0u);
  ASSERT_EQ(shards.counted.size(), 1u);
  EXPECT_EQ(shards.counted[0], (IndexRange{16 * (576 + 64), 16 * (576 + 128)}));
}

TEST(AdapterShardsTest, a_stage_without_adapted_layers_has_nothing) {
  const ModelConfig config = smollm2();
  const auto linears = adapt(config, {"q_proj"}, {29});
  const AdapterShards shards = adapter_shards(config, linears, {{.pp_size = 2}, {}});
  EXPECT_EQ(shards.num_elements, 0u);
  EXPECT_TRUE(shards.tensors.empty());
  EXPECT_TRUE(shards.counted.empty());
  EXPECT_EQ(shards.num_whole, num_trainable(linears));
}

}  // namespace
}  // namespace galley::model
