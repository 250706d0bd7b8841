#include "engine/device/device.h"

#include <algorithm>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::device {

Buffer::~Buffer() {
  if (data_ != nullptr) device_->release(data_, bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  Buffer old(std::move(other));
  return *this;
}

Buffer Device::allocate(size_t bytes, const std::string& label) {
  if (bytes == 0) return Buffer();
  const uint64_t capacity = traits().capacity_bytes;
  if (bytes > capacity || allocated_ > capacity - bytes) {
    throw Error(Reason::kOutOfMemory,
                "cannot allocate " + format_bytes(bytes) + " for " + label + " on " +
                    identity().name + ": " + format_bytes(allocated_) + " of its " +
                    format_bytes(capacity) +
                    " are in use; use a smaller micro batch, fewer layers per worker, or a device "
                    "with more memory");
  }
  void* data = do_allocate(bytes);
  if (data == nullptr) {
    throw Error(Reason::kOutOfMemory,
                "cannot allocate " + format_bytes(bytes) + " for " + label + " on " +
                    identity().name + ": the system has no memory left, although only " +
                    format_bytes(allocated_) + " of the device's " + format_bytes(capacity) +
                    " are in use; free memory there or lower the device's capacity");
  }
  allocated_ += bytes;
  peak_allocated_ = std::max(peak_allocated_, allocated_);
  return Buffer(this, data, bytes);
}

void Device::release(void* data, size_t bytes) noexcept {
  allocated_ -= bytes;
  do_free(data, bytes);
}

}  // namespace galley::device
