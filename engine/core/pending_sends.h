// PendingSends: bytes given to a transport's peers that its rings have not taken yet.
//
// One per transport, whoever sends: so the bytes of a pair keep their order, and whoever waits for
// whatever reason moves everybody's sends on. Bytes are borrowed until sent() has passed the mark
// that add() returned. Owned by the transport, used by its thread. Allocates only while its lists
// grow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace galley {

class GroupTransport;

class PendingSends {
 public:
  /// Queues bytes for a peer and writes what fits now. Returns the mark of their end: the bytes
  /// ever given for this peer.
  uint64_t add(GroupTransport& transport, int to, const void* data, size_t bytes);
  /// Writes what the rings take; true when something moved.
  bool progress(GroupTransport& transport);
  /// Bytes that a peer's ring has taken so far.
  uint64_t sent(int to) const;
  bool empty() const { return pending_bytes_ == 0; }
  /// Forgets what is borrowed, when a wait has ended with an exception and the buffers may go: the
  /// streams are torn, and the group can only be ended.
  void drop() noexcept;

 private:
  struct Piece {
    const std::byte* data;
    size_t bytes;
  };
  struct Peer {
    std::vector<Piece> pieces;
    size_t first = 0;  // of the pieces that are not done
    uint64_t given = 0, sent = 0;
  };
  static void drop_done(Peer* peer);
  bool progress_peer(GroupTransport& transport, int to, Peer* peer);

  std::vector<Peer> peers_;
  uint64_t pending_bytes_ = 0;
};

}  // namespace galley
