// ThreadPool: the threads of one host device; the caller is thread 0.
//
// Owned by the device and used by its one worker thread. run() gives every thread its index and
// returns when all are done; nothing is allocated per call. Idle threads spin briefly and then
// sleep, so that a crowded machine is not held up by waiting threads; with more threads than
// processors they sleep at once. Bodies must not throw.
// While a bound pool lives its caller is bound too: threads that the caller starts inherit that
// (those of another pool do not).
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "engine/core/processors.h"

namespace galley::device {

/// Where the threads of a pool go that was given no processors: one core each when they take all
/// cores of `allowed` (left alone, systems keep two threads on one core for seconds when others use
/// the machine); empty when cores stay free or a quota limits, then the system places them better.
std::vector<int> spread_over_cores(int num_threads, const std::vector<Processor>& allowed,
                                   double quota);

class ThreadPool {
 public:
  /// Starts num_threads - 1 threads. `cpus`: at least num_threads processor numbers, thread i is
  /// bound to cpus[i] and the caller's old binding comes back at the end; or empty: as
  /// spread_over_cores() says of all that this process may use. Error(kUsage) when a binding is
  /// refused, Error(kNoDevice) when a thread cannot be started.
  ThreadPool(int num_threads, const std::vector<int>& cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return num_threads_; }

  /// body(thread_index) on every thread.
  template <typename Body>
  void run(const Body& body) {
    run_raw([](const void* b, int thread) { (*static_cast<const Body*>(b))(thread); }, &body);
  }

  /// body(begin, end, thread_index) over a fixed partition of [0, count) into contiguous parts
  /// whose sizes are multiples of `grain`; small counts stay on few threads.
  template <typename Body>
  void parallel_for(int64_t count, int64_t grain, const Body& body) {
    if (count <= 0) return;
    const int64_t grains = (count + grain - 1) / grain;
    const int64_t parts = grains < num_threads_ ? grains : num_threads_;
    if (parts == 1) {
      body(int64_t{0}, count, 0);
      return;
    }
    run([&](int thread) {
      const int64_t begin = grains * thread / parts * grain;
      const int64_t end = grains * (thread + 1) / parts * grain;
      if (thread < parts && begin < count) body(begin, end < count ? end : count, thread);
    });
  }

 private:
  using RawBody = void (*)(const void* body, int thread);
  void run_raw(RawBody call, const void* body);
  void start_threads();
  void bind_all(const std::vector<int>& cpus);
  void work(int thread);
  void stop() noexcept;

  const int num_threads_;
  uint64_t spin_cycles_ = 0;  // of the time stamp counter
  std::vector<std::thread> threads_;
  std::vector<uint8_t> old_binding_;  // of the caller; empty when it was not changed
  // Written by the caller before generation_ grows, read by the threads after it.
  RawBody call_ = nullptr;
  const void* body_ = nullptr;
  bool stopping_ = false;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<uint32_t> num_running_{0};
};

}  // namespace galley::device
