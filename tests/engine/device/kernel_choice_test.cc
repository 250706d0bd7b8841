#include "engine/device/host/kernel_choice.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/core/error.h"

namespace galley::device {
namespace {

using Measured = std::vector<KernelMeasurement>;

TEST(KernelChoice, the_fastest_wins) {
  EXPECT_EQ(choose_kernels(Measured{{KernelSet::kPortable, 10}}, {}), KernelSet::kPortable);
  EXPECT_EQ(choose_kernels(Measured{{KernelSet::kPortable, 10},
                                    {KernelSet::kAvx2, 60},
                                    {KernelSet::kAvx512, 110},
                                    {KernelSet::kAvx512Bf16, 200}},
                           {}),
            KernelSet::kAvx512Bf16);
  // A processor on which the dot product is the slower instruction, and one that likes 256 bits.
  EXPECT_EQ(
      choose_kernels(
          Measured{{KernelSet::kAvx2, 60}, {KernelSet::kAvx512, 150}, {KernelSet::kAvx512Bf16, 76}},
          {}),
      KernelSet::kAvx512);
  EXPECT_EQ(choose_kernels(Measured{{KernelSet::kAvx2, 100}, {KernelSet::kAvx512, 90}}, {}),
            KernelSet::kAvx2);
  // A few per cent of the products are less than what all other operations gain from width.
  EXPECT_EQ(choose_kernels(Measured{{KernelSet::kAvx2, 100}, {KernelSet::kAvx512, 92}}, {}),
            KernelSet::kAvx512);
}

TEST(KernelChoice, a_tie_goes_to_exact_ones_then_to_the_earlier_then_to_the_widest) {
  const Measured close = {{KernelSet::kPortable, 10},
                          {KernelSet::kAvx2, 101},
                          {KernelSet::kAvx512, 100},
                          {KernelSet::kAvx512Bf16, 102.9}};
  EXPECT_EQ(choose_kernels(close, {}), KernelSet::kAvx512);
  EXPECT_EQ(choose_kernels(close, KernelSet::kAvx2), KernelSet::kAvx2);
  EXPECT_EQ(choose_kernels(close, KernelSet::kAvx512), KernelSet::kAvx512);
  // An earlier choice that is not among the tied ones, or that rounds without need, is no reason.
  EXPECT_EQ(choose_kernels(close, KernelSet::kPortable), KernelSet::kAvx512);
  EXPECT_EQ(choose_kernels(close, KernelSet::kAvx512Bf16), KernelSet::kAvx512);
  // Beyond the tie it is the rate alone.
  const Measured apart = {{KernelSet::kAvx512, 100}, {KernelSet::kAvx512Bf16, 103.1}};
  EXPECT_EQ(choose_kernels(apart, KernelSet::kAvx512), KernelSet::kAvx512Bf16);
}

TEST(KernelChoice, noise_within_the_tie_never_flips_an_earlier_choice) {
  for (double other = 97.5; other < 102.5; other += 0.25) {
    const Measured noisy = {{KernelSet::kAvx2, other}, {KernelSet::kAvx512, 100}};
    EXPECT_EQ(choose_kernels(noisy, KernelSet::kAvx2), KernelSet::kAvx2) << other;
    EXPECT_EQ(choose_kernels(noisy, KernelSet::kAvx512), KernelSet::kAvx512) << other;
  }
}

TEST(KernelChoice, says_how_the_chosen_compare) {
  const Measured measured = {
      {KernelSet::kAvx2, 55}, {KernelSet::kAvx512, 100}, {KernelSet::kAvx512Bf16, 210}};
  EXPECT_EQ(compare_kernels(KernelSet::kAvx512Bf16, measured), "2.1x avx512");
  EXPECT_EQ(compare_kernels(KernelSet::kAvx512, Measured{measured[0], measured[1]}), "1.8x avx2");
  EXPECT_EQ(compare_kernels(KernelSet::kAvx2,
                            Measured{{KernelSet::kAvx2, 98}, {KernelSet::kAvx512, 100}}),
            "0.98x avx512");
  EXPECT_EQ(compare_kernels(KernelSet::kAvx2, Measured{measured[0]}), "");
  const Measured close = {
      {KernelSet::kAvx2, 100}, {KernelSet::kAvx512, 97}, {KernelSet::kAvx512Bf16, 98}};
  EXPECT_EQ(compare_kernels(KernelSet::kAvx512, close), "0.97x avx2, wider");
  EXPECT_EQ(compare_kernels(KernelSet::kAvx512, Measured{close[1], close[2]}),
            "0.99x avx512-bf16, exact");
}

TEST(KernelChoice, only_allowed_candidates_are_offered) {
  const auto exact = kernel_candidates(InputRounding::kNever);
  ASSERT_FALSE(exact.empty());
  EXPECT_EQ(exact.front(), KernelSet::kPortable);
  for (const KernelSet kernels : exact) EXPECT_FALSE(kernel_set_rounds(kernels));
  EXPECT_EQ(kernel_candidates(InputRounding::kAllowed), usable_kernel_sets());
}

TEST(KernelChoice, names_of_all_sets_are_those_that_pins_take) {
  const auto names = kernel_set_names();
  EXPECT_EQ(names.front(), "auto");
  for (const std::string& name : names)
    EXPECT_EQ(kernel_set_name(kernel_set_from_name(name)), name);
  for (const KernelSet kernels : usable_kernel_sets())
    EXPECT_NE(std::find(names.begin(), names.end(), kernel_set_name(kernels)), names.end());
}

/// Any shape: larger than what is timed, smaller than a tile, odd, one row.
TEST(KernelChoice, measures_every_candidate_for_any_work) {
  const auto candidates = kernel_candidates(InputRounding::kAllowed);
  for (const WeightKind weights : {WeightKind::kF32, WeightKind::kBf16}) {
    for (const int threads : {1, 2}) {
      KernelWork work;
      work.shapes = {{5632, 2048}, {1, 1}, {33, 7}, {60, 100}, {48, 4096}};
      work.rows = {{1, 2}, {16, 1}, {4096, 1}};
      work.passes = KernelWork::Passes::kForwardAndBackward;
      work.weights = weights;
      work.threads = threads;
      const Measured measured = measure_kernels(candidates, work);
      ASSERT_EQ(measured.size(), candidates.size());
      for (size_t i = 0; i < measured.size(); ++i) {
        EXPECT_EQ(measured[i].kernels, candidates[i]);
        EXPECT_GT(measured[i].flops_per_second, 1e6) << kernel_set_name(candidates[i]);
        EXPECT_LT(measured[i].flops_per_second, 1e14) << kernel_set_name(candidates[i]);
      }
    }
  }
}

TEST(KernelChoice, refuses_processors_that_do_not_exist) {
  KernelWork work;
  work.shapes = {{64, 64}};
  work.rows = {{8, 1}};
  work.cpus = {1 << 20};
  const KernelSet portable[] = {KernelSet::kPortable};
  EXPECT_THROW(measure_kernels(portable, work), Error);
}

}  // namespace
}  // namespace galley::device
