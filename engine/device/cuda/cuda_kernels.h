// Launchers of our own CUDA kernels. All are asynchronous on `stream`; a launch error is thrown.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/device/ops.h"

namespace galley::device {

void launch_swiglu_forward(cudaStream_t stream, const ConstMatrix& gate, const ConstMatrix& up,
                           const Matrix& y);
void launch_swiglu_backward(cudaStream_t stream, const ConstMatrix& gate, const ConstMatrix& up,
                            const ConstMatrix& dy, const Matrix& d_gate, const Matrix& d_up);
void launch_add(cudaStream_t stream, const ConstMatrix& x, const Matrix& y);
/// y [T, out] adds bias [out] to each row.
void launch_add_bias(cudaStream_t stream, const float* bias, const Matrix& y);
/// Rounds x [rows, cols] to bf16 (nearest, ties to even) into contiguous `out`.
void launch_to_bf16(cudaStream_t stream, const ConstMatrix& x, uint16_t* out);

}  // namespace galley::device
