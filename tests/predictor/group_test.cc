#include <gtest/gtest.h>

#include <limits>

#include "engine/core/group_transport.h"
#include "predictor/predictor.h"
#include "tests/support/example_jobs.h"

namespace galley::predictor {
namespace {

using testing::example_config;
using testing::example_data;
using testing::example_spec;

constexpr uint64_t kMiB = uint64_t{1} << 20;

GroupGpu emulated(uint64_t memory_mib, double slowdown = 1, int node = 0, int threads = 1) {
  GroupGpu gpu;
  gpu.type = gpu_type_by_name("a100-40gb");
  gpu.type.name = "m" + std::to_string(memory_mib);
  gpu.type.emulated = true;
  gpu.type.memory_bytes = memory_mib * kMiB;
  gpu.type.slowdown = slowdown;
  gpu.node = node;
  gpu.threads = threads;
  return gpu;
}

GroupGpu card(const std::string& name, int node = 0) {
  GroupGpu gpu;
  gpu.type = gpu_type_by_name(name);
  gpu.node = node;
  return gpu;
}

model::ParallelLayout layout(int tp, int pp, int dp, std::vector<int> stages = {}) {
  model::ParallelLayout out;
  out.tp_size = tp;
  out.pp_size = pp;
  out.dp_size = dp;
  out.stage_layers = std::move(stages);
  return out;
}

/// Sequence-parallel norms.
model::ParallelLayout by_tokens(int tp, int pp) {
  model::ParallelLayout out = layout(tp, pp, 1);
  out.sequence_parallel = model::SequenceParallel::kYes;
  return out;
}

PlanShape shape(const model::ParallelLayout& of, int64_t tokens = 512) {
  PlanShape out;
  out.layout = of;
  out.micro_batch_tokens = tokens;
  return out;
}

Prediction predicted(const PlanShape& of, const std::vector<GroupGpu>& gpus,
                     const model::TrainSpec& spec = example_spec()) {
  return predict(example_config(), spec, example_data(), of, gpus);
}

std::vector<GroupGpu> group_of(const GroupGpu& gpu, int count) {
  return std::vector<GroupGpu>(static_cast<size_t>(count), gpu);
}

TEST(GroupPrediction, one_worker_is_the_prediction_of_one_gpu) {
  const GroupGpu gpu = emulated(16384);
  const Prediction group = predicted(shape({}), {gpu});
  const Prediction one =
      predict(example_config(), example_spec(), example_data(), shape({}), gpu.type);
  EXPECT_EQ(group.predicted_bytes, one.predicted_bytes);
  EXPECT_EQ(group.tokens_per_second, one.tokens_per_second);
  ASSERT_EQ(group.workers.size(), 1u);
  EXPECT_EQ(group.workers[0].planned_bytes, one.planned_bytes);
  EXPECT_EQ(group.idle_share, 0);
}

TEST(GroupPrediction, every_worker_has_the_bytes_of_its_own_memory_plan) {
  for (const model::ParallelLayout& of :
       {layout(2, 1, 1), layout(4, 1, 1), layout(1, 3, 1, {20, 6, 4}), layout(1, 1, 2),
        layout(2, 2, 2), layout(7, 1, 1), layout(9, 2, 1), by_tokens(3, 2)}) {
    SCOPED_TRACE(model::to_text(of));
    PlanShape given = shape(of, 1023);
    if (of.dp_size == 2) given.replica_tokens = {1023, 512};
    const std::vector<GroupGpu> gpus = group_of(emulated(16384), of.num_workers());
    const Prediction prediction = predicted(given, gpus);
    ASSERT_EQ(static_cast<int>(prediction.workers.size()), of.num_workers());
    int64_t least_left = std::numeric_limits<int64_t>::max();
    for (int rank = 0; rank < of.num_workers(); ++rank) {
      const WorkerNeed& need = prediction.workers[static_cast<size_t>(rank)];
      const model::WorkerPosition at = model::worker_position(of, rank);
      PlanShape own = given;
      if (!given.replica_tokens.empty())
        own.micro_batch_tokens = given.replica_tokens[static_cast<size_t>(at.dp_rank)];
      const model::MemoryPlan plan =
          model::memory_plan(example_config(), of, at,
                             memory_settings(example_config(), example_spec(), example_data(), own),
                             traits_for(gpus[0].type, 1));
      EXPECT_EQ(need.planned_bytes, plan.total_bytes()) << "rank " << rank;
      EXPECT_EQ(need.communication_bytes,
                group_memory_bytes(of.num_workers(),
                                   group_ring_bytes(group_message_bytes(example_config(), given))));
      EXPECT_GE(need.predicted_bytes, need.planned_bytes + need.communication_bytes);
      EXPECT_LT(need.low_bytes, need.predicted_bytes);
      EXPECT_GT(need.high_bytes, need.predicted_bytes);
      least_left = std::min(least_left, static_cast<int64_t>(need.usable_bytes) -
                                            static_cast<int64_t>(need.high_bytes));
    }
    EXPECT_EQ(
        static_cast<int64_t>(prediction.usable_bytes) - static_cast<int64_t>(prediction.high_bytes),
        least_left)
        << "the figures of the group are those of the fullest worker";
    uint64_t sum = 0;
    for (const PredictionPart& part : prediction.parts) sum += part.bytes;
    EXPECT_EQ(sum, prediction.predicted_bytes);
    EXPECT_TRUE(prediction.fits);
    EXPECT_GT(prediction.tokens_per_second, 0);
  }
}

TEST(GroupPrediction, a_group_fits_when_every_worker_does) {
  const PlanShape even = shape(layout(1, 2, 1, {15, 15}));
  const Prediction roomy = predicted(even, {emulated(16384), emulated(16384)});
  const uint64_t second = roomy.workers[1].high_bytes / kMiB + 1;
  EXPECT_TRUE(predicted(even, {emulated(16384), emulated(second)}).fits);
  const Prediction tight = predicted(even, {emulated(16384), emulated(second - 2)});
  EXPECT_FALSE(tight.fits);
  EXPECT_NE(tight.reason.find("stage 1"), std::string::npos) << tight.reason;
  EXPECT_NE(tight.reason.find("m" + std::to_string(second - 2)), std::string::npos);
}

TEST(GroupPrediction, workers_on_other_nodes_have_relays_and_slower_links) {
  const PlanShape two = shape(layout(1, 2, 1));
  const Prediction near = predicted(two, {emulated(16384), emulated(16384)});
  const Prediction far = predicted(two, {emulated(16384), emulated(16384, 1, 1)});
  const size_t ring = group_ring_bytes(group_message_bytes(example_config(), two));
  EXPECT_EQ(far.workers[0].communication_bytes, relay_memory_bytes(ring));
  EXPECT_EQ(near.workers[0].communication_bytes, group_memory_bytes(2, ring));
  EXPECT_LT(far.tokens_per_second, near.tokens_per_second);
}

TEST(GroupPrediction, more_workers_are_faster_but_never_more_than_so_many_times) {
  const double one = predicted(shape({}), {emulated(16384)}).tokens_per_second;
  for (const int count : {2, 3}) {
    for (const model::ParallelLayout& of :
         {layout(count, 1, 1), layout(1, count, 1), layout(1, 1, count)}) {
      SCOPED_TRACE(model::to_text(of));
      const Prediction group = predicted(shape(of, 512), group_of(emulated(16384), count));
      EXPECT_GT(group.tokens_per_second, one * 1.2);
      EXPECT_LT(group.tokens_per_second, one * count * 1.001);
      EXPECT_GE(group.idle_share, 0);
      EXPECT_LT(group.idle_share, 0.5);
      EXPECT_LT(group.communication_share, 0.5);
    }
  }
}

TEST(GroupPrediction, a_pipeline_idles_and_more_micro_batches_idle_less) {
  const std::vector<GroupGpu> gpus = group_of(emulated(65536), 3);
  const Prediction few = predicted(shape(layout(1, 3, 1), 2048), gpus);
  const Prediction many = predicted(shape(layout(1, 3, 1), 256), gpus);
  EXPECT_GT(few.idle_share, many.idle_share);
  EXPECT_GT(many.tokens_per_second, few.tokens_per_second);
}

TEST(GroupPrediction, uneven_stages_for_unlike_gpus_gain_what_the_speeds_say) {
  // Speeds 3 and 1, memory 2 : 1.
  const std::vector<GroupGpu> gpus = {emulated(4096), emulated(2048, 3)};
  const Candidate uneven =
      group_candidate(example_config(), example_spec(), example_data(), layout(1, 2, 1), gpus);
  ASSERT_TRUE(uneven.prediction.fits);
  const std::vector<int>& layers = uneven.shape.layout.stage_layers;
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0] + layers[1], 30);
  EXPECT_GT(layers[0], 2 * layers[1]) << "the slow GPU has the head too";
  PlanShape even = uneven.shape;
  even.layout.stage_layers = {15, 15};
  const double ratio =
      uneven.prediction.tokens_per_second / predicted(even, gpus).tokens_per_second;
  EXPECT_GT(ratio, 1.3);
  EXPECT_LT(ratio, 3);
}

TEST(GroupPrediction, slowdown_divides_the_speed_of_an_emulated_gpu) {
  const double fast = predicted(shape({}), {emulated(16384)}).tokens_per_second;
  EXPECT_NEAR(predicted(shape({}), {emulated(16384, 3)}).tokens_per_second, fast / 3, fast * 1e-9);
  const Prediction tp = predicted(shape(layout(2, 1, 1)), {emulated(16384), emulated(16384, 3)});
  EXPECT_LT(tp.tokens_per_second, fast) << "the slowest of a stage sets its pace";
  EXPECT_GT(tp.idle_share, 0.2);
}

TEST(GroupCandidate, a_small_stage_gets_fewer_layers_than_its_speed_would_take) {
  const std::vector<GroupGpu> equal_speed = group_of(emulated(16384), 2);
  const Candidate roomy = group_candidate(example_config(), example_spec(), example_data(),
                                          layout(1, 2, 1), equal_speed);
  ASSERT_TRUE(roomy.prediction.fits);
  const uint64_t need = roomy.prediction.workers[1].high_bytes / kMiB;
  model::TrainSpec spec = example_spec();
  spec.micro_batch_tokens = roomy.shape.micro_batch_tokens;
  spec.recompute = model::Recompute::kNone;
  const Candidate tight =
      group_candidate(example_config(), spec, example_data(), layout(1, 2, 1),
                      std::vector<GroupGpu>{emulated(16384), emulated(need - need / 8)});
  EXPECT_TRUE(tight.prediction.fits) << tight.prediction.reason;
  EXPECT_LT(tight.shape.layout.stage_layers[1], roomy.shape.layout.stage_layers[1]);
}

TEST(GroupCandidate, pinned_stages_stay) {
  const Candidate pinned = group_candidate(example_config(), example_spec(), example_data(),
                                           layout(1, 2, 1, {10, 20}), group_of(emulated(16384), 2));
  EXPECT_EQ(pinned.shape.layout.stage_layers, (std::vector<int>{10, 20}));
}

TEST(GroupCandidate, a_pipeline_has_enough_micro_batches) {
  const Candidate candidate = group_candidate(example_config(), example_spec(), example_data(),
                                              layout(1, 2, 1), group_of(emulated(65536), 2));
  EXPECT_LT(candidate.prediction.idle_share, 0.25);
  EXPECT_EQ(candidate.shape.micro_batch_tokens, 512) << "8 micro batches of 2 rows";
}

TEST(GroupCandidate, pain_P064_unlike_replicas_share_by_speed_and_memory) {
  const std::vector<GroupGpu> gpus = {emulated(16384), emulated(1700, 2)};
  const Candidate candidate =
      group_candidate(example_config(), example_spec(), example_data(), layout(1, 1, 2), gpus);
  ASSERT_TRUE(candidate.prediction.fits);
  const std::vector<double>& shares = candidate.shape.replica_shares;
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_NEAR(shares[0] + shares[1], 1, 1e-12);
  EXPECT_NEAR(shares[0] / shares[1], 2, 0.1);
  const std::vector<int64_t>& tokens = candidate.shape.replica_tokens;
  ASSERT_EQ(tokens.size(), 2u) << "the small card takes smaller micro batches";
  EXPECT_GT(tokens[0], tokens[1]);
  EXPECT_EQ(candidate.shape.micro_batch_tokens, tokens[0]);
  PlanShape equal = candidate.shape;
  equal.replica_shares.clear();
  EXPECT_GT(candidate.prediction.tokens_per_second, 1.2 * predicted(equal, gpus).tokens_per_second);
}

TEST(GroupCandidate, alike_replicas_have_no_shares) {
  const Candidate candidate = group_candidate(example_config(), example_spec(), example_data(),
                                              layout(1, 1, 3), group_of(emulated(16384), 3));
  EXPECT_TRUE(candidate.shape.replica_shares.empty());
  EXPECT_TRUE(candidate.shape.replica_tokens.empty());
  EXPECT_TRUE(candidate.shape.worker_threads.empty());
}

TEST(GroupCandidate, the_whole_group_uses_the_same_numbers) {
  model::TrainSpec spec = example_spec();
  spec.precision = model::Precision::kBf16;
  const auto weights = [&](const std::vector<GroupGpu>& gpus) {
    return group_candidate(example_config(), spec, example_data(),
                           layout(1, static_cast<int>(gpus.size()), 1), gpus)
        .shape;
  };
  const PlanShape both = weights({card("a100-40gb"), card("a100-40gb")});
  EXPECT_EQ(both.weight_dtype, DType::kBf16);
  EXPECT_TRUE(both.may_round_inputs);
  const PlanShape mixed = weights({card("a100-40gb"), card("v100-32gb")});
  EXPECT_EQ(mixed.weight_dtype, DType::kF32);
  EXPECT_FALSE(mixed.may_round_inputs);
  EXPECT_NE(mixed.precision_note.find("v100-32gb has no bf16"), std::string::npos)
      << mixed.precision_note;
}

TEST(GroupPrediction, pain_P066_equal_names_with_other_links_take_other_times) {
  const PlanShape two = shape(layout(2, 1, 1));
  const auto speed = [&](double link_gb_s) {
    Json description = Json::object();
    description.set("name", "a100-40gb").set("link_gb_s", link_gb_s);
    GroupGpu gpu;
    gpu.type = gpu_type_from_json(description, "here");
    return predicted(two, {gpu, gpu});
  };
  const Prediction nvlink = speed(300), pcie = speed(12);
  EXPECT_GT(nvlink.tokens_per_second, 1.1 * pcie.tokens_per_second);
  EXPECT_LT(nvlink.communication_share, pcie.communication_share);
  EXPECT_LT(nvlink.seconds, pcie.seconds);
  EXPECT_EQ(nvlink.predicted_bytes, pcie.predicted_bytes);
}

TEST(GroupPrediction, cards_of_a_group_hold_a_communicator) {
  const Prediction cards =
      predicted(shape(layout(2, 1, 1)), {card("a100-40gb"), card("a100-40gb")});
  EXPECT_EQ(cards.workers[0].communication_bytes, gpu_type_by_name("a100-40gb").communicator_bytes);
  EXPECT_GT(cards.workers[0].communication_bytes, 100 * kMiB);
}

}  // namespace
}  // namespace galley::predictor
