#include "engine/core/byte_ring.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "engine/core/error.h"

namespace galley {

size_t ByteRing::used() const {
  const uint64_t consumed = counters_->consumed.load(std::memory_order_acquire);
  const uint64_t used = counters_->written.load(std::memory_order_acquire) - consumed;
  GALLEY_CHECK(used <= capacity_);
  return used;
}

void ByteRing::put(uint64_t position, const std::byte* data, size_t bytes) {
  if (bytes == 0) return;
  const size_t at = position % capacity_;
  const size_t before_end = std::min(bytes, capacity_ - at);
  std::memcpy(data_ + at, data, before_end);
  if (bytes > before_end) std::memcpy(data_, data + before_end, bytes - before_end);
}

size_t ByteRing::write(const void* data, size_t bytes) {
  bytes = std::min(bytes, room());
  if (bytes == 0) return 0;
  const uint64_t written = counters_->written.load(std::memory_order_relaxed);
  put(written, static_cast<const std::byte*>(data), bytes);
  counters_->written.store(written + bytes, std::memory_order_release);
  return bytes;
}

void ByteRing::write_together(std::span<const std::byte> first, std::span<const std::byte> second) {
  GALLEY_CHECK(first.size() + second.size() <= room());
  const uint64_t written = counters_->written.load(std::memory_order_relaxed);
  put(written, first.data(), first.size());
  put(written + first.size(), second.data(), second.size());
  counters_->written.store(written + first.size() + second.size(), std::memory_order_release);
}

std::span<const std::byte> ByteRing::readable() const {
  const size_t at = counters_->consumed.load(std::memory_order_relaxed) % capacity_;
  return {data_ + at, std::min(used(), capacity_ - at)};
}

void ByteRing::peek(size_t offset, void* to, size_t bytes) const {
  GALLEY_CHECK(offset + bytes <= used());
  const size_t at = (counters_->consumed.load(std::memory_order_relaxed) + offset) % capacity_;
  const size_t before_end = std::min(bytes, capacity_ - at);
  std::memcpy(to, data_ + at, before_end);
  std::memcpy(static_cast<std::byte*>(to) + before_end, data_, bytes - before_end);
}

void ByteRing::consume(size_t bytes) {
  GALLEY_CHECK(bytes <= used());
  const uint64_t consumed = counters_->consumed.load(std::memory_order_relaxed);
  counters_->consumed.store(consumed + bytes, std::memory_order_release);
}

// Between "count, then is somebody asleep?" here and "asleep, then has the count changed?" in
// sleep() one side sees the other: all four are in one order (sequentially consistent), and the
// kernel compares the count once more under its own lock.
void Doorbell::ring() noexcept {
  count_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst) == 0) return;
  // Not the private kind: the sleeper may be another process.
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&count_), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void Doorbell::sleep(uint32_t seen, int timeout_ms) {
  timespec timeout{timeout_ms / 1000, static_cast<long>(timeout_ms % 1000) * 1'000'000};
  sleeping_.store(1, std::memory_order_seq_cst);
  if (count_.load(std::memory_order_seq_cst) == seen) {
    ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&count_), FUTEX_WAIT, seen, &timeout, nullptr,
              0);
  }
  sleeping_.store(0, std::memory_order_seq_cst);
}

}  // namespace galley
