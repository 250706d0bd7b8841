// The loops that find a processor's limits: one function per instruction, each compiled for it.
//
// Internal to peak.cc, which checks the processor first. Independent chains, as many as the
// registers hold, so that neither latency nor memory is in the way. Each function runs `rounds`
// rounds on the calling thread and returns the number of operations (a multiply-add counts as two).
// Only plain types: see kernels.h.
#pragma once

#include <cstdint>

namespace galley::device {

double peak_loop_sse2(int64_t rounds);      // mulps and addps, 4 floats each
double peak_loop_avx2(int64_t rounds);      // vfmadd231ps, 8 floats
double peak_loop_avx512(int64_t rounds);    // vfmadd231ps, 16 floats
double peak_loop_bf16_dot(int64_t rounds);  // vdpbf16ps, 32 pairs
double peak_loop_int8_dot(int64_t rounds);  // vpdpbusd, 64 pairs

/// Reads `bytes` of memory aligned to 64 bytes, on the calling thread.
void read_memory(const void* data, int64_t bytes);

}  // namespace galley::device
