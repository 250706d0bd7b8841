#include "predictor/predictor.h"

#include <gtest/gtest.h>

#include "tests/support/example_jobs.h"

namespace galley::predictor {
namespace {

using testing::example_config;
using testing::example_data;
using testing::example_spec;

GpuType emulated(uint64_t memory_bytes) {
  GpuType type = gpu_type_by_name("a100-40gb");
  type.emulated = true;
  type.memory_bytes = memory_bytes;
  return type;
}

TEST(Predictor, parts_sum_to_the_prediction_and_the_plan_is_the_memory_plan) {
  const model::ModelConfig config = example_config();
  const model::TrainSpec spec = example_spec();
  for (const GpuType& gpu : {emulated(uint64_t{40} << 30), gpu_type_by_name("rtx3090-24gb"),
                             host_gpu_type(uint64_t{8} << 30)}) {
    for (const Candidate& candidate : candidates(config, spec, example_data(), gpu, 2)) {
      const Prediction& prediction = candidate.prediction;
      uint64_t sum = 0;
      for (const PredictionPart& part : prediction.parts) sum += part.bytes;
      EXPECT_EQ(sum, prediction.predicted_bytes);
      EXPECT_LE(prediction.low_bytes, prediction.predicted_bytes);
      EXPECT_GE(prediction.high_bytes, prediction.predicted_bytes);
      EXPECT_LE(prediction.planned_bytes, prediction.predicted_bytes);
      EXPECT_EQ(prediction.fits, prediction.high_bytes <= prediction.usable_bytes);
      const model::MemoryPlan plan = model::memory_plan(
          config, {}, {}, memory_settings(config, spec, example_data(), candidate.shape),
          traits_for(gpu, candidate.shape.threads));
      EXPECT_EQ(prediction.planned_bytes, plan.total_bytes());
      EXPECT_GT(prediction.tokens_per_second, 0);
    }
  }
}

TEST(Predictor, candidates_go_from_fastest_to_smallest) {
  const std::vector<Candidate> all =
      candidates(example_config(), example_spec(), example_data(), emulated(uint64_t{40} << 30), 1);
  ASSERT_GT(all.size(), 2u);
  for (const Candidate& candidate : all) {
    EXPECT_LE(all.back().prediction.predicted_bytes, candidate.prediction.predicted_bytes);
  }
  EXPECT_FALSE(all.front().shape.recompute_blocks);
  EXPECT_TRUE(all.back().shape.recompute_blocks);
  EXPECT_EQ(all.back().shape.micro_batch_tokens, 512) << "the longest row always fits";
}

TEST(Predictor, less_memory_takes_a_smaller_shape_and_then_none) {
  const model::ModelConfig config = example_config();
  uint64_t last = ~uint64_t{0};
  bool any_refused = false;
  for (const uint64_t mib : {16384, 4096, 2048, 1024, 700, 300}) {
    const auto all = candidates(config, example_spec(), example_data(), emulated(mib << 20), 1);
    const Candidate* best = nullptr;
    for (const Candidate& candidate : all) {
      if (best == nullptr && candidate.prediction.fits) best = &candidate;
    }
    if (best == nullptr) {
      any_refused = true;
      EXPECT_FALSE(all.back().prediction.reason.empty());
      continue;
    }
    EXPECT_FALSE(any_refused) << "more memory was refused";
    EXPECT_LE(best->prediction.high_bytes, mib << 20);
    EXPECT_LE(best->prediction.predicted_bytes, last);
    last = best->prediction.predicted_bytes;
  }
  EXPECT_TRUE(any_refused);
}

TEST(Predictor, a_refusal_says_what_would_fit) {
  model::TrainSpec spec = example_spec(2048);
  const DataShape data = example_data(2048);
  const uint64_t smallest =
      candidates(example_config(), spec, data, emulated(uint64_t{40} << 30), 1)
          .back()
          .prediction.high_bytes;
  const auto all = candidates(example_config(), spec, data, emulated(smallest - 1), 1);
  const std::string reason = all.back().prediction.reason;
  EXPECT_NE(reason.find("needs "), std::string::npos) << reason;
  EXPECT_NE(reason.find("what would fit: batch.sequence = 1024"), std::string::npos) << reason;
  const auto none = candidates(example_config(), spec, data, emulated(uint64_t{1} << 20), 1);
  EXPECT_NE(none.back().prediction.reason.find("larger GPU"), std::string::npos);
}

TEST(Predictor, the_setting_that_a_refusal_names_does_fit) {
  model::TrainSpec spec = example_spec(2048);
  const DataShape data = example_data(2048);
  const uint64_t smallest =
      candidates(example_config(), spec, data, emulated(uint64_t{40} << 30), 1)
          .back()
          .prediction.high_bytes;
  const GpuType gpu = emulated(smallest - 1);
  spec.sequence = 1024;
  bool fits = false;
  for (const Candidate& candidate : candidates(example_config(), spec, data, gpu, 1)) {
    fits = fits || candidate.prediction.fits;
  }
  EXPECT_TRUE(fits);
}

TEST(Predictor, pins_are_honoured) {
  model::TrainSpec spec = example_spec();
  spec.micro_batch_tokens = 1024;
  spec.recompute = model::Recompute::kBlock;
  spec.threads = 2;
  for (const Candidate& candidate :
       candidates(example_config(), spec, example_data(), emulated(uint64_t{40} << 30), 8)) {
    EXPECT_EQ(candidate.shape.micro_batch_tokens, 1024);
    EXPECT_TRUE(candidate.shape.recompute_blocks);
    EXPECT_EQ(candidate.shape.threads, 2);
  }
}

TEST(Predictor, steps_are_whole_batches_of_every_epoch) {
  model::TrainSpec spec = example_spec();
  spec.global_batch = 16;
  spec.epochs = 3;
  EXPECT_EQ(total_steps(spec, 100), 21);  // 7 a epoch, the last one short
  EXPECT_EQ(total_steps(spec, 16), 3);
  EXPECT_EQ(total_steps(spec, 1), 3);
  spec.epochs = 0.5;
  EXPECT_EQ(total_steps(spec, 100), 4);
  spec.max_steps = 5;
  EXPECT_EQ(total_steps(spec, 100), 5);
}

TEST(Predictor, more_threads_are_faster) {
  const GpuType gpu = host_gpu_type(uint64_t{64} << 30);
  const auto one = candidates(example_config(), example_spec(), example_data(), gpu, 1);
  const auto two = candidates(example_config(), example_spec(), example_data(), gpu, 2);
  EXPECT_GT(two.front().prediction.tokens_per_second, one.front().prediction.tokens_per_second);
  EXPECT_LT(two.front().prediction.seconds, one.front().prediction.seconds);
}

}  // namespace
}  // namespace galley::predictor
