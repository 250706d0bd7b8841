// Packs rows of weights as they lie in files into the panels that the matrix product reads.
//
// A panel is a transposed piece of the tensor, in words of 32 bits: one f32, or two bf16 inputs of
// one output. Pieces of kTileWords words of all 32 rows are transposed in registers into a tile
// that stays in the first cache, and leave it as whole lines past the caches: nobody reads a weight
// soon after it was packed, and storing a line the usual way would read it from memory first.
// SSE2, which every x86-64 has, is as fast as memory here.
#include <emmintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/core/dtype.h"
#include "engine/device/host/host_ops.h"

namespace galley::device {
namespace {

constexpr int64_t kTileWords = 16;       // of one row: a line of 64 bytes where words are copied
constexpr int64_t kPrefetchBytes = 512;  // ahead in each row: 32 rows are too many to be guessed

template <typename T>
T element(const std::byte* row, int64_t i) {
  T value;
  std::memcpy(&value, row + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

[[gnu::always_inline]] inline __m128i load(const std::byte* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}

// Each conversion has the bytes of a source word, `four` words from word `w` of a row on, and `one`
// word, which may be the last of a row with an odd number of inputs.

struct CopyF32 {
  static constexpr int64_t kWordBytes = 4;
  [[gnu::always_inline]] static __m128i four(const std::byte* row, int64_t w) {
    return load(row + w * 4);
  }
  static uint32_t one(const std::byte* row, int64_t w, int64_t) {
    return element<uint32_t>(row, w);
  }
};

struct WidenBf16 {
  static constexpr int64_t kWordBytes = 2;
  [[gnu::always_inline]] static __m128i four(const std::byte* row, int64_t w) {
    const __m128i half = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + w * 2));
    return _mm_unpacklo_epi16(_mm_setzero_si128(), half);
  }
  static uint32_t one(const std::byte* row, int64_t w, int64_t) {
    return uint32_t{element<uint16_t>(row, w)} << 16;
  }
};

/// f16 in the low halves of four words -> f32. The exponent moves by integer addition; subnormals
/// are small integers times 2^-24, which the conversion from integers makes exactly.
[[gnu::always_inline]] inline __m128i widen_f16(__m128i half) {
  const __m128i magnitude = _mm_and_si128(half, _mm_set1_epi32(0x7FFF));
  const __m128i sign = _mm_slli_epi32(_mm_xor_si128(half, magnitude), 16);
  const __m128i moved = _mm_add_epi32(_mm_slli_epi32(magnitude, 13), _mm_set1_epi32(112 << 23));
  const __m128i special =
      _mm_and_si128(_mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7BFF)), _mm_set1_epi32(112 << 23));
  const __m128i small = _mm_cmplt_epi32(magnitude, _mm_set1_epi32(0x0400));
  const __m128i subnormal =
      _mm_castps_si128(_mm_mul_ps(_mm_cvtepi32_ps(magnitude), _mm_set1_ps(0x1p-24f)));
  const __m128i value = _mm_or_si128(_mm_and_si128(small, subnormal),
                                     _mm_andnot_si128(small, _mm_add_epi32(moved, special)));
  return _mm_or_si128(value, sign);
}

struct WidenF16 {
  static constexpr int64_t kWordBytes = 2;
  [[gnu::always_inline]] static __m128i four(const std::byte* row, int64_t w) {
    const __m128i half = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + w * 2));
    return widen_f16(_mm_unpacklo_epi16(half, _mm_setzero_si128()));
  }
  static uint32_t one(const std::byte* row, int64_t w, int64_t) {
    return std::bit_cast<uint32_t>(f16_to_f32(element<uint16_t>(row, w)));
  }
};

/// Pairs of bf16 are words already.
struct CopyBf16 {
  static constexpr int64_t kWordBytes = 4;
  [[gnu::always_inline]] static __m128i four(const std::byte* row, int64_t w) {
    return load(row + w * 4);
  }
  static uint32_t one(const std::byte* row, int64_t w, int64_t in) {
    const uint32_t low = element<uint16_t>(row, 2 * w);
    return 2 * w + 1 < in ? low | uint32_t{element<uint16_t>(row, 2 * w + 1)} << 16 : low;
  }
};

/// f32 -> bf16 in the high half (the low half is rubbish); as f32_to_bf16() does it.
[[gnu::always_inline]] inline __m128i round_to_bf16(__m128i bits) {
  const __m128i odd = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
  const __m128i rounded = _mm_add_epi32(_mm_add_epi32(bits, _mm_set1_epi32(0x7FFF)), odd);
  const __m128i nan =
      _mm_cmpgt_epi32(_mm_and_si128(bits, _mm_set1_epi32(0x7FFFFFFF)), _mm_set1_epi32(0x7F800000));
  const __m128i quiet = _mm_or_si128(bits, _mm_set1_epi32(0x40 << 16));
  return _mm_or_si128(_mm_and_si128(nan, quiet), _mm_andnot_si128(nan, rounded));
}

/// Words of pairs from eight f32.
[[gnu::always_inline]] inline __m128i pairs_of_bf16(__m128i first, __m128i second) {
  const __m128 a = _mm_castsi128_ps(first), b = _mm_castsi128_ps(second);
  const __m128i even = _mm_castps_si128(_mm_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0)));
  const __m128i odd = _mm_castps_si128(_mm_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
  const __m128i high = _mm_set1_epi32(static_cast<int>(0xFFFF0000));
  return _mm_or_si128(_mm_srli_epi32(round_to_bf16(even), 16),
                      _mm_and_si128(round_to_bf16(odd), high));
}

template <float (*kElement)(const std::byte*, int64_t)>
uint32_t pair_of_bf16(const std::byte* row, int64_t w, int64_t in) {
  const uint32_t low = f32_to_bf16(kElement(row, 2 * w));
  return 2 * w + 1 < in ? low | uint32_t{f32_to_bf16(kElement(row, 2 * w + 1))} << 16 : low;
}

struct RoundF32 {
  static constexpr int64_t kWordBytes = 8;
  [[gnu::always_inline]] static __m128i four(const std::byte* row, int64_t w) {
    return pairs_of_bf16(load(row + w * 8), load(row + w * 8 + 16));
  }
  static uint32_t one(const std::byte* row, int64_t w, int64_t in) {
    return pair_of_bf16<element<float>>(row, w, in);
  }
};

struct RoundF16 {
  static constexpr int64_t kWordBytes = 4;
  [[gnu::always_inline]] static __m128i four(const std::byte* row, int64_t w) {
    const __m128i half = load(row + w * 4);
    const __m128i zero = _mm_setzero_si128();
    return pairs_of_bf16(widen_f16(_mm_unpacklo_epi16(half, zero)),
                         widen_f16(_mm_unpackhi_epi16(half, zero)));
  }
  static float value(const std::byte* row, int64_t i) {
    return f16_to_f32(element<uint16_t>(row, i));
  }
  static uint32_t one(const std::byte* row, int64_t w, int64_t in) {
    return pair_of_bf16<value>(row, w, in);
  }
};

/// Rows [first, last) of one panel: outputs [first % 32, ...) of it.
struct PanelPart {
  const std::byte* rows;  // of `first`
  int64_t row_bytes, in;
  int64_t words, whole_words;  // of a row; the last pair of an odd row is not whole
  int64_t begin, end;          // outputs within the panel
  uint32_t* panel;             // [words][32]
};

/// Four words of four rows -> to[w * 32 + row].
template <typename Convert>
[[gnu::always_inline]] inline void transpose_four(const std::byte* row, int64_t row_bytes,
                                                  int64_t w, uint32_t* to) {
  const __m128i r0 = Convert::four(row, w), r1 = Convert::four(row + row_bytes, w);
  const __m128i r2 = Convert::four(row + 2 * row_bytes, w),
                r3 = Convert::four(row + 3 * row_bytes, w);
  const __m128i a = _mm_unpacklo_epi32(r0, r1), b = _mm_unpacklo_epi32(r2, r3);
  const __m128i c = _mm_unpackhi_epi32(r0, r1), d = _mm_unpackhi_epi32(r2, r3);
  auto* const out = reinterpret_cast<__m128i*>(to);
  constexpr int64_t kLine = kPanelOutputs / 4;
  _mm_store_si128(out, _mm_unpacklo_epi64(a, b));
  _mm_store_si128(out + kLine, _mm_unpackhi_epi64(a, b));
  _mm_store_si128(out + 2 * kLine, _mm_unpacklo_epi64(c, d));
  _mm_store_si128(out + 3 * kLine, _mm_unpackhi_epi64(c, d));
}

void stream_tile(const uint32_t* tile, uint32_t* to) {
  const auto* const from = reinterpret_cast<const __m128i*>(tile);
  auto* const out = reinterpret_cast<__m128i*>(to);
  for (int64_t i = 0; i < kTileWords * kPanelOutputs / 4; ++i) _mm_stream_si128(out + i, from[i]);
}

/// Fetches what lies ahead of word `w` of a row; near its end the start of the same row of the next
/// panel (which may lie behind the tensor: a prefetch never faults). Always inlined: gcc drops
/// calls of a function that does nothing else.
template <typename Convert>
[[gnu::always_inline]] inline void prefetch(const PanelPart& p, const std::byte* row, int64_t w) {
  int64_t offset = w * Convert::kWordBytes + kPrefetchBytes;
  if (offset >= p.row_bytes) offset += (kPanelOutputs - 1) * p.row_bytes;
  const auto* const ahead = reinterpret_cast<const char*>(row) + offset;
  _mm_prefetch(ahead, _MM_HINT_T0);
  if constexpr (Convert::kWordBytes == 8) _mm_prefetch(ahead + 64, _MM_HINT_T0);
}

template <typename Convert>
void pack_whole_panel(const PanelPart& p) {
  alignas(64) uint32_t tile[kTileWords * kPanelOutputs];
  int64_t w = 0;
  for (; w + kTileWords <= p.whole_words; w += kTileWords) {
    for (int64_t j = 0; j < kPanelOutputs; j += 4) {
      const std::byte* const row = p.rows + j * p.row_bytes;
      for (int64_t k = 0; k < 4; ++k) prefetch<Convert>(p, row + k * p.row_bytes, w);
      for (int64_t i = 0; i < kTileWords; i += 4) {
        transpose_four<Convert>(row, p.row_bytes, w + i, tile + i * kPanelOutputs + j);
      }
    }
    stream_tile(tile, p.panel + w * kPanelOutputs);
  }
  for (; w < p.words; ++w) {
    for (int64_t j = 0; j < kPanelOutputs; ++j) {
      p.panel[w * kPanelOutputs + j] = Convert::one(p.rows + j * p.row_bytes, w, p.in);
    }
  }
}

template <typename Convert>
void pack_part(const PanelPart& p) {
  if (p.begin == 0 && p.end == kPanelOutputs) return pack_whole_panel<Convert>(p);
  for (int64_t w0 = 0; w0 < p.words; w0 += kTileWords) {
    for (int64_t j = p.begin; j < p.end; ++j) {
      const std::byte* const row = p.rows + (j - p.begin) * p.row_bytes;
      for (int64_t w = w0; w < std::min(p.words, w0 + kTileWords); ++w) {
        p.panel[w * kPanelOutputs + j] = Convert::one(row, w, p.in);
      }
    }
  }
}

using PackPart = void (*)(const PanelPart&);

PackPart packer_of(WeightKind kind, DType source) {
  const bool pairs = kind == WeightKind::kBf16;
  if (source == DType::kF32) return pairs ? pack_part<RoundF32> : pack_part<CopyF32>;
  if (source == DType::kF16) return pairs ? pack_part<RoundF16> : pack_part<WidenF16>;
  return pairs ? pack_part<CopyBf16> : pack_part<WidenBf16>;
}

void clear_outputs(uint32_t* panel, int64_t words, int64_t begin) {
  for (int64_t w = 0; w < words; ++w) {
    std::fill(panel + w * kPanelOutputs + begin, panel + (w + 1) * kPanelOutputs, 0u);
  }
}

}  // namespace

void pack_host_weight(const HostRuntime& runtime, const WeightHandle& weight,
                      const SourceRows& rows) {
  if (rows.num_rows == 0) return;
  const bool pairs = weight.kind == WeightKind::kBf16;
  const int64_t words = pairs ? stored_inputs(weight) / 2 : weight.in;
  const auto row_bytes = weight.in * static_cast<int64_t>(dtype_bytes(rows.dtype));
  const PackPart pack = packer_of(weight.kind, rows.dtype);
  auto* const panels = weight.arena->at<uint32_t>(weight.offset_bytes);
  const auto pack_panel = [&](int64_t panel, int64_t first, int64_t last) {
    PanelPart part;
    part.rows = static_cast<const std::byte*>(rows.data) + (first - rows.row_begin) * row_bytes;
    part.row_bytes = row_bytes;
    part.in = weight.in;
    part.words = words;
    part.whole_words = pairs ? weight.in / 2 : words;
    part.begin = first % kPanelOutputs;
    part.end = part.begin + last - first;
    part.panel = panels + panel * words * kPanelOutputs;
    pack(part);
    // The call that brings the last row also clears the padding behind it.
    if (last == weight.out && part.end < kPanelOutputs) clear_outputs(part.panel, words, part.end);
  };
  // The streamed lines are seen by all before the others are told.
  for_panels(runtime, rows, pack_panel, [] { _mm_sfence(); });
}

}  // namespace galley::device
