#include "engine/core/group_memory.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/group_transport.h"

namespace galley {
namespace {

constexpr size_t kHeadBytes = 64;  // the abort word

uint64_t num_rings(int workers) {
  return static_cast<uint64_t>(workers) * static_cast<uint64_t>(workers - 1);
}

uint64_t rings_offset(int workers) {
  return whole_pages(kHeadBytes + static_cast<uint64_t>(workers) * sizeof(Doorbell) +
                     num_rings(workers) * sizeof(RingCounters));
}

}  // namespace

size_t group_ring_bytes(uint64_t message_bytes) {
  constexpr uint64_t kLeast = 64 << 10, kMost = 8 << 20;
  return whole_pages(std::clamp(message_bytes, kLeast, kMost));
}

uint64_t group_memory_bytes(int workers_on_node, size_t ring_bytes) {
  if (workers_on_node < 2) return 0;
  return rings_offset(workers_on_node) + num_rings(workers_on_node) * whole_pages(ring_bytes);
}

GroupMemory::GroupMemory(int workers, size_t ring_bytes)
    : workers_(workers),
      ring_bytes_(whole_pages(ring_bytes)),
      memory_(SharedMemory::make(group_memory_bytes(workers, ring_bytes))) {}

GroupMemory::GroupMemory(FileDescriptor fd, int workers, size_t ring_bytes)
    : workers_(workers), ring_bytes_(whole_pages(ring_bytes)) {
  const uint64_t bytes = group_memory_bytes(workers, ring_bytes);
  memory_ = SharedMemory::map(std::move(fd), bytes, bytes);
}

std::atomic<uint32_t>& GroupMemory::aborted() const {
  return *reinterpret_cast<std::atomic<uint32_t>*>(memory_.data());
}

Doorbell* GroupMemory::doorbell(int worker) const {
  GALLEY_CHECK(worker >= 0 && worker < workers_);
  return reinterpret_cast<Doorbell*>(memory_.data() + kHeadBytes) + worker;
}

ByteRing GroupMemory::ring(int from, int to) const {
  GALLEY_CHECK(from >= 0 && from < workers_ && to >= 0 && to < workers_ && from != to);
  const int index = from * (workers_ - 1) + (to < from ? to : to - 1);
  auto* counters = reinterpret_cast<RingCounters*>(
      memory_.data() + kHeadBytes + static_cast<size_t>(workers_) * sizeof(Doorbell));
  std::byte* rings = memory_.data() + rings_offset(workers_);
  return {counters + index, rings + static_cast<size_t>(index) * ring_bytes_, ring_bytes_};
}

}  // namespace galley
