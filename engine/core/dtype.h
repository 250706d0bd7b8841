// Element types of tensors, and the exact conversions between them.
//
// Values only. bf16 and f16 are stored as 16-bit patterns; arithmetic is never done in them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace galley {

enum class DType : uint8_t { kF32, kBf16, kF16, kF64, kI32, kI64, kU8, kI8 };

constexpr size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBf16:
    case DType::kF16:
      return 2;
    case DType::kU8:
    case DType::kI8:
      return 1;
  }
  return 0;
}

/// The name used by safetensors: "F32", "BF16", ...
std::string_view dtype_name(DType dtype);
/// Inverse of dtype_name(); nothing for a name galley does not know.
std::optional<DType> dtype_from_name(std::string_view name);

inline float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
/// Round to nearest, ties to even; NaN stays a NaN.
inline uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
float f16_to_f32(uint16_t bits);

}  // namespace galley
