#include "engine/core/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "engine/core/strings.h"

namespace galley {

SharedMemory::SharedMemory(FileDescriptor fd, uint64_t bytes) : fd_(std::move(fd)), bytes_(bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (data == MAP_FAILED) {
    throw_errno("map", cat(format_bytes(static_cast<double>(bytes)), " of shared memory"), errno,
                Reason::kOutOfMemory);
  }
  data_ = static_cast<std::byte*>(data);
}

SharedMemory SharedMemory::make(uint64_t bytes) {
  const std::string what = cat(format_bytes(static_cast<double>(bytes)), " of shared memory");
  FileDescriptor fd(::memfd_create("galley-group", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) throw_errno("make", what, errno, Reason::kOutOfMemory);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw_errno("make", what, errno, Reason::kOutOfMemory);
  }
  return {std::move(fd), bytes};
}

uint64_t SharedMemory::bytes_of(const FileDescriptor& fd) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw_errno("look at", "shared memory", errno);
  return static_cast<uint64_t>(status.st_size);
}

SharedMemory SharedMemory::map(FileDescriptor fd, uint64_t total_bytes, uint64_t bytes) {
  const uint64_t found = bytes_of(fd);
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (found != total_bytes || seals < 0 || (seals & F_SEAL_SHRINK) == 0 || bytes > total_bytes) {
    throw Error(Reason::kInternal,
                cat("the shared memory that a group's worker was given is not what it should be: ",
                    found, " bytes instead of ", total_bytes, ", seals ", seals));
  }
  return {std::move(fd), bytes};
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  fd_ = std::move(other.fd_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void SharedMemory::unmap() noexcept {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  data_ = nullptr;
}

}  // namespace galley
