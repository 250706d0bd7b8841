#include "engine/device/cuda/cuda_check.h"

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::device {

void cuda_check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  const Reason reason =
      status == cudaErrorMemoryAllocation ? Reason::kOutOfMemory : Reason::kDeviceError;
  throw Error(reason, cat("CUDA: ", call, " failed: ", cudaGetErrorName(status), ", ",
                          cudaGetErrorString(status)));
}

void cublas_check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(Reason::kDeviceError,
              cat("cuBLASLt: ", call, " failed: ", cublasLtGetStatusString(status)));
}

}  // namespace galley::device
