// The door to the CUDA device library, a shared library of our own that is opened at run time only:
// the program starts in milliseconds on machines without driver and toolkit.
//
// Not thread-safe; called from the main thread of a worker, agent or command.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/device/communicator.h"
#include "engine/device/device.h"

namespace galley::device {

struct CudaCard {
  int ordinal = 0;  // as this process sees it
  std::string name;
  std::string uuid;  // "GPU-..."
  uint64_t memory_bytes = 0;
  std::string capability;  // "9.0"
};
struct CudaReport {
  bool usable = false;
  std::string reason;  // why not, for people
  std::vector<CudaCard> cards;
};

/// Opens the library and asks for cards. Never throws for what is missing: says it in `reason`.
CudaReport inspect_cuda();

/// Opens one card as a device with this memory limit. Error(kNoDevice) with the reason.
std::unique_ptr<Device> open_cuda_device(int ordinal, uint64_t capacity_bytes);

/// NCCL's communicator of `members` (as make_host_communicator()) on a stream of the card that this
/// thread has opened; stream and transport must outlive it. To be polled until ready(); those that
/// share members one after another, in the same order everywhere. Error(kNoDevice) where the build
/// has no NCCL.
std::unique_ptr<Communicator> make_cuda_communicator(Stream& stream, GroupTransport* transport,
                                                     const std::vector<int>& members);

}  // namespace galley::device
