// The peak of int8 dot products (unsigned by signed) with int32 sums, 512 bits wide.
//
// Written as assembly: compilers put stores and moves between instructions that they schedule.
#include <immintrin.h>

#include "engine/device/host/peak_loops.h"

namespace galley::device {

double peak_loop_int8_dot(int64_t rounds) {
  constexpr int kChains = 14;
  const __m512i a = _mm512_set1_epi8(-1), b = _mm512_set1_epi8(3);
  __m512i sum[kChains] = {};
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile(
        "vpdpbusd %[a], %[b], %0\n\t"
        "vpdpbusd %[a], %[b], %1\n\t"
        "vpdpbusd %[a], %[b], %2\n\t"
        "vpdpbusd %[a], %[b], %3\n\t"
        "vpdpbusd %[a], %[b], %4\n\t"
        "vpdpbusd %[a], %[b], %5\n\t"
        "vpdpbusd %[a], %[b], %6\n\t"
        "vpdpbusd %[a], %[b], %7\n\t"
        "vpdpbusd %[a], %[b], %8\n\t"
        "vpdpbusd %[a], %[b], %9\n\t"
        "vpdpbusd %[a], %[b], %10\n\t"
        "vpdpbusd %[a], %[b], %11\n\t"
        "vpdpbusd %[a], %[b], %12\n\t"
        "vpdpbusd %[a], %[b], %13\n\t"
        : "+v"(sum[0]), "+v"(sum[1]), "+v"(sum[2]), "+v"(sum[3]), "+v"(sum[4]), "+v"(sum[5]),
          "+v"(sum[6]), "+v"(sum[7]), "+v"(sum[8]), "+v"(sum[9]), "+v"(sum[10]), "+v"(sum[11]),
          "+v"(sum[12]), "+v"(sum[13])
        : [a] "v"(a), [b] "v"(b));
  }
  return 2.0 * 64 * kChains * static_cast<double>(rounds);
}

}  // namespace galley::device
