#include "tests/bench/fma_peak.h"

#include <immintrin.h>

namespace galley::bench {
namespace {

// Enough independent chains to hide the latency of two multiply-add units.
constexpr int kChains = 12;

}  // namespace

__attribute__((target("avx512f"))) double run_fma_avx512(long iterations) {
  __m512 sum[kChains];
  const __m512 factor = _mm512_set1_ps(0.999999f), term = _mm512_set1_ps(1e-9f);
  for (auto& s : sum) s = term;
  for (long i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) sum[j] = _mm512_fmadd_ps(sum[j], factor, term);
  }
  for (auto& s : sum) asm volatile("" ::"v"(s));
  return 2.0 * 16 * kChains * static_cast<double>(iterations);
}

__attribute__((target("avx2,fma"))) double run_fma_avx2(long iterations) {
  __m256 sum[kChains];
  const __m256 factor = _mm256_set1_ps(0.999999f), term = _mm256_set1_ps(1e-9f);
  for (auto& s : sum) s = term;
  for (long i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) sum[j] = _mm256_fmadd_ps(sum[j], factor, term);
  }
  for (auto& s : sum) asm volatile("" ::"x"(s));
  return 2.0 * 8 * kChains * static_cast<double>(iterations);
}

}  // namespace galley::bench
