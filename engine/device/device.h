// Device: memory, streams, events and copies of one compute device; host or CUDA.
//
// Two implementers: engine/device/host and engine/device/cuda. The public functions check their
// arguments once and call the protected virtual ones. A device is owned by one worker thread; work
// is issued in order on streams. On the host a stream runs everything at once, in the caller.
// Operations are separate small interfaces (ops.h), opened per stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/core/device_traits.h"

namespace galley::device {

class Device;
class LinearOps;
class ElementwiseOps;

/// Owned device memory; returns to its device at the end. Movable. The device must outlive it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, void* data, size_t bytes) : device_(device), data_(data), bytes_(bytes) {}
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* at(size_t byte_offset) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(data_) + byte_offset);
  }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Opaque handles; created and destroyed by their device.
class Stream {
 public:
  virtual ~Stream() = default;
};
class Event {
 public:
  virtual ~Event() = default;
};

struct DeviceIdentity {
  std::string kind;  // "host" or "cuda"
  std::string name;  // "AMD EPYC, 2 threads, avx512" or "NVIDIA H200"
  std::string uuid;  // of the card; "host:HOSTNAME" for the host device
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceIdentity& identity() const = 0;
  virtual const DeviceTraits& traits() const = 0;

  /// Aligned, zero-filled memory. Error(kOutOfMemory) naming `label`, what was asked, what is
  /// allocated and the capacity when it does not fit.
  Buffer allocate(size_t bytes, const std::string& label);
  /// Bytes handed out now, and the most at any time.
  size_t allocated_bytes() const { return allocated_; }
  size_t peak_allocated_bytes() const { return peak_allocated_; }

  virtual std::unique_ptr<Stream> create_stream() = 0;
  virtual std::unique_ptr<Event> create_event() = 0;
  /// Records `event` after all work issued on `stream` so far.
  virtual void record(Event& event, Stream& stream) = 0;
  /// Work issued on `stream` from now on waits for `event`.
  virtual void wait(Stream& stream, Event& event) = 0;
  /// Blocks until all work of `stream` is done; throws Error(kDeviceError) for a sticky error.
  virtual void synchronize(Stream& stream) = 0;

  /// Ordered on `stream`. Host memory must stay valid until it is synchronized.
  virtual void copy_to_device(Stream& stream, void* device, const void* host, size_t bytes) = 0;
  virtual void copy_to_host(Stream& stream, void* host, const void* device, size_t bytes) = 0;
  virtual void copy_on_device(Stream& stream, void* to, const void* from, size_t bytes) = 0;
  virtual void fill_zero(Stream& stream, void* device, size_t bytes) = 0;

  /// Operations bound to one stream of this device; the stream and the device must outlive them.
  virtual std::unique_ptr<LinearOps> linear_ops(Stream& stream) = 0;
  virtual std::unique_ptr<ElementwiseOps> elementwise_ops(Stream& stream) = 0;

 protected:
  /// Returns nullptr when the system itself has no memory left.
  virtual void* do_allocate(size_t bytes) = 0;
  virtual void do_free(void* data, size_t bytes) noexcept = 0;

 private:
  friend class Buffer;
  void release(void* data, size_t bytes) noexcept;
  size_t allocated_ = 0;
  size_t peak_allocated_ = 0;
};

}  // namespace galley::device
