#include "engine/core/dtype.h"

namespace galley {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
};

constexpr Row kTable[] = {{DType::kF32, "F32"}, {DType::kBf16, "BF16"}, {DType::kF16, "F16"},
                          {DType::kF64, "F64"}, {DType::kI32, "I32"},   {DType::kI64, "I64"},
                          {DType::kU8, "U8"},   {DType::kI8, "I8"}};

}  // namespace

std::string_view dtype_name(DType dtype) {
  for (const Row& row : kTable) {
    if (row.dtype == dtype) return row.name;
  }
  return "?";
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& row : kTable) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  uint32_t exponent = (bits >> 10) & 0x1Fu;
  uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent == 0) {
    if (mantissa == 0) return std::bit_cast<float>(sign);
    // Subnormal: shift until the leading one reaches the implicit place.
    exponent = 113;
    while ((mantissa & 0x400u) == 0) {
      mantissa <<= 1;
      --exponent;
    }
    return std::bit_cast<float>(sign | (exponent << 23) | ((mantissa & 0x3FFu) << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

}  // namespace galley
