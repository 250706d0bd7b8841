// Memory plans, FLOPs and traffic of the workers of a group.

#include <gtest/gtest.h>

#include <functional>

#include "engine/core/error.h"
#include "engine/model/adapter_shards.h"
#include "engine/model/block.h"
#include "engine/model/pipeline.h"
#include "tests/engine/model/memory_plan_cases.h"

namespace galley::model {
namespace {

constexpr auto kDividedTokens = SequenceParallel::kYes;

void for_workers(const ParallelLayout& layout,
                 const std::function<void(const WorkerPosition&)>& check) {
  for (int rank = 0; rank < layout.num_workers(); ++rank) {
    SCOPED_TRACE(to_text(layout) + " rank " + std::to_string(rank));
    check(worker_position(layout, rank));
  }
}

std::vector<std::string> names_with(const MemoryPlan& plan, const std::string& part) {
  std::vector<std::string> names;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.name.find(part) != std::string::npos) names.push_back(tensor.name);
  }
  return names;
}

TEST(MemoryPlanGroupTest, no_two_live_tensors_overlap_on_any_worker) {
  ModelConfig normed = llama(257, 72, 100, 4, 9, 3, true);
  normed.qk_norm = true;
  normed.qkv_bias = normed.o_bias = true;
  for (const ModelConfig& config : {llama(37, 24, 40, 5, 4, 2, false), normed}) {
    for (const std::vector<int64_t>& layers : {std::vector<int64_t>{}, std::vector<int64_t>{2}}) {
      for (const bool recompute : {false, true}) {
        for (ParallelLayout layout : {ParallelLayout{.tp_size = 3}, ParallelLayout{.pp_size = 3},
                                      ParallelLayout{.tp_size = 2, .pp_size = 2, .dp_size = 2}}) {
          for (const auto divided : {SequenceParallel::kNo, kDividedTokens}) {
            layout.sequence_parallel = divided;
            MemorySettings settings = settings_for(adapt(config, {}, layers, 4), 100);
            settings.recompute_blocks = recompute;
            settings.dropout = recompute;
            for_workers(layout, [&](const WorkerPosition& position) {
              const auto plan = memory_plan(config, layout, position, settings, traits());
              check_plan(plan, traits().alignment_bytes);
              EXPECT_EQ(plan.weights_bytes, weights_memory_plan(config, layout, position,
                                                                settings.weight_dtype, traits())
                                                .weights_bytes);
            });
          }
        }
      }
    }
  }
}

TEST(MemoryPlanGroupTest, replicas_hold_what_one_worker_holds) {
  const ModelConfig config = smollm2();
  const auto settings = settings_for(adapt(config, {}), 700);
  const auto alone = memory_plan(config, {}, {}, settings, traits());
  const auto replica = memory_plan(config, {.dp_size = 3}, {.dp_rank = 2}, settings, traits());
  ASSERT_EQ(alone.tensors.size(), replica.tensors.size());
  EXPECT_EQ(alone.total_bytes(), replica.total_bytes());
}

TEST(MemoryPlanGroupTest, slices_of_weights_add_up) {
  const ModelConfig config = llama(256, 128, 384, 2, 4, 4, false);
  const auto whole = weights_memory_plan(config, {}, {}, DType::kBf16, traits());
  const ParallelLayout layout{.tp_size = 4};
  for (const char* name : {"embedding", "head", "layers.0.q_proj.weight", "layers.0.k_proj.weight",
                           "layers.1.o_proj.weight", "layers.1.down_proj.weight"}) {
    uint64_t sum = 0;
    for_workers(layout, [&](const WorkerPosition& position) {
      sum +=
          weights_memory_plan(config, layout, position, DType::kBf16, traits()).tensor(name).bytes;
    });
    EXPECT_EQ(sum, whole.tensor(name).bytes) << name;
  }
}

TEST(MemoryPlanGroupTest, ends_of_the_model_are_on_the_first_and_the_last_stage) {
  const ParallelLayout layout{.pp_size = 3};
  for (const bool tied : {false, true}) {
    const ModelConfig config = llama(100, 24, 40, 3, 4, 2, tied);
    const auto settings = settings_for(adapt(config, {}, {}, 4), 10);
    std::vector<MemoryPlan> plans;
    for_workers(layout, [&](const WorkerPosition& position) {
      plans.push_back(memory_plan(config, layout, position, settings, traits()));
    });
    EXPECT_TRUE(has(plans[0], "embedding") && has(plans[0], "ids"));
    EXPECT_FALSE(has(plans[1], "embedding") || has(plans[1], "ids"));
    // A tied head is the embedding: the last stage has its own copy.
    EXPECT_EQ(has(plans[2], "embedding"), tied);
    EXPECT_EQ(has(plans[2], "head"), !tied);
    for (const size_t stage : {0u, 1u}) {
      EXPECT_FALSE(has(plans[stage], "head") || has(plans[stage], "final_norm"));
      EXPECT_TRUE(names_with(plans[stage], "loss.").empty());
      EXPECT_EQ(plans[stage].logits_chunk_rows, 0);
    }
    EXPECT_TRUE(has(plans[2], "final_norm") && has(plans[2], "loss.logits"));
    EXPECT_TRUE(has(plans[1], "layers.1.mlp_norm"));
    EXPECT_FALSE(has(plans[1], "layers.0.mlp_norm"));
    std::vector<std::string> moments;
    for (const Moment& moment : plans[1].moments) moments.push_back(moment.name);
    EXPECT_EQ(moments, (std::vector<std::string>{"load", "forward 1", "hand over", "backward 1",
                                                 "optimizer"}));
  }
}

TEST(MemoryPlanGroupTest, stages_keep_as_many_micro_batches_as_are_under_way) {
  const ModelConfig config = llama(100, 24, 40, 4, 4, 2, false);
  const ParallelLayout layout{.pp_size = 4};
  const auto settings = settings_for(adapt(config, {}, {}, 4), 10);
  for_workers(layout, [&](const WorkerPosition& position) {
    const auto plan = memory_plan(config, layout, position, settings, traits());
    const std::string kept = "acts." + std::to_string(position.pp_rank) + ".lse";
    const int slots = pipeline_slots(4, position.pp_rank);
    EXPECT_EQ(names_with(plan, kept).size(), static_cast<size_t>(slots));
    for (int slot = 1; slot < slots; ++slot) {
      const PlannedTensor& other = plan.tensor("slot" + std::to_string(slot) + "." + kept);
      EXPECT_EQ(other.bytes, plan.tensor(kept).bytes);
      EXPECT_EQ(plan.moments[static_cast<size_t>(other.first_moment)].name,
                "forward " + std::to_string(position.pp_rank));
      EXPECT_EQ(plan.moments[static_cast<size_t>(other.last_moment)].name,
                "backward " + std::to_string(position.pp_rank));
    }
    EXPECT_TRUE(has(plan, "d_stream"));
    EXPECT_EQ(has(plan, "acts." + std::to_string(position.pp_rank) + ".input"),
              position.pp_rank > 0);
  });
}

TEST(MemoryPlanGroupTest, stages_below_the_adapter_keep_nothing) {
  const ModelConfig config = llama(100, 24, 40, 4, 4, 2, false);
  const auto settings = settings_for(adapt(config, {}, {3}, 4), 10);
  const auto below = memory_plan(config, {.pp_size = 2}, {}, settings, traits());
  EXPECT_TRUE(names_with(below, "acts.").empty());
  EXPECT_TRUE(names_with(below, "backward.").empty());
  EXPECT_FALSE(has(below, "d_stream"));
  EXPECT_FALSE(has(below, "parameters"));
  EXPECT_TRUE(has(below, "stream"));
  // A stage above adapted layers passes the gradient on though nothing of it is trained.
  const auto low = settings_for(adapt(config, {}, {0}, 4), 10);
  const auto above = memory_plan(config, {.pp_size = 2}, {.pp_rank = 1}, low, traits());
  EXPECT_TRUE(has(above, "d_stream") && has(above, "acts.2.input") && has(above, "loss.d_norm"));
  EXPECT_FALSE(has(above, "parameters"));
}

TEST(MemoryPlanGroupTest, what_is_under_way_between_stages_lives_while_others_run) {
  const ModelConfig config = llama(100, 24, 40, 6, 4, 2, false);
  const auto settings = settings_for(adapt(config, {}, {}, 4), 10);
  const auto middle = memory_plan(config, {.pp_size = 3}, {.pp_rank = 1}, settings, traits());
  for (const char* name : {"stream", "d_stream"}) {
    const PlannedTensor& tensor = middle.tensor(name);
    EXPECT_EQ(middle.moments[static_cast<size_t>(tensor.first_moment)].name, "forward 2") << name;
    EXPECT_EQ(middle.moments[static_cast<size_t>(tensor.last_moment)].name, "backward 2") << name;
  }
}

TEST(MemoryPlanGroupTest, trainable_vectors_are_the_shards_of_the_worker) {
  const ModelConfig config = smollm2();
  const auto linears = adapt(config, {});
  const ParallelLayout layout{.tp_size = 2, .pp_size = 2};
  const auto settings = settings_for(linears, 64);
  for_workers(layout, [&](const WorkerPosition& position) {
    const auto plan = memory_plan(config, layout, position, settings, traits());
    const auto shards = adapter_shards(config, linears, {layout, position});
    EXPECT_EQ(plan.tensor("parameters").bytes, shards.num_elements * 4);
    EXPECT_EQ(plan.tensor("second_moments").bytes, shards.num_elements * 4);
    EXPECT_EQ(plan.tensor("shared_gradients").bytes, shards.num_shared * 4);
  });
  EXPECT_FALSE(
      has(memory_plan(config, {.tp_size = 3}, {}, settings, traits()), "shared_gradients"));
}

TEST(MemoryPlanGroupTest, a_divided_vocabulary_has_chunks_of_the_same_rows_everywhere) {
  const ModelConfig config = llama(257, 24, 40, 2, 4, 2, true);
  MemorySettings settings = settings_for(adapt(config, {}, {}, 4), 5000);
  const ParallelLayout layout{.tp_size = 4};
  const int64_t rows = memory_plan(config, layout, {}, settings, traits()).logits_chunk_rows;
  for_workers(layout, [&](const WorkerPosition& position) {
    const auto plan = memory_plan(config, layout, position, settings, traits());
    EXPECT_EQ(plan.logits_chunk_rows, rows);
    EXPECT_EQ(plan.tensor("loss.parts").bytes, static_cast<uint64_t>(4 * rows * 3 * 8));
    EXPECT_EQ(plan.tensor("loss.log_sum_exp").bytes, static_cast<uint64_t>(rows * 8));
  });
  EXPECT_FALSE(has(memory_plan(config, {}, {}, settings, traits()), "loss.parts"));
}

TEST(MemoryPlanGroupTest, one_worker_adds_the_bias_of_a_sum) {
  ModelConfig config = llama(100, 24, 40, 1, 4, 2, true);
  config.qkv_bias = config.o_bias = config.mlp_bias = true;
  const ParallelLayout layout{.tp_size = 2};
  for_workers(layout, [&](const WorkerPosition& position) {
    const auto plan = weights_memory_plan(config, layout, position, DType::kF32, traits());
    EXPECT_EQ(has(plan, "layers.0.o_proj.bias"), position.tp_rank == 0);
    EXPECT_EQ(has(plan, "layers.0.down_proj.bias"), position.tp_rank == 0);
    EXPECT_EQ(plan.tensor("layers.0.q_proj.bias").bytes, 12u * 4);
  });
}

TEST(MemoryPlanGroupTest, sequence_parallel_streams_hold_a_share_of_the_tokens) {
  const ModelConfig config = llama(100, 24, 40, 2, 4, 2, true);
  const auto settings = settings_for(adapt(config, {}, {}, 4), 11);
  const ParallelLayout layout{.tp_size = 2, .sequence_parallel = kDividedTokens};
  for_workers(layout, [&](const WorkerPosition& position) {
    const auto plan = memory_plan(config, layout, position, settings, traits());
    for (const char* name : {"stream", "d_stream", "acts.1.input", "acts.1.middle"}) {
      EXPECT_EQ(plan.tensor(name).bytes, 6u * 24 * 4) << name;
    }
    EXPECT_EQ(plan.tensor("acts.1.mlp_rstd").bytes, 6u * 4);
    for (const char* name : {"forward.partial", "backward.partial", "backward.d_norm",
                             "forward.mlp_norm", "acts.0.attention_norm"}) {
      EXPECT_EQ(plan.tensor(name).bytes, 11u * 24 * 4) << name;
    }
  });
  EXPECT_TRUE(
      names_with(memory_plan(config, {.tp_size = 2}, {}, settings, traits()), "partial").empty());
}

// FLOPs.

WorkerFlops sum_of(const ModelConfig& config, const std::vector<AdaptedLinear>& linears,
                   const ParallelLayout& layout, bool recompute) {
  WorkerFlops sum;
  for_workers(layout, [&](const WorkerPosition& position) {
    const auto own = worker_flops(config, linears, {layout, position}, 100.5, 0.5, recompute);
    sum.forward += own.forward;
    sum.backward += own.backward;
  });
  return sum;
}

TEST(WorkerFlopsTest, stages_add_up_to_the_model) {
  const ModelConfig config = smollm2();
  for (const auto& linears : {adapt(config, {}), adapt(config, {"v_proj"}, {17})}) {
    for (const bool recompute : {false, true}) {
      const double whole = training_flops(config, linears, 100.5, 0.5, recompute).total();
      for (const int pp : {1, 2, 4}) {
        const WorkerFlops sum = sum_of(config, linears, {.pp_size = pp}, recompute);
        EXPECT_NEAR((sum.forward + sum.backward) / whole, 1, 1e-12);
      }
    }
  }
}

TEST(WorkerFlopsTest, slices_add_up_but_for_what_several_workers_do_alike) {
  const ModelConfig config = llama(512, 256, 640, 3, 8, 4, true);
  const auto base = sum_of(config, {}, {.tp_size = 4}, false);
  EXPECT_NEAR(base.forward / training_flops(config, {}, 100.5, 0.5, false).total(), 1, 1e-12);
  EXPECT_EQ(base.backward, 0);
  // Column-parallel: x A^T and dA; row-parallel: the product with B, B^T dy and dB. Every worker
  // more does them once more.
  const auto linears = adapt(config, {"up_proj", "down_proj"}, {}, 8);
  const double whole = training_flops(config, linears, 100.5, 0.5, false).total();
  const WorkerFlops sum = sum_of(config, linears, {.tp_size = 4}, false);
  double alike = 0;
  for (int layer = 0; layer < 3; ++layer) {
    // Below the lowest adapted linear of layer 0 no gradient flows: no dx of its up_proj.
    alike += 2 * 8 * (256 * (layer == 0 ? 2 : 3) + 256 * 3);
  }
  EXPECT_NEAR(sum.forward + sum.backward, whole + 3 * alike, 1);
}

TEST(WorkerFlopsTest, the_head_is_on_the_last_stage) {
  const ModelConfig config = llama(512, 256, 640, 4, 8, 4, true);
  const auto first = worker_flops(config, {}, {{.pp_size = 2}, {}}, 10, 1, false);
  const auto last = worker_flops(config, {}, {{.pp_size = 2}, {.pp_rank = 1}}, 10, 1, false);
  EXPECT_NEAR(last.forward - first.forward, 2.0 * 512 * 256, 1e-6);
}

// Traffic.

TEST(WorkerTrafficTest, one_worker_sends_nothing) {
  const ModelConfig config = smollm2();
  const auto traffic = worker_traffic(config, adapt(config, {}), {}, false);
  EXPECT_EQ(traffic.tensor_bytes_per_token, 0);
  EXPECT_EQ(traffic.stage_bytes_per_token, 0);
  EXPECT_EQ(traffic.step_bytes, 0);
  EXPECT_EQ(traffic.tensor_calls_per_micro_batch, 0);
}

TEST(WorkerTrafficTest, tensor_parallel_blocks_sum_two_streams_each_way) {
  const ModelConfig config = smollm2();
  const auto all = adapt(config, {});
  const auto traffic = worker_traffic(config, all, {{.tp_size = 2}, {}}, false);
  // Embedding and head's gradient; two forward per layer, two backward but for the lowest norm,
  // below which nothing is trained.
  const int calls = 1 + 1 + 30 * 4 - 1;
  EXPECT_EQ(traffic.tensor_calls_per_micro_batch, calls);
  EXPECT_DOUBLE_EQ(traffic.tensor_bytes_per_token, calls * 576.0 * 4);  // 2 (t - 1) / t = 1
  const auto shards = adapter_shards(config, all, {{.tp_size = 2}, {}});
  EXPECT_DOUBLE_EQ(traffic.step_bytes,
                   4.0 * static_cast<double>(shards.num_replicated + shards.num_shared));
  // Recomputed blocks run the output projection of attention again.
  const auto again = worker_traffic(config, all, {{.tp_size = 2}, {}}, true);
  EXPECT_EQ(again.tensor_calls_per_micro_batch, calls + 30);
}

TEST(WorkerTrafficTest, divided_tokens_cost_as_much_but_for_what_is_made_again) {
  const ModelConfig config = smollm2();
  const auto all = adapt(config, {});
  const auto plain = worker_traffic(config, all, {{.tp_size = 2}, {}}, false);
  const auto divided =
      worker_traffic(config, all, {{.tp_size = 2, .sequence_parallel = kDividedTokens}, {}}, false);
  EXPECT_GE(divided.tensor_bytes_per_token, plain.tensor_bytes_per_token);
  EXPECT_LE(divided.tensor_bytes_per_token, 1.3 * plain.tensor_bytes_per_token);
}

TEST(WorkerTrafficTest, stages_hand_over_one_row_each_way) {
  const ModelConfig config = smollm2();
  const auto bytes = [&](const std::vector<AdaptedLinear>& linears, int pp_rank) {
    return worker_traffic(config, linears, {{.pp_size = 3}, {.pp_rank = pp_rank}}, false)
        .stage_bytes_per_token;
  };
  const auto all = adapt(config, {});
  EXPECT_EQ(bytes(all, 0), 576 * 4);
  EXPECT_EQ(bytes(all, 1), 2 * 576 * 4);
  EXPECT_EQ(bytes(all, 2), 576 * 4);
  const auto top = adapt(config, {}, {25});
  EXPECT_EQ(bytes(top, 1), 576 * 4);
  EXPECT_EQ(bytes(top, 2), 0);
}

TEST(WorkerTrafficTest, replicas_sum_their_gradients_once_per_step) {
  const ModelConfig config = smollm2();
  const auto all = adapt(config, {});
  const auto traffic = worker_traffic(config, all, {{.dp_size = 4}, {}}, false);
  EXPECT_DOUBLE_EQ(traffic.step_bytes, 2.0 * 3 / 4 * 4 * 4884480);
  EXPECT_EQ(traffic.tensor_bytes_per_token, 0);
}

}  // namespace
}  // namespace galley::model
