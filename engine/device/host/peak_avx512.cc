// The peak of fused multiply-adds, 512 bits wide.
#include <immintrin.h>

#include "engine/device/host/peak_chains.h"
#include "engine/device/host/peak_loops.h"

namespace galley::device {

double peak_loop_avx512(int64_t rounds) {
  const __m512 a = _mm512_set1_ps(0.999999f), b = _mm512_set1_ps(1e-9f);
  __m512 sum[kPeakChains];
  for (auto& s : sum) s = b;
  for (int64_t i = 0; i < rounds; ++i) GALLEY_PEAK_ROUND("vfmadd132ps", "v", sum, a, b);
  return 2.0 * 16 * kPeakChains * static_cast<double>(rounds);
}

}  // namespace galley::device
