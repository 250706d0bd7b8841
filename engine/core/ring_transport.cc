#include "engine/core/ring_transport.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/core/clock.h"
#include "engine/core/error.h"

namespace galley {
namespace {

constexpr int kSleepMs = 50;
constexpr double kCheckEvery_s = 0.1;
// A few microseconds: about what a sleep and its end cost.
constexpr int kSpins = 64;

void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

RingTransport::RingTransport(Parts parts) : parts_(std::move(parts)) {
  peers_.resize(parts_.local_index.size());
  const int own = parts_.local_index.at(static_cast<size_t>(parts_.rank));
  int num_local = 0;
  for (size_t i = 0; i < peers_.size(); ++i) {
    const int index = parts_.local_index[i];
    if (index < 0) continue;
    ++num_local;
    Peer& peer = peers_[i];
    peer.local = true;
    peer.bell = bell_of(static_cast<int>(i));
    if (index == own) continue;
    peer.out = parts_.memory->ring(own, index);
    peer.in = parts_.memory->ring(index, own);
  }
  bell_ = bell_of(parts_.rank);
  seen_ = bell_->count();
  // Who spins while a peer wants the processor only delays it. The machine's processors count, not
  // those of this process: each worker may be bound to one of its own.
  spins_ = num_local <= ::sysconf(_SC_NPROCESSORS_ONLN) ? kSpins : 0;
}

Doorbell* RingTransport::bell_of(int rank) {
  const int index = parts_.local_index[static_cast<size_t>(rank)];
  if (rank == parts_.rank && parts_.relay) return parts_.relay->doorbell();
  if (!parts_.neighbours.empty()) return parts_.neighbours[static_cast<size_t>(index)].doorbell();
  return parts_.memory ? parts_.memory->doorbell(index) : &own_bell_;
}

RingTransport::Peer& RingTransport::peer(int rank) {
  GALLEY_CHECK(rank >= 0 && rank < size() && rank != parts_.rank);
  return peers_[static_cast<size_t>(rank)];
}

size_t RingTransport::try_write(int to, const void* data, size_t bytes) {
  Peer& p = peer(to);
  if (p.local) {
    const size_t taken = p.out.write(data, bytes);
    if (taken > 0) p.bell->ring();
    return taken;
  }
  size_t taken = 0;
  const std::span all(static_cast<const std::byte*>(data), bytes);
  while (taken < bytes) {
    const size_t frame = RelayRings::write_frame(parts_.relay->up(), to, all.subspan(taken));
    if (frame == 0) break;
    taken += frame;
  }
  return taken;
}

std::span<const std::byte> RingTransport::readable(int from) {
  Peer& p = peer(from);
  if (p.local) return p.in.readable();
  if (p.queue_begin == p.queue.size()) take_frames();
  return std::span<const std::byte>(p.queue).subspan(p.queue_begin);
}

void RingTransport::consume(int from, size_t bytes) {
  Peer& p = peer(from);
  if (bytes == 0) return;
  if (p.local) {
    p.in.consume(bytes);
    p.bell->ring();
    return;
  }
  GALLEY_CHECK(bytes <= p.queue.size() - p.queue_begin);
  p.queue_begin += bytes;
  if (p.queue_begin < p.queue.size()) return;
  p.queue.clear();  // keeps its memory
  p.queue_begin = 0;
}

// Whoever is asked for may stand behind frames of others, so all are taken.
void RingTransport::take_frames() {
  ByteRing down = parts_.relay->down();
  while (const std::optional<RelayFrameHead> head = RelayRings::next_frame(down)) {
    Peer& from = peer(static_cast<int>(head->peer));
    GALLEY_CHECK(!from.local);
    if (from.queue_begin > from.queue.size() / 2) {  // one that never runs empty must not grow
      from.queue.erase(from.queue.begin(),
                       from.queue.begin() + static_cast<ptrdiff_t>(from.queue_begin));
      from.queue_begin = 0;
    }
    const size_t end = from.queue.size();
    from.queue.resize(end + head->bytes);
    down.peek(sizeof *head, from.queue.data() + end, head->bytes);
    down.consume(sizeof *head + head->bytes);
  }
}

void RingTransport::throw_if_aborted() const {
  const bool group = parts_.memory && parts_.memory->aborted().load(std::memory_order_acquire) != 0;
  if (group || aborted_.load(std::memory_order_acquire)) {
    throw Error(Reason::kWorkerDied, "a worker of this group has ended before its work was done");
  }
}

void RingTransport::check_now_and_then() {
  if (!check_) return;
  const double now_s = seconds_of(CLOCK_MONOTONIC);
  if (now_s - checked_at_s_ < kCheckEvery_s) return;
  checked_at_s_ = now_s;
  check_();
}

void RingTransport::wait() {
  throw_if_aborted();
  check_now_and_then();
  uint32_t count = bell_->count();
  for (int i = 0; count == seen_ && i < spins_; ++i) {
    pause_processor();
    count = bell_->count();
  }
  if (count == seen_) {
    bell_->sleep(seen_, kSleepMs);
    count = bell_->count();
  }
  seen_ = count;
  throw_if_aborted();
}

void RingTransport::abort() noexcept {
  aborted_.store(true, std::memory_order_release);
  if (parts_.memory) parts_.memory->aborted().store(1, std::memory_order_release);
  for (Peer& peer : peers_) {
    if (peer.bell != nullptr) peer.bell->ring();
  }
}

void RingTransport::set_wait_check(std::function<void()> check) {
  check_ = std::move(check);
  checked_at_s_ = 0;
}

uint64_t RingTransport::shared_bytes() const {
  return (parts_.memory ? parts_.memory->bytes() : 0) + (parts_.relay ? parts_.relay->bytes() : 0);
}

std::vector<std::unique_ptr<GroupTransport>> make_thread_transports(int size, size_t ring_bytes) {
  GALLEY_CHECK(size >= 1);
  std::shared_ptr<GroupMemory> memory;
  if (size > 1) {
    memory = std::make_shared<GroupMemory>(size, ring_bytes);
    memory->close_descriptor();
  }
  std::vector<std::unique_ptr<GroupTransport>> transports;
  for (int rank = 0; rank < size; ++rank) {
    RingTransport::Parts parts;
    parts.rank = rank;
    for (int i = 0; i < size; ++i) parts.local_index.push_back(i);
    parts.memory = memory;
    transports.push_back(std::make_unique<RingTransport>(std::move(parts)));
  }
  return transports;
}

}  // namespace galley
