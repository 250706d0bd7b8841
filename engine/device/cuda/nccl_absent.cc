// What a build without NCCL has in place of nccl_communicator.cc.
#include "engine/core/error.h"
#include "engine/device/cuda/cuda_entry.h"

__attribute__((visibility("default"))) galley::device::Communicator* galley_cuda_communicator(
    galley::device::Stream*, galley::GroupTransport*, const int*, int) {
  throw galley::Error(galley::Reason::kNoDevice,
                      "GPUs cannot work together here: galley was built without NCCL; install it "
                      "and build again (INSTALL.md)");
}
