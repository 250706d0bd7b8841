// One checked call each for the CUDA runtime and cuBLASLt: the call's text is part of the error.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace galley::device {

/// Throws Error(kDeviceError) (kOutOfMemory for cudaErrorMemoryAllocation) naming `call`.
void cuda_check(cudaError_t status, const char* call);
void cublas_check(cublasStatus_t status, const char* call);

}  // namespace galley::device

#define GALLEY_CUDA(call) ::galley::device::cuda_check((call), #call)
#define GALLEY_CUBLAS(call) ::galley::device::cublas_check((call), #call)
