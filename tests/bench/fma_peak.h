// The peak of the processor's f32 multiply-add units, measured: the yardstick of a benchmark's
// minute.
#pragma once

namespace galley::bench {

/// Runs `iterations` rounds of independent multiply-adds with vectors of 16 (AVX-512) or 8 (AVX2)
/// floats; returns the number of floating-point operations. The caller has checked the processor.
double run_fma_avx512(long iterations);
double run_fma_avx2(long iterations);

}  // namespace galley::bench
