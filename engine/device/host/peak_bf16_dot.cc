// The peak of bf16 dot products with f32 sums, 512 bits wide.
//
// Written as assembly: compilers put stores and moves between instructions that they schedule.
#include <immintrin.h>

#include "engine/device/host/peak_loops.h"

namespace galley::device {

double peak_loop_bf16_dot(int64_t rounds) {
  constexpr int kChains = 14;
  // Pairs of bf16 1.0: sums grow slowly and stay ordinary numbers.
  const __m512i a = _mm512_set1_epi32(0x3f803f80), b = a;
  __m512 sum[kChains] = {};
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile(
        "vdpbf16ps %[a], %[b], %0\n\t"
        "vdpbf16ps %[a], %[b], %1\n\t"
        "vdpbf16ps %[a], %[b], %2\n\t"
        "vdpbf16ps %[a], %[b], %3\n\t"
        "vdpbf16ps %[a], %[b], %4\n\t"
        "vdpbf16ps %[a], %[b], %5\n\t"
        "vdpbf16ps %[a], %[b], %6\n\t"
        "vdpbf16ps %[a], %[b], %7\n\t"
        "vdpbf16ps %[a], %[b], %8\n\t"
        "vdpbf16ps %[a], %[b], %9\n\t"
        "vdpbf16ps %[a], %[b], %10\n\t"
        "vdpbf16ps %[a], %[b], %11\n\t"
        "vdpbf16ps %[a], %[b], %12\n\t"
        "vdpbf16ps %[a], %[b], %13\n\t"
        : "+v"(sum[0]), "+v"(sum[1]), "+v"(sum[2]), "+v"(sum[3]), "+v"(sum[4]), "+v"(sum[5]),
          "+v"(sum[6]), "+v"(sum[7]), "+v"(sum[8]), "+v"(sum[9]), "+v"(sum[10]), "+v"(sum[11]),
          "+v"(sum[12]), "+v"(sum[13])
        : [a] "v"(a), [b] "v"(b));
  }
  return 2.0 * 32 * kChains * static_cast<double>(rounds);
}

}  // namespace galley::device
