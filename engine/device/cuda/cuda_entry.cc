#include "engine/device/cuda/cuda_entry.h"

#include <cuda_runtime_api.h>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/device/cuda/cuda_device.h"

namespace galley::device {
namespace {

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string out = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += "-";
    out += format("%02x", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return out;
}

std::string why(cudaError_t status) {
  if (status == cudaErrorInsufficientDriver) {
    return "no NVIDIA driver is loaded here, or it is older than the CUDA runtime of this build";
  }
  if (status == cudaErrorNoDevice) return "the driver sees no GPU (is CUDA_VISIBLE_DEVICES empty?)";
  return cat(cudaGetErrorName(status), ", ", cudaGetErrorString(status));
}

}  // namespace
}  // namespace galley::device

__attribute__((visibility("default"))) void galley_cuda_inspect(
    galley::device::CudaReport* report) {
  using galley::device::CudaCard;
  *report = {};
  int count = 0;  // the call leaves it alone when it fails
  cudaError_t status = cudaGetDeviceCount(&count);
  for (int i = 0; status == cudaSuccess && i < count; ++i) {
    cudaDeviceProp properties{};
    status = cudaGetDeviceProperties(&properties, i);
    if (status != cudaSuccess) break;
    CudaCard card;
    card.ordinal = i;
    card.name = properties.name;
    card.uuid = galley::device::uuid_text(properties.uuid);
    card.memory_bytes = properties.totalGlobalMem;
    card.capability = galley::cat(properties.major, ".", properties.minor);
    report->cards.push_back(card);
  }
  if (status != cudaSuccess) {
    report->reason = galley::device::why(status);
  } else if (count == 0) {
    report->reason = "the driver sees no GPU";
  } else {
    report->usable = true;
  }
}

__attribute__((visibility("default"))) galley::device::Device* galley_cuda_open(
    int ordinal, uint64_t capacity_bytes) {
  galley::device::CudaReport report;
  galley_cuda_inspect(&report);
  if (!report.usable)
    throw galley::Error(galley::Reason::kNoDevice, "no GPU can be used here: " + report.reason);
  for (const galley::device::CudaCard& card : report.cards) {
    if (card.ordinal == ordinal) return new galley::device::CudaDevice(card, capacity_bytes);
  }
  throw galley::Error(galley::Reason::kNoDevice, galley::cat("there is no GPU ", ordinal,
                                                             " here, only ", report.cards.size()));
}
