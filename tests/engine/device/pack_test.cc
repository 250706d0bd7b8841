// Packing of weights: every value of the 16-bit types, the edges of f32, every shape of panels.
#include <algorithm>
#include <bit>
#include <limits>

#include "engine/core/dtype.h"
#include "tests/engine/device/device_testing.h"

namespace galley::device {
namespace {

constexpr int64_t kPanel = 32;

/// Values of the type as a file holds them.
struct Source {
  DType dtype = DType::kF32;
  std::vector<std::byte> bytes;

  float value(int64_t i) const {
    if (dtype == DType::kF32) return element<float>(i);
    return dtype == DType::kF16 ? f16_to_f32(element<uint16_t>(i))
                                : bf16_to_f32(element<uint16_t>(i));
  }
  uint16_t as_bf16(int64_t i) const {
    return dtype == DType::kBf16 ? element<uint16_t>(i) : f32_to_bf16(value(i));
  }

 private:
  template <typename T>
  T element(int64_t i) const {
    T out;
    std::memcpy(&out, bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    return out;
  }
};

/// All 65,536 patterns in turn for 16 bits; for f32 random patterns among infinities, NaNs (also
/// those whose payload lies in the low half), subnormals and ties.
Source make_source(DType dtype, int64_t count) {
  constexpr uint32_t kEdges[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001,
                                 0xFF80FFFF, 0x7FFFFFFF, 0x00000001, 0x80000001,
                                 0x007FFFFF, 0x00008000, 0x3F808000, 0x3F818000,
                                 0x3F808001, 0x7F7FFFFF, 0x00000000, 0x80000000};
  Source source;
  source.dtype = dtype;
  source.bytes.resize(static_cast<size_t>(count) * dtype_bytes(dtype));
  Random draw(3, random_stream("pack test"));
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    if (dtype == DType::kF32) {
      const uint32_t bits = i % 5 == 0 ? kEdges[at / 5 % std::size(kEdges)] : draw.next_u32();
      std::memcpy(source.bytes.data() + at * 4, &bits, 4);
    } else {
      const auto bits = static_cast<uint16_t>(i);
      std::memcpy(source.bytes.data() + at * 2, &bits, 2);
    }
  }
  return source;
}

/// What lies at input i of output j, as bits; padding is zero.
uint32_t expected_bits(const Source& source, WeightKind kind, int64_t out, int64_t in, int64_t j,
                       int64_t i) {
  if (j >= out || i >= in) return 0;
  const int64_t at = j * in + i;
  if (kind == WeightKind::kF32) return std::bit_cast<uint32_t>(source.value(at));
  return source.as_bf16(at);
}

uint32_t stored_bits(const Buffer& arena, WeightKind kind, int64_t in, int64_t j, int64_t i) {
  const int64_t panel = j / kPanel, lane = j % kPanel;
  if (kind == WeightKind::kF32) {
    return arena.at<uint32_t>(0)[(panel * in + i) * kPanel + lane];
  }
  const uint32_t word = arena.at<uint32_t>(0)[(panel * ((in + 1) / 2) + i / 2) * kPanel + lane];
  return i % 2 == 0 ? word & 0xFFFF : word >> 16;
}

/// Packs `rows_at_once` rows per call over memory that was used before, and compares every bit.
void check(WeightKind kind, const Source& source, int64_t out, int64_t in, int64_t rows_at_once) {
  SCOPED_TRACE(std::string(dtype_name(source.dtype)) +
               (kind == WeightKind::kF32 ? " f32 " : " bf16 ") + std::to_string(out) + " x " +
               std::to_string(in));
  TestDevice t = make_test_device(KernelSet::kAuto, 2);
  const int64_t stored = kind == WeightKind::kBf16 ? in + in % 2 : in;
  const int64_t padded = (out + kPanel - 1) / kPanel * kPanel;
  const auto bytes = static_cast<size_t>(padded * stored * (kind == WeightKind::kBf16 ? 2 : 4));
  const Buffer arena = t.device->allocate(bytes + 64, "packed");
  std::memset(arena.data(), 0x5A, arena.bytes());
  const WeightHandle handle = {kind, &arena, 0, out, in, nullptr};
  const size_t row_bytes = static_cast<size_t>(in) * dtype_bytes(source.dtype);
  for (int64_t row = 0; row < out; row += rows_at_once) {
    t.ops.linear->pack_weight(handle, source.dtype,
                              source.bytes.data() + static_cast<size_t>(row) * row_bytes, row,
                              std::min(rows_at_once, out - row));
  }
  for (int64_t j = 0; j < padded; ++j) {
    for (int64_t i = 0; i < stored; ++i) {
      ASSERT_EQ(stored_bits(arena, kind, in, j, i), expected_bits(source, kind, out, in, j, i))
          << "output " << j << ", input " << i;
    }
  }
  EXPECT_EQ(*arena.at<uint8_t>(bytes), 0x5A) << "wrote behind the weight";
}

TEST(Pack, every_bit_of_every_type_in_every_kind) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    const Source source = make_source(dtype, 128 * 1024);
    for (const WeightKind kind : {WeightKind::kF32, WeightKind::kBf16}) {
      check(kind, source, 128, 1024, 128);
      check(kind, source, 127, 1023, 127);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(Pack, every_length_of_a_row_and_every_part_of_a_panel) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    const Source source = make_source(dtype, 100 * 70);
    for (const WeightKind kind : {WeightKind::kF32, WeightKind::kBf16}) {
      for (int64_t in = 1; in <= 70; in += in < 36 ? 1 : 7) {
        check(kind, source, 67, in, 67);
        check(kind, source, 67, in, 11);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace galley::device
