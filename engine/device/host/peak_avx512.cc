// The peak of fused multiply-adds, 512 bits wide.
//
// Written as assembly: compilers put stores and moves between instructions that they schedule.
#include <immintrin.h>

#include "engine/device/host/peak_loops.h"

namespace galley::device {

double peak_loop_avx512(int64_t rounds) {
  constexpr int kChains = 14;
  const __m512 a = _mm512_set1_ps(0.999999f), b = _mm512_set1_ps(1e-9f);
  __m512 sum[kChains] = {};
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
        : "+v"(sum[0]), "+v"(sum[1]), "+v"(sum[2]), "+v"(sum[3]), "+v"(sum[4]), "+v"(sum[5]),
          "+v"(sum[6]), "+v"(sum[7]), "+v"(sum[8]), "+v"(sum[9]), "+v"(sum[10]), "+v"(sum[11]),
          "+v"(sum[12]), "+v"(sum[13])
        : [a] "v"(a), [b] "v"(b));
  }
  return 2.0 * 16 * kChains * static_cast<double>(rounds);
}

}  // namespace galley::device
