#include "engine/device/host/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "engine/core/device_traits.h"

namespace galley::device {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kAlignment = 64;
// Below this the heap serves; above it memory is mapped, so that freeing returns it to the system.
constexpr size_t kMapFrom = size_t{256} << 10;

size_t mapped_bytes(size_t bytes) {
  return round_up(bytes, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
}

void* map_aligned(size_t bytes) {
  const size_t wanted = mapped_bytes(bytes);
  const size_t slack = bytes >= kHugePage ? kHugePage : 0;
  if (wanted + slack < bytes) return nullptr;
  void* raw =
      mmap(nullptr, wanted + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  if (slack == 0) return raw;
  auto* begin = static_cast<std::byte*>(raw);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) munmap(begin, before);
  if (slack - before > 0) munmap(begin + before + wanted, slack - before);
  // A hint only: without huge pages everything works, a few percent slower.
  madvise(begin + before, wanted, MADV_HUGEPAGE);
  return begin + before;
}

/// Takes the pages now: a worker that starts has all the memory it was planned, and one that cannot
/// have it ends at its start, not hours later. False when the system refuses.
bool populate(void* data, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno == ENOMEM || errno == EFAULT || errno == EHWPOISON) return false;
#endif
  // Kernels before 5.14: touching a page takes it.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t at = 0; at < bytes; at += page) static_cast<volatile char*>(data)[at] = 0;
  return true;
}

/// The number in a one-line file; `otherwise` when there is none ("max", no such file).
uint64_t number_in_file(const char* path, uint64_t otherwise) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? value : otherwise;
}

}  // namespace

void* host_memory_allocate(size_t bytes) {
  if (bytes >= kMapFrom) {
    void* mapped = map_aligned(bytes);
    if (mapped != nullptr && !populate(mapped, mapped_bytes(bytes))) {
      munmap(mapped, mapped_bytes(bytes));
      return nullptr;
    }
    return mapped;
  }
  const size_t rounded = round_up(bytes, kAlignment);
  void* data = std::aligned_alloc(kAlignment, rounded);
  if (data != nullptr) std::memset(data, 0, rounded);
  return data;
}

void host_memory_free(void* data, size_t bytes) noexcept {
  if (bytes >= kMapFrom) {
    munmap(data, mapped_bytes(bytes));
  } else {
    std::free(data);
  }
}

uint64_t host_memory_free_bytes() {
  uint64_t available = 0;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key, rest; meminfo >> key && std::getline(meminfo, rest);) {
    if (key == "MemAvailable:") available = std::strtoull(rest.c_str(), nullptr, 10) * 1024;
  }
  if (available == 0) {
    available = static_cast<uint64_t>(sysconf(_SC_AVPHYS_PAGES)) *
                static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  }
  const uint64_t limit = number_in_file("/sys/fs/cgroup/memory.max", ~uint64_t{0});
  const uint64_t used = number_in_file("/sys/fs/cgroup/memory.current", 0);
  return std::min(available, limit > used ? limit - used : 0);
}

}  // namespace galley::device
