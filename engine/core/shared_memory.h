// SharedMemory: anonymous memory that processes share by descriptor; no name anywhere.
//
// Made by memfd_create, zeroed, sealed against any change of its size, so that nobody who maps it
// can be hurt by another. Pages are taken when they are touched first. The kernel frees it with the
// last process that has it. A value with one owner; its bytes may be used by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "engine/core/file.h"

namespace galley {

class SharedMemory {
 public:
  SharedMemory() = default;
  /// New memory; Error(kOutOfMemory) when the system has none.
  static SharedMemory make(uint64_t bytes);
  /// The first `bytes` of memory that another has made. Error(kInternal) when it has not
  /// `total_bytes` or may shrink.
  static SharedMemory map(FileDescriptor fd, uint64_t total_bytes, uint64_t bytes);
  /// How large the memory behind a descriptor is.
  static uint64_t bytes_of(const FileDescriptor& fd);
  ~SharedMemory() { unmap(); }
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  /// The memory stays mapped.
  void close_descriptor() { fd_.reset(); }
  FileDescriptor take_descriptor() { return std::move(fd_); }

 private:
  SharedMemory(FileDescriptor fd, uint64_t bytes);
  void unmap() noexcept;

  FileDescriptor fd_;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t whole_pages(uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace galley
