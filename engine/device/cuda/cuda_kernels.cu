#include <cuda_bf16.h>

#include "engine/device/cuda/cuda_check.h"
#include "engine/device/cuda/cuda_kernels.h"

namespace galley::device {
namespace {

constexpr int kThreads = 256;

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__global__ void swiglu_forward_kernel(ConstMatrix gate, ConstMatrix up, Matrix y) {
  const int64_t col = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  const int64_t row = blockIdx.y;
  if (col >= y.cols) return;
  const float g = gate.data[row * gate.stride + col];
  y.data[row * y.stride + col] = g * sigmoid(g) * up.data[row * up.stride + col];
}

// Reads all inputs of an element before it writes: d_gate may be gate's memory, d_up up's.
__global__ void swiglu_backward_kernel(ConstMatrix gate, ConstMatrix up, ConstMatrix dy,
                                       Matrix d_gate, Matrix d_up) {
  const int64_t col = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  const int64_t row = blockIdx.y;
  if (col >= dy.cols) return;
  const float g = gate.data[row * gate.stride + col];
  const float u = up.data[row * up.stride + col];
  const float d = dy.data[row * dy.stride + col];
  const float s = sigmoid(g);
  d_gate.data[row * d_gate.stride + col] = d * u * s * (1.0f + g * (1.0f - s));
  d_up.data[row * d_up.stride + col] = d * g * s;
}

__global__ void add_kernel(ConstMatrix x, Matrix y) {
  const int64_t col = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  const int64_t row = blockIdx.y;
  if (col < y.cols) y.data[row * y.stride + col] += x.data[row * x.stride + col];
}

__global__ void add_bias_kernel(const float* bias, Matrix y) {
  const int64_t col = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  const int64_t row = blockIdx.y;
  if (col < y.cols) y.data[row * y.stride + col] += bias[col];
}

__global__ void to_bf16_kernel(ConstMatrix x, __nv_bfloat16* out) {
  const int64_t col = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  const int64_t row = blockIdx.y;
  if (col < x.cols) out[row * x.cols + col] = __float2bfloat16_rn(x.data[row * x.stride + col]);
}

// The grid's second dimension holds rows and is limited to 65,535: longer inputs go in pieces.
constexpr int64_t kMaxRows = 65535;

template <typename View>
View rows_of(const View& view, int64_t begin, int64_t count) {
  View part = view;
  part.data = view.data + begin * view.stride;
  part.rows = count;
  return part;
}

template <typename Launch>
void for_row_pieces(int64_t rows, int64_t cols, const Launch& launch) {
  for (int64_t begin = 0; begin < rows; begin += kMaxRows) {
    const int64_t count = rows - begin < kMaxRows ? rows - begin : kMaxRows;
    const dim3 grid(static_cast<unsigned>((cols + kThreads - 1) / kThreads),
                    static_cast<unsigned>(count));
    launch(grid, begin, count);
    GALLEY_CUDA(cudaGetLastError());
  }
}

}  // namespace

void launch_swiglu_forward(cudaStream_t stream, const ConstMatrix& gate, const ConstMatrix& up,
                           const Matrix& y) {
  for_row_pieces(y.rows, y.cols, [&](dim3 grid, int64_t begin, int64_t count) {
    swiglu_forward_kernel<<<grid, kThreads, 0, stream>>>(
        rows_of(gate, begin, count), rows_of(up, begin, count), rows_of(y, begin, count));
  });
}

void launch_swiglu_backward(cudaStream_t stream, const ConstMatrix& gate, const ConstMatrix& up,
                            const ConstMatrix& dy, const Matrix& d_gate, const Matrix& d_up) {
  for_row_pieces(dy.rows, dy.cols, [&](dim3 grid, int64_t begin, int64_t count) {
    swiglu_backward_kernel<<<grid, kThreads, 0, stream>>>(
        rows_of(gate, begin, count), rows_of(up, begin, count), rows_of(dy, begin, count),
        rows_of(d_gate, begin, count), rows_of(d_up, begin, count));
  });
}

void launch_add(cudaStream_t stream, const ConstMatrix& x, const Matrix& y) {
  for_row_pieces(y.rows, y.cols, [&](dim3 grid, int64_t begin, int64_t count) {
    add_kernel<<<grid, kThreads, 0, stream>>>(rows_of(x, begin, count), rows_of(y, begin, count));
  });
}

void launch_add_bias(cudaStream_t stream, const float* bias, const Matrix& y) {
  for_row_pieces(y.rows, y.cols, [&](dim3 grid, int64_t begin, int64_t count) {
    add_bias_kernel<<<grid, kThreads, 0, stream>>>(bias, rows_of(y, begin, count));
  });
}

void launch_to_bf16(cudaStream_t stream, const ConstMatrix& x, uint16_t* out) {
  for_row_pieces(x.rows, x.cols, [&](dim3 grid, int64_t begin, int64_t count) {
    to_bf16_kernel<<<grid, kThreads, 0, stream>>>(
        rows_of(x, begin, count), reinterpret_cast<__nv_bfloat16*>(out) + begin * x.cols);
  });
}

}  // namespace galley::device
