#include "engine/core/pending_sends.h"

#include "engine/core/group_transport.h"

namespace galley {

uint64_t PendingSends::add(GroupTransport& transport, int to, const void* data, size_t bytes) {
  if (peers_.empty()) peers_.resize(static_cast<size_t>(transport.size()));
  Peer& peer = peers_[static_cast<size_t>(to)];
  if (bytes > 0) {
    const auto* begin = static_cast<const std::byte*>(data);
    const bool joins = peer.first < peer.pieces.size() &&
                       peer.pieces.back().data + peer.pieces.back().bytes == begin;
    if (joins) {
      peer.pieces.back().bytes += bytes;
    } else {
      peer.pieces.push_back({begin, bytes});
    }
    peer.given += bytes;
    pending_bytes_ += bytes;
    progress_peer(transport, to, &peer);
  }
  return peer.given;
}

bool PendingSends::progress(GroupTransport& transport) {
  if (empty()) return false;
  bool moved = false;
  for (size_t to = 0; to < peers_.size(); ++to) {
    moved |= progress_peer(transport, static_cast<int>(to), &peers_[to]);
  }
  return moved;
}

// A list that never runs empty must not grow for ever.
void PendingSends::drop_done(Peer* peer) {
  constexpr size_t kDone = 64;
  if (peer->first < kDone || peer->first < peer->pieces.size() / 2) return;
  peer->pieces.erase(peer->pieces.begin(),
                     peer->pieces.begin() + static_cast<ptrdiff_t>(peer->first));
  peer->first = 0;
}

bool PendingSends::progress_peer(GroupTransport& transport, int to, Peer* peer) {
  bool moved = false;
  while (peer->first < peer->pieces.size()) {
    Piece& piece = peer->pieces[peer->first];
    const size_t taken = transport.try_write(to, piece.data, piece.bytes);
    if (taken == 0) return moved;
    moved = true;
    piece.data += taken;
    piece.bytes -= taken;
    peer->sent += taken;
    pending_bytes_ -= taken;
    if (piece.bytes == 0) ++peer->first;
    drop_done(peer);
  }
  peer->pieces.clear();
  peer->first = 0;
  return moved;
}

uint64_t PendingSends::sent(int to) const {
  return peers_.empty() ? 0 : peers_[static_cast<size_t>(to)].sent;
}

void PendingSends::drop() noexcept {
  for (Peer& peer : peers_) {
    peer.pieces.clear();
    peer.first = 0;
  }
  pending_bytes_ = 0;
}

}  // namespace galley
