#include "engine/device/host/host_memory.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
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

/// The node on which each thread of the pool is just now (for good, when they are bound).
std::vector<int> nodes_of(ThreadPool& pool) {
  std::vector<int> nodes(static_cast<size_t>(pool.size()));
  pool.run([&nodes](int thread) {
    unsigned cpu = 0, node = 0;
    if (getcpu(&cpu, &node) == 0) nodes[static_cast<size_t>(thread)] = static_cast<int>(node);
  });
  return nodes;
}

/// All threads take their pages of [data, data + bytes). False when the system refuses.
bool populate_together(void* data, size_t bytes, PageOwner owner, ThreadPool& pool) {
  const auto threads = static_cast<size_t>(pool.size());
  if (threads == 1 || bytes < 2 * kHugePage) return populate(data, bytes);
  // Whole huge pages: two threads never meet in one.
  const size_t pages = (bytes + kHugePage - 1) / kHugePage;
  const size_t part = owner == PageOwner::kAllThreads ? 1 : (pages + threads - 1) / threads;
  const std::vector<int> order = interleave_nodes(
      owner == PageOwner::kAllThreads ? nodes_of(pool) : std::vector<int>(threads));
  std::atomic<bool> good{true};
  pool.run([&](int thread) {
    const auto turn =
        static_cast<size_t>(std::find(order.begin(), order.end(), thread) - order.begin());
    for (size_t page = turn * part; page < pages && good.load(std::memory_order_relaxed);
         page += threads * part) {
      const size_t begin = page * kHugePage;
      const size_t end = std::min(bytes, begin + part * kHugePage);
      if (!populate(static_cast<std::byte*>(data) + begin, end - begin)) good = false;
    }
  });
  return good;
}

template <typename Populate>
void* allocate_with(size_t bytes, const Populate& populate_pages) {
  if (bytes >= kMapFrom) {
    void* mapped = map_aligned(bytes);
    if (mapped != nullptr && !populate_pages(mapped, mapped_bytes(bytes))) {
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

/// The number in a one-line file; `otherwise` when there is none ("max", no such file).
uint64_t number_in_file(const char* path, uint64_t otherwise) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? value : otherwise;
}

}  // namespace

std::vector<int> interleave_nodes(const std::vector<int>& node_of_thread) {
  std::map<int, int> threads_on;
  for (const int node : node_of_thread) ++threads_on[node];
  // The k-th of n threads of a node comes at the place (k + 1/2) / n of the order.
  std::map<int, int> seen;
  std::vector<double> place;
  for (const int node : node_of_thread) {
    place.push_back((seen[node]++ + 0.5) / threads_on[node]);
  }
  std::vector<int> order(node_of_thread.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&place](int a, int b) {
    return place[static_cast<size_t>(a)] < place[static_cast<size_t>(b)];
  });
  return order;
}

void* host_memory_allocate(size_t bytes, PageOwner owner, ThreadPool& pool) {
  return allocate_with(bytes, [owner, &pool](void* data, size_t mapped) {
    return populate_together(data, mapped, owner, pool);
  });
}

void* host_memory_allocate(size_t bytes) { return allocate_with(bytes, populate); }

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
