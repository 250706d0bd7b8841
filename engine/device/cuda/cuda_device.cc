#include "engine/device/cuda/cuda_device.h"

#include "engine/core/error.h"
#include "engine/device/cuda/cuda_check.h"
#include "engine/device/cuda/cuda_kernels.h"

namespace galley::device {
namespace {

constexpr uint64_t kGemmWorkspaceBytes = 32u << 20;  // NVIDIA's advice for Hopper; enough before it

cudaStream_t native(Stream& stream) { return static_cast<CudaStream&>(stream).get(); }

class CudaElementwiseOps : public ElementwiseOps {
 public:
  explicit CudaElementwiseOps(cudaStream_t stream) : stream_(stream) {}

 protected:
  void do_swiglu_forward(const ConstMatrix& gate, const ConstMatrix& up, const Matrix& y) override {
    launch_swiglu_forward(stream_, gate, up, y);
  }
  void do_swiglu_backward(const ConstMatrix& gate, const ConstMatrix& up, const ConstMatrix& dy,
                          const Matrix& d_gate, const Matrix& d_up) override {
    launch_swiglu_backward(stream_, gate, up, dy, d_gate, d_up);
  }
  void do_add(const ConstMatrix& x, const Matrix& y) override { launch_add(stream_, x, y); }

 private:
  cudaStream_t stream_;
};

}  // namespace

CudaStream::CudaStream() {
  GALLEY_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}
CudaStream::~CudaStream() { cudaStreamDestroy(stream_); }
CudaEvent::CudaEvent() { GALLEY_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
CudaEvent::~CudaEvent() { cudaEventDestroy(event_); }

CudaDevice::CudaDevice(const CudaCard& card, uint64_t capacity_bytes) {
  GALLEY_CUDA(cudaSetDevice(card.ordinal));
  identity_ = {"cuda", card.name, card.uuid};
  traits_.capacity_bytes = capacity_bytes == 0 ? card.memory_bytes : capacity_bytes;
  traits_.alignment_bytes = 256;
  traits_.panel_outputs = 1;
  traits_.gemm_workspace_bytes = kGemmWorkspaceBytes;
}

std::unique_ptr<Stream> CudaDevice::create_stream() { return std::make_unique<CudaStream>(); }
std::unique_ptr<Event> CudaDevice::create_event() { return std::make_unique<CudaEvent>(); }

void CudaDevice::record(Event& event, Stream& stream) {
  GALLEY_CUDA(cudaEventRecord(static_cast<CudaEvent&>(event).get(), native(stream)));
}
void CudaDevice::wait(Stream& stream, Event& event) {
  GALLEY_CUDA(cudaStreamWaitEvent(native(stream), static_cast<CudaEvent&>(event).get(), 0));
}
void CudaDevice::synchronize(Stream& stream) { GALLEY_CUDA(cudaStreamSynchronize(native(stream))); }

void CudaDevice::copy_to_device(Stream& stream, void* device, const void* host, size_t bytes) {
  GALLEY_CUDA(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, native(stream)));
}
void CudaDevice::copy_to_host(Stream& stream, void* host, const void* device, size_t bytes) {
  GALLEY_CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, native(stream)));
}
void CudaDevice::copy_on_device(Stream& stream, void* to, const void* from, size_t bytes) {
  GALLEY_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, native(stream)));
}
void CudaDevice::fill_zero(Stream& stream, void* device, size_t bytes) {
  GALLEY_CUDA(cudaMemsetAsync(device, 0, bytes, native(stream)));
}

std::unique_ptr<LinearOps> CudaDevice::linear_ops(Stream& stream) {
  return make_cuda_linear_ops(*this, static_cast<CudaStream&>(stream));
}
std::unique_ptr<ElementwiseOps> CudaDevice::elementwise_ops(Stream& stream) {
  return std::make_unique<CudaElementwiseOps>(native(stream));
}

void* CudaDevice::do_allocate(size_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky; must not surface at the next call
    return nullptr;
  }
  GALLEY_CUDA(status);
  GALLEY_CUDA(cudaMemset(data, 0, bytes));
  return data;
}

void CudaDevice::do_free(void* data, size_t) noexcept { cudaFree(data); }

}  // namespace galley::device
