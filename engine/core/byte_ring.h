// ByteRing and Doorbell: what two workers share to pass bytes and to sleep, in shared memory.
//
// A ring has one writer and one reader and no lock: each owns a counter, which only it changes, so
// a killed process leaves nothing held. A doorbell belongs to one worker, who sleeps on it; its
// peers ring it. All are views of memory that somebody else owns; zeroed memory is an empty ring.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace galley {

static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

/// Bytes since the beginning; each on a cache line of its own.
struct RingCounters {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> consumed;
};

class ByteRing {
 public:
  ByteRing() = default;
  ByteRing(RingCounters* counters, std::byte* data, size_t capacity)
      : counters_(counters), data_(data), capacity_(capacity) {}
  size_t capacity() const { return capacity_; }

  // The writer's:
  size_t room() const { return capacity_ - used(); }
  /// Takes what there is room for; returns how many bytes.
  size_t write(const void* data, size_t bytes);
  /// Both pieces appear to the reader at once. There must be room.
  void write_together(std::span<const std::byte> first, std::span<const std::byte> second);

  // The reader's:
  size_t available() const { return used(); }
  /// The bytes up to the end of the memory, in place.
  std::span<const std::byte> readable() const;
  /// Copies bytes [offset, offset + bytes) of what is available.
  void peek(size_t offset, void* to, size_t bytes) const;
  void consume(size_t bytes);

 private:
  size_t used() const;
  void put(uint64_t position, const std::byte* data, size_t bytes);

  RingCounters* counters_ = nullptr;
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
};

class Doorbell {
 public:
  /// Changes with every ring.
  uint32_t count() const { return count_.load(std::memory_order_acquire); }
  /// Wakes the owner, if it sleeps.
  void ring() noexcept;
  /// The owner's: sleeps until count() differs from `seen`, or for `timeout_ms`, or for no reason.
  void sleep(uint32_t seen, int timeout_ms);

 private:
  alignas(64) std::atomic<uint32_t> count_;
  std::atomic<uint32_t> sleeping_;
};

}  // namespace galley
