// CudaDevice: one NVIDIA card as a device. Owned by one worker thread.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <memory>

#include "engine/device/cuda_library.h"
#include "engine/device/device.h"
#include "engine/device/ops.h"

namespace galley::device {

class CudaStream : public Stream {
 public:
  CudaStream();
  ~CudaStream() override;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaEvent : public Event {
 public:
  CudaEvent();
  ~CudaEvent() override;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaDevice : public Device {
 public:
  CudaDevice(const CudaCard& card, uint64_t capacity_bytes);
  const DeviceIdentity& identity() const override { return identity_; }
  const DeviceTraits& traits() const override { return traits_; }
  std::unique_ptr<Stream> create_stream() override;
  std::unique_ptr<Event> create_event() override;
  void record(Event& event, Stream& stream) override;
  void wait(Stream& stream, Event& event) override;
  void synchronize(Stream& stream) override;
  void copy_to_device(Stream& stream, void* device, const void* host, size_t bytes) override;
  void copy_to_host(Stream& stream, void* host, const void* device, size_t bytes) override;
  void copy_on_device(Stream& stream, void* to, const void* from, size_t bytes) override;
  void fill_zero(Stream& stream, void* device, size_t bytes) override;
  std::unique_ptr<LinearOps> linear_ops(Stream& stream) override;
  std::unique_ptr<ElementwiseOps> elementwise_ops(Stream& stream) override;

 protected:
  void* do_allocate(size_t bytes) override;
  void do_free(void* data, size_t bytes) noexcept override;

 private:
  DeviceIdentity identity_;
  DeviceTraits traits_;
};

/// LinearOps by cuBLASLt; weights are row-major. Takes its workspace from `device`.
std::unique_ptr<LinearOps> make_cuda_linear_ops(CudaDevice& device, CudaStream& stream);

}  // namespace galley::device
