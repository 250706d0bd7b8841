// The workers of a group as threads of a test.
#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/core/group_transport.h"

namespace galley::testing {

/// Runs `body` with each worker's transport in a thread of its own. One that throws ends the waits
/// of all; the first exception is thrown again.
inline void run_worker_threads(int size, size_t ring_bytes,
                               const std::function<void(GroupTransport*)>& body) {
  auto transports = make_thread_transports(size, ring_bytes);
  std::mutex mutex;
  std::exception_ptr first;  // guarded by mutex
  std::vector<std::thread> threads;
  for (auto& transport : transports) {
    threads.emplace_back([&, transport = transport.get()] {
      try {
        body(transport);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (first == nullptr) first = std::current_exception();
        transport->abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace galley::testing
