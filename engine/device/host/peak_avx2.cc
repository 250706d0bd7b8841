// The peak of fused multiply-adds, 256 bits wide.
#include <immintrin.h>

#include "engine/device/host/peak_chains.h"
#include "engine/device/host/peak_loops.h"

namespace galley::device {

double peak_loop_avx2(int64_t rounds) {
  const __m256 a = _mm256_set1_ps(0.999999f), b = _mm256_set1_ps(1e-9f);
  __m256 sum[kPeakChains];
  for (auto& s : sum) s = b;
  for (int64_t i = 0; i < rounds; ++i) GALLEY_PEAK_ROUND("vfmadd132ps", "x", sum, a, b);
  return 2.0 * 8 * kPeakChains * static_cast<double>(rounds);
}

}  // namespace galley::device
