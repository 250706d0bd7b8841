// What baseline x86-64 can reach: a product and a sum, 128 bits wide and not fused; and how fast
// memory is read.
#include <immintrin.h>

#include "engine/device/host/peak_loops.h"

namespace galley::device {

double peak_loop_sse2(int64_t rounds) {
  constexpr int kPairs = 7;  // half of the chains are products, half are sums
  const __m128 a = _mm_set1_ps(1.0f), b = _mm_set1_ps(1e-9f);
  __m128 sum[2 * kPairs];
  for (auto& s : sum) s = b;
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile(
        "mulps %[a], %0\n\t"
        "addps %[b], %7\n\t"
        "mulps %[a], %1\n\t"
        "addps %[b], %8\n\t"
        "mulps %[a], %2\n\t"
        "addps %[b], %9\n\t"
        "mulps %[a], %3\n\t"
        "addps %[b], %10\n\t"
        "mulps %[a], %4\n\t"
        "addps %[b], %11\n\t"
        "mulps %[a], %5\n\t"
        "addps %[b], %12\n\t"
        "mulps %[a], %6\n\t"
        "addps %[b], %13\n\t"
        : "+x"(sum[0]), "+x"(sum[1]), "+x"(sum[2]), "+x"(sum[3]), "+x"(sum[4]), "+x"(sum[5]),
          "+x"(sum[6]), "+x"(sum[7]), "+x"(sum[8]), "+x"(sum[9]), "+x"(sum[10]), "+x"(sum[11]),
          "+x"(sum[12]), "+x"(sum[13])
        : [a] "x"(a), [b] "x"(b));
  }
  return 2.0 * 4 * kPairs * static_cast<double>(rounds);
}

void read_memory(const void* data, int64_t bytes) {
  // One stream, which every prefetcher follows; several far apart were slower under a hypervisor.
  const auto* from = static_cast<const __m128i*>(data);
  __m128i sum[4] = {};
  for (int64_t i = 0; i < bytes / 64; ++i) {
    for (int j = 0; j < 4; ++j) sum[j] = _mm_add_epi64(sum[j], from[4 * i + j]);
  }
  for (auto& s : sum) asm volatile("" ::"x"(s));
}

}  // namespace galley::device
