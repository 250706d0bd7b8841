// The functions that the shared library gives to engine/device/cuda_library.cc.
#pragma once

#include <cstdint>

#include "engine/device/communicator.h"
#include "engine/device/cuda_library.h"

extern "C" {
/// Fills *report; never throws.
void galley_cuda_inspect(galley::device::CudaReport* report);
/// A new device, owned by the caller; throws galley::Error.
galley::device::Device* galley_cuda_open(int ordinal, uint64_t capacity_bytes);
/// A new communicator of the current card on one of its streams, owned by the caller; throws
/// galley::Error (kNoDevice in a build without NCCL).
galley::device::Communicator* galley_cuda_communicator(galley::device::Stream* stream,
                                                       galley::GroupTransport* transport,
                                                       const int* members, int num_members);
}
