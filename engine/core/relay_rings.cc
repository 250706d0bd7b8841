#include "engine/core/relay_rings.h"

#include <algorithm>
#include <cstring>

#include "engine/core/error.h"
#include "engine/core/group_transport.h"

namespace galley {
namespace {

constexpr uint64_t kMagic = 0x79616c6572796c67;  // "glyrelay"

struct Head {
  uint64_t magic;
  uint64_t ring_bytes;
  Doorbell doorbell;
  RingCounters counters[2];
};
static_assert(sizeof(Head) <= kPageBytes);

Head* head_of(const SharedMemory& memory) { return reinterpret_cast<Head*>(memory.data()); }

}  // namespace

uint64_t relay_memory_bytes(size_t ring_bytes) { return kPageBytes + 2 * whole_pages(ring_bytes); }

RelayRings::RelayRings(size_t ring_bytes)
    : memory_(SharedMemory::make(relay_memory_bytes(ring_bytes))),
      ring_bytes_(whole_pages(ring_bytes)) {
  head_of(memory_)->magic = kMagic;
  head_of(memory_)->ring_bytes = ring_bytes_;
}

RelayRings::RelayRings(FileDescriptor fd, Extent extent) {
  const uint64_t total = SharedMemory::bytes_of(fd);
  memory_ = SharedMemory::map(std::move(fd), total, std::min<uint64_t>(total, kPageBytes));
  ring_bytes_ = head_of(memory_)->ring_bytes;
  if (head_of(memory_)->magic != kMagic || total != relay_memory_bytes(ring_bytes_)) {
    throw Error(Reason::kInternal, "the memory that a group's worker was given is no relay");
  }
  if (extent == Extent::kAll) memory_ = SharedMemory::map(memory_.take_descriptor(), total, total);
}

RelayRings RelayRings::open(FileDescriptor fd) { return {std::move(fd), Extent::kAll}; }
RelayRings RelayRings::open_doorbell(FileDescriptor fd) {
  return {std::move(fd), Extent::kHeadOnly};
}

Doorbell* RelayRings::doorbell() const { return &head_of(memory_)->doorbell; }

ByteRing RelayRings::ring(size_t index) const {
  return {&head_of(memory_)->counters[index], memory_.data() + kPageBytes + index * ring_bytes_,
          ring_bytes_};
}

size_t RelayRings::write_frame(ByteRing ring, int peer, std::span<const std::byte> bytes) {
  const size_t room = ring.room();
  const size_t wanted = std::min(bytes.size(), kMaxFrameBytes);
  if (room <= sizeof(RelayFrameHead) || wanted == 0) return 0;
  // Multiples of 8, so that numbers in a message stay whole and aligned.
  const size_t taken = std::min(wanted, (room - sizeof(RelayFrameHead)) / 8 * 8);
  if (taken == 0 || (taken < wanted && taken < ring.capacity() / 4)) return 0;
  const RelayFrameHead head{static_cast<uint32_t>(peer), static_cast<uint32_t>(taken)};
  ring.write_together(std::as_bytes(std::span(&head, 1)), bytes.first(taken));
  return taken;
}

std::optional<RelayFrameHead> RelayRings::next_frame(const ByteRing& ring) {
  if (ring.available() == 0) return std::nullopt;
  RelayFrameHead head;
  ring.peek(0, &head, sizeof head);
  return head;
}

}  // namespace galley
