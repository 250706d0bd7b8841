// The peak of fused multiply-adds, 256 bits wide.
//
// Written as assembly: compilers put stores and moves between instructions that they schedule.
#include <immintrin.h>

#include "engine/device/host/peak_loops.h"

namespace galley::device {

double peak_loop_avx2(int64_t rounds) {
  constexpr int kChains = 14;
  const __m256 a = _mm256_set1_ps(0.999999f), b = _mm256_set1_ps(1e-9f);
  __m256 sum[kChains] = {};
  for (auto& s : sum) s = b;
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile(
        "vfmadd132ps %[a], %[b], %0\n\t"
        "vfmadd132ps %[a], %[b], %1\n\t"
        "vfmadd132ps %[a], %[b], %2\n\t"
        "vfmadd132ps %[a], %[b], %3\n\t"
        "vfmadd132ps %[a], %[b], %4\n\t"
        "vfmadd132ps %[a], %[b], %5\n\t"
        "vfmadd132ps %[a], %[b], %6\n\t"
        "vfmadd132ps %[a], %[b], %7\n\t"
        "vfmadd132ps %[a], %[b], %8\n\t"
        "vfmadd132ps %[a], %[b], %9\n\t"
        "vfmadd132ps %[a], %[b], %10\n\t"
        "vfmadd132ps %[a], %[b], %11\n\t"
        "vfmadd132ps %[a], %[b], %12\n\t"
        "vfmadd132ps %[a], %[b], %13\n\t"
        : "+x"(sum[0]), "+x"(sum[1]), "+x"(sum[2]), "+x"(sum[3]), "+x"(sum[4]), "+x"(sum[5]),
          "+x"(sum[6]), "+x"(sum[7]), "+x"(sum[8]), "+x"(sum[9]), "+x"(sum[10]), "+x"(sum[11]),
          "+x"(sum[12]), "+x"(sum[13])
        : [a] "x"(a), [b] "x"(b));
  }
  return 2.0 * 8 * kChains * static_cast<double>(rounds);
}

}  // namespace galley::device
