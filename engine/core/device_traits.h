// DeviceTraits: what byte arithmetic must know of a device, as a plain value.
//
// The memory plan (engine/model) takes it, devices (engine/device) give it; neither includes the
// other. Packed weights: every linear weight [out, in] is stored in ONE form per dtype: panels of
// `panel_outputs` output rows, each panel [in][panel_outputs] (the last panel padded with zeros);
// bf16 panels are [in / 2][panel_outputs] words of 32 bits: inputs 2i (low half) and 2i + 1 of one
// output, as dot-product instructions take them and as two shifts widen them (an odd `in` is padded
// with a zero); int8 panels are [in / 4][panel_outputs] words of four inputs (`in` padded to a
// multiple of 4 with zeros), and behind each panel lie one f32 scale and one i32 sum of the values
// of every output. panel_outputs == 1 means plain row-major [out][in].
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/core/dtype.h"

namespace galley {

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

struct DeviceTraits {
  uint64_t capacity_bytes = 0;             // hard limit of the allocator
  uint32_t alignment_bytes = 64;           // of every tensor in an arena
  uint32_t panel_outputs = 32;             // see above
  uint32_t num_threads = 1;                // host: threads of the worker's pool
  uint64_t gemm_workspace_bytes = 0;       // fixed scratch of the linear operations, all threads
  uint64_t attention_workspace_bytes = 0;  // fixed scratch of the attention operations, all threads
};

/// Scratch that a host device takes per thread of its pool, whatever the model: packing buffers of
/// the GEMM kernels, score blocks of attention. engine/device/host allocates exactly these.
constexpr uint64_t kHostGemmWorkspaceBytesPerThread = 1u << 20;
constexpr uint64_t kHostAttentionWorkspaceBytesPerThread = 256u << 10;

/// Traits of the host device with this memory limit and number of threads.
constexpr DeviceTraits host_traits(uint64_t capacity_bytes, uint32_t num_threads) {
  DeviceTraits traits;
  traits.capacity_bytes = capacity_bytes;
  traits.num_threads = num_threads;
  traits.gemm_workspace_bytes = num_threads * kHostGemmWorkspaceBytesPerThread;
  traits.attention_workspace_bytes = num_threads * kHostAttentionWorkspaceBytesPerThread;
  return traits;
}

/// Scale and sum of one output of an int8 weight.
constexpr uint64_t kInt8OutputBytes = 8;

/// Bytes of a packed linear weight [out, in]; aligned.
constexpr uint64_t packed_weight_bytes(const DeviceTraits& traits, DType dtype, uint64_t out,
                                       uint64_t in) {
  const bool panels = traits.panel_outputs > 1;
  uint64_t output_bytes = in * dtype_bytes(dtype);
  if (panels && dtype == DType::kBf16) output_bytes = round_up(in, 2) * 2;
  if (dtype == DType::kI8) output_bytes = (panels ? round_up(in, 4) : in) + kInt8OutputBytes;
  return round_up(round_up(out, traits.panel_outputs) * output_bytes, traits.alignment_bytes);
}

}  // namespace galley
