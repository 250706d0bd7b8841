// The peak of bf16 dot products with f32 sums, 512 bits wide.
#include <immintrin.h>

#include "engine/device/host/peak_chains.h"
#include "engine/device/host/peak_loops.h"

namespace galley::device {

double peak_loop_bf16_dot(int64_t rounds) {
  // Pairs of bf16 1.0: sums grow slowly and stay ordinary numbers.
  const __m512i a = _mm512_set1_epi32(0x3f803f80), b = a;
  __m512 sum[kPeakChains] = {};
  for (int64_t i = 0; i < rounds; ++i) GALLEY_PEAK_ROUND("vdpbf16ps", "v", sum, a, b);
  return 2.0 * 32 * kPeakChains * static_cast<double>(rounds);
}

}  // namespace galley::device
