#include "engine/model/memory_plan.h"

#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/model/block.h"
#include "tests/engine/model/memory_plan_cases.h"

namespace galley::model {
namespace {

TEST(MemoryPlanTest, no_two_live_tensors_overlap) {
  const std::vector<ModelConfig> configs = {llama(37, 24, 40, 3, 4, 2, false),
                                            llama(257, 60, 100, 2, 6, 3, true),
                                            llama(32000, 2048, 5632, 4, 32, 4, false)};
  const std::vector<std::vector<std::string>> targets = {
      {}, {"q_proj", "v_proj"}, {"down_proj"}, {"o_proj", "gate_proj"}};
  for (const ModelConfig& config : configs) {
    for (const auto& names : targets) {
      for (const std::vector<int64_t>& layers : {std::vector<int64_t>{}, std::vector<int64_t>{1}}) {
        for (const bool recompute : {false, true}) {
          for (const bool dropout : {false, true}) {
            MemorySettings settings = settings_for(adapt(config, names, layers, 4), 100);
            settings.recompute_blocks = recompute;
            settings.dropout = dropout;
            check_plan(memory_plan(config, {}, {}, settings, traits()), traits().alignment_bytes);
          }
        }
      }
    }
    check_plan(memory_plan(config, {}, {}, settings_for({}, 64), traits()), 64);
  }
}

TEST(MemoryPlanTest, moments_go_from_load_to_optimizer) {
  const ModelConfig config = llama(37, 24, 40, 2, 4, 2, false);
  const auto plan =
      memory_plan(config, {}, {}, settings_for(adapt(config, {}, {}, 4), 10), traits());
  std::vector<std::string> names;
  for (const Moment& moment : plan.moments) names.push_back(moment.name);
  EXPECT_EQ(names, (std::vector<std::string>{"load", "forward 0", "forward 1", "loss", "backward 1",
                                             "backward 0", "optimizer"}));
}

TEST(MemoryPlanTest, weights_are_packed_and_a_tied_head_counts_once) {
  const ModelConfig tied = llama(100, 24, 40, 1, 4, 2, true);
  ModelConfig untied = tied;
  untied.tied_embeddings = false;
  MemorySettings settings = settings_for(adapt(tied, {}, {}, 4), 10);
  const auto with = memory_plan(tied, {}, {}, settings, traits());
  const auto without = memory_plan(untied, {}, {}, settings, traits());
  EXPECT_EQ(with.tensor("embedding").bytes, 128u * 24 * 4);  // 100 rows in panels of 32
  EXPECT_FALSE(has(with, "head"));
  EXPECT_EQ(without.tensor("head").bytes, with.tensor("embedding").bytes);
  EXPECT_EQ(without.weights_bytes, with.weights_bytes + without.tensor("head").bytes);
  settings.weight_dtype = DType::kBf16;
  EXPECT_EQ(memory_plan(tied, {}, {}, settings, traits()).tensor("embedding").bytes, 128u * 24 * 2);
  EXPECT_EQ(weights_memory_plan(tied, {}, {}, DType::kF32, traits()).weights_bytes,
            with.weights_bytes);
}

TEST(MemoryPlanTest, trainable_vectors_are_flat) {
  const ModelConfig config = smollm2();
  const auto linears = adapt(config, {});
  const auto plan = memory_plan(config, {}, {}, settings_for(linears, 512), traits());
  EXPECT_EQ(num_trainable(linears), 4884480u);
  for (const char* name : {"parameters", "gradients", "first_moments", "second_moments"}) {
    EXPECT_EQ(plan.tensor(name).bytes, 4884480u * 4);
  }
  EXPECT_EQ(plan.trainable_bytes, 4u * 4884480 * 4);
  EXPECT_EQ(plan.workspace_bytes, 12288u);
  EXPECT_EQ(plan.total_bytes(), plan.weights_bytes + plan.trainable_bytes + plan.activations_bytes +
                                    plan.workspace_bytes);
}

TEST(MemoryPlanTest, nothing_below_the_first_adapted_layer_is_kept) {
  const ModelConfig config = llama(37, 24, 40, 4, 4, 2, false);
  const auto plan =
      memory_plan(config, {}, {}, settings_for(adapt(config, {"down_proj"}, {2}, 4), 10), traits());
  for (const PlannedTensor& tensor : plan.tensors) {
    EXPECT_EQ(tensor.name.find("acts.0."), std::string::npos) << tensor.name;
    EXPECT_EQ(tensor.name.find("acts.1."), std::string::npos) << tensor.name;
  }
  // The lowest adapted linear needs its own input and low-rank activation, nothing before it.
  EXPECT_TRUE(has(plan, "acts.2.product"));
  EXPECT_TRUE(has(plan, "acts.2.down_proj_low_rank"));
  for (const char* name :
       {"acts.2.input", "acts.2.q", "acts.2.middle", "acts.2.gate", "acts.2.up"}) {
    EXPECT_FALSE(has(plan, name)) << name;
  }
  // The layer above passes the gradient on: norms, attention and swiglu, no low-rank activations.
  for (const char* name : {"acts.3.input", "acts.3.q", "acts.3.k", "acts.3.v", "acts.3.attention",
                           "acts.3.lse", "acts.3.middle", "acts.3.gate", "acts.3.up"}) {
    EXPECT_TRUE(has(plan, name)) << name;
  }
  EXPECT_FALSE(has(plan, "acts.3.product"));
  EXPECT_FALSE(has(plan, "acts.3.down_proj_low_rank"));
}

TEST(MemoryPlanTest, norms_and_products_are_made_again_where_their_inputs_are_kept) {
  const ModelConfig config = llama(37, 24, 40, 2, 4, 2, false);
  const auto all = adapt(config, {}, {}, 4);
  const auto plan = memory_plan(config, {}, {}, settings_for(all, 10), traits());
  // Layer 0: no gradient flows into its input, so its norm is kept instead.
  EXPECT_TRUE(has(plan, "acts.0.attention_norm"));
  EXPECT_FALSE(has(plan, "acts.0.input"));
  EXPECT_TRUE(has(plan, "acts.1.input"));
  EXPECT_FALSE(has(plan, "acts.1.attention_norm"));
  EXPECT_FALSE(has(plan, "acts.1.mlp_norm"));
  EXPECT_FALSE(has(plan, "acts.1.product"));
  for (const char* name : {"backward.attention_norm", "backward.mlp_norm", "backward.product"}) {
    EXPECT_TRUE(has(plan, name)) << name;
  }
}

TEST(MemoryPlanTest, kept_elements_are_those_of_the_published_ablation) {
  // 70B shape with an intermediate size of 4h and LoRA on down_proj: per token and layer 12h
  // elements after pruning and rematerialisation, counted with keys and values of full width.
  const int64_t h = 64;
  const ModelConfig config = llama(100, h, 4 * h, 3, 4, 4, true);
  const WorkerShape shape = worker_shape(config, {}, {});
  LayerRanks ranks{};
  ranks[static_cast<size_t>(Projection::kDown)] = 16;
  const BlockBackward backward = block_backward({}, ranks, true, false);
  int64_t kept = 0, recomputed = 0;
  for (int i = 0; i < slot_index(Slot::kLowRank); ++i) {
    const auto slot = static_cast<Slot>(i);
    const int64_t width = slot_width(shape, slot, 0);
    if (width < h) continue;  // statistics
    if (backward.keep[static_cast<size_t>(i)] == Keep::kKeep) kept += width;
    if (backward.keep[static_cast<size_t>(i)] == Keep::kRecompute) recomputed += width;
  }
  // Two norm inputs, q, k, v, gate, up: 13h; and the attention output, kept here rather than its
  // row sums recomputed: 14h. The product of 4h is made again.
  EXPECT_EQ(kept, 14 * h);
  EXPECT_EQ(recomputed, 4 * h);
}

TEST(MemoryPlanTest, recomputation_keeps_only_block_inputs) {
  const ModelConfig config = smollm2();
  MemorySettings settings = settings_for(adapt(config, {}), 1024);
  const auto kept = memory_plan(config, {}, {}, settings, traits());
  settings.recompute_blocks = true;
  const auto again = memory_plan(config, {}, {}, settings, traits());
  for (const PlannedTensor& tensor : again.tensors) {
    if (tensor.name.rfind("acts.", 0) == 0) {
      EXPECT_NE(tensor.name.find(".input"), std::string::npos) << tensor.name;
    }
  }
  EXPECT_LT(again.activations_bytes * 3, kept.activations_bytes);
}

TEST(MemoryPlanTest, lifetimes_share_memory) {
  const ModelConfig config = smollm2();
  const auto plan = memory_plan(config, {}, {}, settings_for(adapt(config, {}), 1024), traits());
  uint64_t sum = 0, peak = 0;
  std::vector<uint64_t> live(plan.moments.size());
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.arena != ArenaKind::kActivations) continue;
    sum += tensor.bytes;
    for (int i = tensor.first_moment; i <= tensor.last_moment; ++i) {
      live[static_cast<size_t>(i)] += tensor.bytes;
    }
  }
  for (const uint64_t bytes : live) peak = std::max(peak, bytes);
  EXPECT_LT(plan.activations_bytes, sum);
  // The packing wastes little over the most that is alive at once.
  EXPECT_LE(static_cast<double>(plan.activations_bytes), 1.02 * static_cast<double>(peak));
}

TEST(MemoryPlanTest, logits_come_in_chunks) {
  const ModelConfig config = smollm2();
  MemorySettings settings = settings_for(adapt(config, {}), 2048);
  auto plan = memory_plan(config, {}, {}, settings, traits());
  EXPECT_LE(plan.tensor("loss.logits").bytes, uint64_t{64} << 20);
  EXPECT_GE(plan.logits_chunk_rows, 256);
  settings.micro_batch_targets = 10;
  plan = memory_plan(config, {}, {}, settings, traits());
  EXPECT_EQ(plan.logits_chunk_rows, 10);
  settings.logits_chunk_rows = 3;
  plan = memory_plan(config, {}, {}, settings, traits());
  EXPECT_EQ(plan.logits_chunk_rows, 3);
}

TEST(MemoryPlanTest, plans_are_the_same_every_time) {
  const ModelConfig config = smollm2();
  const auto settings = settings_for(adapt(config, {}), 700);
  const auto a = memory_plan(config, {}, {}, settings, traits());
  const auto b = memory_plan(config, {}, {}, settings, traits());
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    EXPECT_EQ(a.tensors[i].name, b.tensors[i].name);
    EXPECT_EQ(a.tensors[i].offset, b.tensors[i].offset);
  }
}

TEST(MemoryPlanTest, layouts_that_the_model_does_not_have_are_refused) {
  const ModelConfig config = smollm2();
  const auto settings = settings_for(adapt(config, {}), 700);
  for (const ParallelLayout& layout :
       {ParallelLayout{.tp_size = 10}, ParallelLayout{.pp_size = 31}, ParallelLayout{.dp_size = 0},
        ParallelLayout{.pp_size = 2, .stage_layers = {20, 9}}}) {
    EXPECT_THROW(memory_plan(config, layout, {}, settings, traits()), Error) << to_text(layout);
  }
}

TEST(MemoryPlanTest, inference_keeps_caches_per_layer) {
  const ModelConfig config = llama(37, 24, 40, 3, 4, 2, false);
  InferenceMemorySettings settings{.max_tokens = 16,
                                   .num_slots = 3,
                                   .max_positions = 50,
                                   .max_logit_rows = 4,
                                   .max_rank = 8,
                                   .adapter_values = 100};
  const auto plan = inference_memory_plan(config, settings, traits());
  check_plan(plan, traits().alignment_bytes);
  EXPECT_EQ(plan.tensor("cache.2.k").bytes, 3u * 50 * 12 * 4);
  EXPECT_EQ(plan.tensor("adapters").bytes, 400u);
  EXPECT_EQ(plan.moments.size(), 1u);
  EXPECT_EQ(plan.trainable_bytes, 0u);
}

TEST(MemoryPlanTest, an_unknown_tensor_is_our_mistake) {
  EXPECT_THROW(MemoryPlan().tensor("nothing"), Error);
}

double mega(double flops) { return flops / 1e6; }

TEST(TrainingFlopsTest, figures_of_the_135m_shape) {
  const ModelConfig config = smollm2();
  const auto flops = training_flops(config, adapt(config, {}), 513 / 2.0, 1.0, false);
  EXPECT_NEAR(mega(flops.base_forward), 212.3, 0.1);
  EXPECT_NEAR(mega(flops.base_backward), 212.3 - 1.1, 0.1);
  EXPECT_NEAR(mega(flops.head), 2 * 56.6, 0.1);
  EXPECT_NEAR(mega(flops.lora), 29.3, 0.1);
  EXPECT_NEAR(mega(flops.attention), 62.1, 0.1);
  EXPECT_NEAR(mega(flops.total()), 628, 1);
  const auto all = adapt(config, {});
  EXPECT_NEAR(mega(training_flops(config, all, 257 / 2.0, 1, false).total()), 597, 1);
  EXPECT_NEAR(mega(training_flops(config, all, 1025 / 2.0, 1, false).total()), 690, 1);
}

TEST(TrainingFlopsTest, only_what_runs_counts) {
  const ModelConfig config = smollm2();
  const auto all = training_flops(config, adapt(config, {}), 256, 1.0, false);
  const auto top = training_flops(config, adapt(config, {"down_proj"}, {29}), 256, 0.5, false);
  EXPECT_EQ(top.base_backward, 0);
  EXPECT_EQ(top.base_forward, all.base_forward);
  EXPECT_EQ(top.head, all.head / 2);
  EXPECT_NEAR(top.attention, all.attention * 2 / 7, 1);
  const auto base = training_flops(config, {}, 256, 1.0, false);
  EXPECT_EQ(base.lora, 0);
  EXPECT_EQ(base.head, all.head / 2);
  const auto again = training_flops(config, adapt(config, {}), 256, 1.0, true);
  EXPECT_EQ(again.base_forward, all.base_forward);
  // All but the down projection runs once more.
  EXPECT_NEAR(mega(again.base_backward - all.base_backward), 212.3 - 30 * 2 * 576 * 1536 / 1e6,
              0.1);
}

}  // namespace
}  // namespace galley::model
