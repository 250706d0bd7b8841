// RelayRings: the shared memory of one worker and its agent, through which a worker reaches peers
// on other nodes.
//
// Layout: head (magic, bytes of a ring, the worker's doorbell), then the ring up to the agent and
// the ring down to the worker. Both carry frames: {peer, bytes} and that many bytes, never torn.
// Each side has its own object; its ends are used by one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/core/byte_ring.h"
#include "engine/core/shared_memory.h"

namespace galley {

struct RelayFrameHead {
  uint32_t peer = 0;  // group rank: to (up), from (down)
  uint32_t bytes = 0;
};

class RelayRings {
 public:
  /// So much at most in a frame, so that others' frames get between those of a long message.
  static constexpr size_t kMaxFrameBytes = 256 << 10;

  /// The agent's: new memory.
  explicit RelayRings(size_t ring_bytes);
  /// The worker's; Error(kInternal) when this is no such memory.
  static RelayRings open(FileDescriptor fd);
  /// A neighbour's, who only rings the doorbell.
  static RelayRings open_doorbell(FileDescriptor fd);

  uint64_t bytes() const { return memory_.bytes(); }
  int fd() const { return memory_.fd(); }
  void close_descriptor() { memory_.close_descriptor(); }
  Doorbell* doorbell() const;
  ByteRing up() const { return ring(0); }
  ByteRing down() const { return ring(1); }

  /// Writes one frame of as many of the bytes as fit; returns how many. None rather than few, so
  /// that a busy ring does not fall to dust.
  static size_t write_frame(ByteRing ring, int peer, std::span<const std::byte> bytes);
  /// Head of the next frame, whose bytes follow it in the ring.
  static std::optional<RelayFrameHead> next_frame(const ByteRing& ring);

 private:
  enum class Extent { kHeadOnly, kAll };
  RelayRings(FileDescriptor fd, Extent extent);
  ByteRing ring(size_t index) const;

  SharedMemory memory_;
  size_t ring_bytes_ = 0;
};

}  // namespace galley
