#include <deque>
#include <utility>

#include "engine/core/group_transport.h"
#include "engine/core/relay_rings.h"

namespace galley {

struct RelayPort::Rings {
  explicit Rings(size_t ring_bytes) : memory(ring_bytes) {}

  RelayRings memory;
  std::deque<Frame> queue;
  size_t begun = 0;  // bytes of the first frame that the worker has
  uint64_t queued_bytes = 0;
};

RelayPort::RelayPort(size_t ring_bytes) : rings_(std::make_unique<Rings>(ring_bytes)) {}
RelayPort::~RelayPort() = default;

int RelayPort::fd() const { return rings_->memory.fd(); }

std::optional<RelayPort::Frame> RelayPort::pop() {
  ByteRing up = rings_->memory.up();
  const std::optional<RelayFrameHead> head = RelayRings::next_frame(up);
  if (!head) return std::nullopt;
  Frame frame{static_cast<int>(head->peer), std::string(head->bytes, '\0')};
  up.peek(sizeof *head, frame.bytes.data(), frame.bytes.size());
  up.consume(sizeof *head + frame.bytes.size());
  rings_->memory.doorbell()->ring();
  return frame;
}

void RelayPort::push(int from, std::string bytes) {
  if (bytes.empty()) return;
  rings_->queued_bytes += bytes.size();
  rings_->queue.push_back({from, std::move(bytes)});
  flush();
}

bool RelayPort::flush() {
  bool moved = false;
  while (!rings_->queue.empty()) {
    const Frame& frame = rings_->queue.front();
    const auto rest = std::as_bytes(std::span(frame.bytes)).subspan(rings_->begun);
    const size_t taken = RelayRings::write_frame(rings_->memory.down(), frame.peer, rest);
    if (taken == 0) break;
    moved = true;
    rings_->begun += taken;
    rings_->queued_bytes -= taken;
    if (taken < rest.size()) continue;
    rings_->queue.pop_front();
    rings_->begun = 0;
  }
  if (moved) rings_->memory.doorbell()->ring();
  return moved;
}

uint64_t RelayPort::queued_bytes() const { return rings_->queued_bytes; }

}  // namespace galley
