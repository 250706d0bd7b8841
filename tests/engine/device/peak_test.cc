#include "engine/device/host/peak.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "engine/core/error.h"

namespace galley::device {
namespace {

TEST(Peak, names_differ_and_every_usable_instruction_gives_a_rate) {
  std::set<std::string> names;
  PeakMeter meter(1, {}, BenchClock::kProcessor);
  for (const Instruction instruction : kAllInstructions) {
    EXPECT_TRUE(names.insert(instruction_name(instruction)).second);
    if (!instruction_usable(instruction)) continue;
    const double rate = meter.operations_per_second(instruction, 0.001);
    // Between an instruction every hundred cycles and four of them in each at 10 GHz.
    EXPECT_GT(rate, 1e7) << instruction_name(instruction);
    EXPECT_LT(rate, 1e13) << instruction_name(instruction);
  }
}

TEST(Peak, wider_vectors_do_more) {
  if (!instruction_usable(Instruction::kFmaAvx2)) GTEST_SKIP() << "no AVX2 here";
  // Fused, twice as wide: at least as much on any processor, in processor time.
  PeakMeter meter(1, {}, BenchClock::kProcessor);
  double narrow = 0, wide = 0;
  for (int i = 0; i < 5; ++i) {
    narrow = std::max(narrow, meter.operations_per_second(Instruction::kMulAddSse2, 0.001));
    wide = std::max(wide, meter.operations_per_second(Instruction::kFmaAvx2, 0.001));
  }
  EXPECT_GT(wide, narrow);
}

TEST(Peak, rates_of_threads_are_summed) {
  // Processor time: two threads on one busy core are two threads all the same.
  PeakMeter one(1, {}, BenchClock::kProcessor), three(3, {}, BenchClock::kProcessor);
  double single = 0, together = 0;
  for (int i = 0; i < 5; ++i) {
    single = std::max(single, one.operations_per_second(Instruction::kMulAddSse2, 0.001));
    together = std::max(together, three.operations_per_second(Instruction::kMulAddSse2, 0.001));
  }
  // Siblings of one core share its units, so that three may do little more than one and a half.
  EXPECT_GT(together, 1.2 * single);
  EXPECT_LT(together, 12 * single);
  EXPECT_EQ(three.num_threads(), 3);
}

TEST(Peak, memory_is_read_and_copied) {
  PeakMeter meter(2, {});
  for (const double rate : {meter.read_bytes_per_second(), meter.copy_bytes_per_second()}) {
    EXPECT_TRUE(std::isfinite(rate));
    EXPECT_TRUE(rate == 0 || (rate > 1e7 && rate < 1e13)) << rate;
  }
}

TEST(Peak, kernels_are_read_beside_their_own_instruction) {
  using enum KernelSet;
  EXPECT_EQ(product_instruction(kPortable, WeightKind::kF32), Instruction::kMulAddSse2);
  EXPECT_EQ(product_instruction(kAvx2, WeightKind::kBf16), Instruction::kFmaAvx2);
  EXPECT_EQ(product_instruction(kAvx512, WeightKind::kBf16), Instruction::kFmaAvx512);
  // The dot product takes bf16 weights; f32 weights and everything else are multiply-adds.
  EXPECT_EQ(product_instruction(kAvx512Bf16, WeightKind::kBf16), Instruction::kBf16Dot);
  EXPECT_EQ(product_instruction(kAvx512Bf16, WeightKind::kF32), Instruction::kFmaAvx512);
  EXPECT_EQ(f32_instruction(kAvx512Bf16), Instruction::kFmaAvx512);
  EXPECT_EQ(attention_instruction(kAvx512Bf16, ProductOperands::kMayRound), Instruction::kBf16Dot);
  EXPECT_EQ(attention_instruction(kAvx512Bf16, ProductOperands::kExact), Instruction::kFmaAvx512);
  EXPECT_EQ(attention_instruction(kAvx2, ProductOperands::kMayRound), Instruction::kFmaAvx2);
  EXPECT_EQ(f32_instruction(kAuto), f32_instruction(best_kernel_set()));
  for (const KernelSet kernels : usable_kernel_sets()) {
    EXPECT_TRUE(instruction_usable(f32_instruction(kernels)));
    EXPECT_TRUE(instruction_usable(product_instruction(kernels, WeightKind::kBf16)));
  }
}

TEST(Peak, an_instruction_that_is_not_there_is_our_mistake) {
  PeakMeter meter(1, {});
  for (const Instruction instruction : kAllInstructions) {
    if (!instruction_usable(instruction)) {
      EXPECT_THROW(meter.operations_per_second(instruction, 0.001), Error);
    }
  }
}

}  // namespace
}  // namespace galley::device
