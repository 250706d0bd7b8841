#include "trainer/step_bench.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::trainer {
namespace {

StepBenchOptions small_options() {
  StepBenchOptions options;
  options.config = bench_shape_135m();
  options.config.name = "small";
  options.config.num_layers = 2;
  options.config.vocab_size = 512;
  options.sequence = 24;
  options.steps = 2;
  return options;
}

TEST(StepBench, shapes_have_the_parameters_of_their_names) {
  EXPECT_NEAR(static_cast<double>(bench_shape_135m().num_parameters()), 134.5e6, 0.1e6);
  EXPECT_NEAR(static_cast<double>(bench_shape_1b().num_parameters()), 1.10e9, 0.01e9);
}

TEST(StepBench, work_of_the_135m_shape) {
  // Per token at a sequence of 512: 2 x 106.2 M forward, the same backward but for layer 0's
  // qkv, 4 x 28.3 M in the head, 7 products of attention, 6 x 4.88 M in the adapter.
  const auto linears = model::adapted_linears(bench_shape_135m(), {});
  const model::TokenFlops flops =
      model::training_flops(bench_shape_135m(), linears, 256.5, 1, false);
  EXPECT_NEAR(flops.base_forward, 212.3e6, 0.2e6);
  EXPECT_NEAR(flops.base_backward, 211.2e6, 0.4e6);
  EXPECT_NEAR(flops.head, 113.2e6, 0.2e6);
  EXPECT_NEAR(flops.attention, 62.1e6, 0.2e6);
  EXPECT_NEAR(flops.lora, 29.3e6, 0.2e6);
  EXPECT_NEAR(flops.total(), 628e6, 1e6);
}

TEST(StepBench, a_step_is_measured_beside_its_peaks) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    StepBenchOptions options = small_options();
    options.weight_dtype = dtype;
    std::vector<std::string> told;
    const StepBenchResult result =
        bench_step(options, [&](const std::string& what) { told.push_back(what); });
    EXPECT_EQ(join(told, ", "), "load, warm up, step 1 of 2, step 2 of 2");
    ASSERT_EQ(result.samples.size(), 2u);
    for (const StepSample& sample : result.samples) {
      EXPECT_GT(sample.seconds, 0);
      EXPECT_GT(sample.product_peak, 0);
      EXPECT_GT(sample.f32_peak, 0);
    }
    EXPECT_EQ(result.allocated_bytes, step_bench_bytes(options));
    EXPECT_EQ(result.kernels, device::best_kernel_set());
    EXPECT_EQ(result.num_tokens, 24);
    EXPECT_EQ(result.num_targets, 23);
    EXPECT_NEAR(result.loss, std::log(512.0), 2);
    EXPECT_GT(result.gradient_norm, 0);
    // Kernels that never round read both kinds of work beside one instruction.
    EXPECT_NEAR(result.peak_fraction(), result.product_peak_fraction(),
                1e-9 + 1e-6 * result.peak_fraction());
    EXPECT_GT(result.peak_fraction(), 0);
  }
}

TEST(StepBench, the_counted_work_is_the_work_that_ran) {
  for (const double fraction : {1.0, 0.25}) {
    StepBenchOptions options = small_options();
    options.target_fraction = fraction;
    const StepBenchResult result = bench_step(options);
    EXPECT_EQ(result.num_targets, fraction == 1 ? 23 : 6);
    const auto steps = static_cast<double>(result.samples.size());
    double products = 0, attention = 0, total = 0;
    for (const device::ProfileRow& row : result.profile) {
      products += row.work.product_flops / steps;
      if (row.name.starts_with("attention")) attention += row.work.attention_flops / steps;
      total += row.seconds;
    }
    EXPECT_NEAR(products, result.work().product_flops, 1e-9 * products);
    EXPECT_NEAR(attention, result.flops.attention * 24, 1e-9 * attention);
    EXPECT_GT(total, 0);
    // The head runs at target positions only.
    EXPECT_NEAR(result.flops.head / result.flops_all_targets.head,
                static_cast<double>(result.num_targets) / 24, 1e-9);
  }
}

TEST(StepBench, adapter_work_agrees_with_the_formula) {
  const StepBenchResult result = bench_step(small_options());
  double adapter = 0;
  for (const device::ProfileRow& row : result.profile) {
    if (row.name.starts_with("adapter") || row.name.starts_with("linears")) {
      adapter += row.work.f32_flops / static_cast<double>(result.samples.size());
    }
  }
  EXPECT_NEAR(adapter, result.flops.lora * 24, 1e-9 * adapter);
}

TEST(StepBench, the_same_options_give_the_same_loss) {
  const StepBenchResult first = bench_step(small_options()), second = bench_step(small_options());
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_EQ(first.gradient_norm, second.gradient_norm);
  StepBenchOptions longer = small_options();
  longer.steps = 4;  // of the second step, however many follow
  EXPECT_EQ(bench_step(longer).loss, first.loss);
}

TEST(StepBench, time_ends_a_case_after_a_step) {
  StepBenchOptions options = small_options();
  options.steps = 50;
  options.max_seconds = 1e-9;
  EXPECT_EQ(bench_step(options).samples.size(), 1u);
}

TEST(StepBench, a_model_that_does_not_fit_is_refused_with_what_it_needs) {
  StepBenchOptions options = small_options();
  options.config.vocab_size = int64_t{1} << 30;
  try {
    bench_step(options);
    FAIL() << "a head of terabytes fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kDoesNotFit);
    EXPECT_NE(std::string(error.what()).find("TiB"), std::string::npos) << error.what();
  }
}

TEST(StepBench, kernels_that_round_have_two_peaks) {
  if (!device::kernel_set_usable(device::KernelSet::kAvx512Bf16)) {
    GTEST_SKIP() << "this processor has no bf16 dot product";
  }
  StepBenchOptions options = small_options();
  options.kernels = device::KernelSet::kAvx512Bf16;
  options.weight_dtype = DType::kBf16;
  const StepBenchResult result = bench_step(options);
  EXPECT_EQ(result.product, device::Instruction::kBf16Dot);
  EXPECT_EQ(result.f32, device::Instruction::kFmaAvx512);
  EXPECT_NE(result.peak_fraction(), result.product_peak_fraction());
}

TEST(StepBench, records) {
  const StepBenchResult result = bench_step(small_options());
  const device::BenchRecord step = step_record("step small", result);
  EXPECT_EQ(step.unit, "tokens/s");
  EXPECT_EQ(step.limit, device::instruction_name(result.product));
  EXPECT_LE(step.value.lowest, step.value.median);
  EXPECT_GE(step.value.highest, step.value.median);
  EXPECT_EQ(step.threads, 1);
  EXPECT_EQ(*step.loss, result.loss);
  const auto records = profile_records("step small", result);
  ASSERT_EQ(records.size(), result.profile.size() + 1);
  EXPECT_EQ(records.back().name, "step small / rest");
  double sum = 0;
  for (const device::BenchRecord& record : records) {
    EXPECT_EQ(record.unit, "ms/step");
    sum += record.value.median;
  }
  double seconds = 0;
  for (const StepSample& sample : result.samples) seconds += sample.seconds / 2;
  EXPECT_NEAR(sum, 1e3 * seconds, 1e-6 * sum);
}

}  // namespace
}  // namespace galley::trainer
