// GPU types: memory, bandwidth, peaks and overheads, as data. Values only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/json.h"

namespace galley::predictor {

struct GpuType {
  std::string name;           // "a100-40gb"
  std::string description;    // "NVIDIA A100 40 GB SXM"
  uint64_t memory_bytes = 0;  // of the card, as the driver reports it
  double bandwidth_bytes_per_s = 0;
  double peak_f32_flops = 0;    // per second
  double peak_bf16_flops = 0;   // 0: no bf16
  uint64_t context_bytes = 0;   // device context and loaded kernels of one worker
  bool emulated = false;        // a memory-limited share of the host device
  double relative_speed = 1.0;  // as the cluster file says ("speed")
  // What a GPU sends to another one, per direction: on its node (NVLink, or PCIe), and elsewhere.
  double link_bytes_per_s = 0, network_bytes_per_s = 0;
  uint64_t communicator_bytes = 0;  // device memory that NCCL takes in a worker of a group
  double slowdown = 1.0;  // of emulated types: the fastest speed of the cluster over its own; its
                          // workers take so many times as long, on purpose
};

/// Name of the type that stands for a node without a usable GPU: the host device itself.
inline constexpr const char* kHostTypeName = "host";
/// The host device of a node with this much free memory.
GpuType host_gpu_type(uint64_t memory_bytes);

/// Whether products of bf16 numbers are an instruction of this type. The host device has them in
/// any case: its kernels widen where the processor cannot.
bool has_bf16(const GpuType& type);

/// The built-in table (memory, bandwidth, peaks from the vendors' data sheets).
const std::vector<GpuType>& gpu_table();
/// Row of the table. Error(kBadConfig) for an unknown name, with the nearest names.
GpuType gpu_type_by_name(const std::string& name);
/// An inline description: { name, memory = "40GiB", speed = 2.0, ... }; unknown keys are errors.
/// Without memory it is the row of that name with what it gives changed; otherwise only the links
/// of such a row are taken over.
/// bf16_tflops = 0 describes a card without bf16.
GpuType gpu_type_from_json(const Json& description, const std::string& where);

}  // namespace galley::predictor
