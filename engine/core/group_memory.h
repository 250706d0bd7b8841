// GroupMemory: the rings and doorbells of the workers of one group on one node.
//
// Layout: head (abort word), a doorbell per worker, the counters of all rings, then the rings, each
// on pages of its own. `from` and `to` are indices among the workers of this node. One object per
// process (the threads of one process share it); the members are used as byte_ring.h says.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/core/byte_ring.h"
#include "engine/core/shared_memory.h"

namespace galley {

class GroupMemory {
 public:
  /// New memory for at least two workers.
  GroupMemory(int workers, size_t ring_bytes);
  /// That of another process.
  GroupMemory(FileDescriptor fd, int workers, size_t ring_bytes);

  uint64_t bytes() const { return memory_.bytes(); }
  int fd() const { return memory_.fd(); }
  void close_descriptor() { memory_.close_descriptor(); }
  int workers() const { return workers_; }
  ByteRing ring(int from, int to) const;
  Doorbell* doorbell(int worker) const;
  std::atomic<uint32_t>& aborted() const;

 private:
  int workers_;
  size_t ring_bytes_;
  SharedMemory memory_;
};

}  // namespace galley
