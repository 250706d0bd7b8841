// The peak of int8 dot products (unsigned by signed) with int32 sums, 512 bits wide.
#include <immintrin.h>

#include "engine/device/host/peak_chains.h"
#include "engine/device/host/peak_loops.h"

namespace galley::device {

double peak_loop_int8_dot(int64_t rounds) {
  const __m512i a = _mm512_set1_epi8(-1), b = _mm512_set1_epi8(3);
  __m512i sum[kPeakChains] = {};
  for (int64_t i = 0; i < rounds; ++i) GALLEY_PEAK_ROUND("vpdpbusd", "v", sum, a, b);
  return 2.0 * 64 * kPeakChains * static_cast<double>(rounds);
}

}  // namespace galley::device
