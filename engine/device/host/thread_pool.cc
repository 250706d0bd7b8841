#include "engine/device/host/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <cstring>
#include <string>
#include <system_error>

#include "engine/core/error.h"

namespace galley::device {
namespace {

// About 20 microseconds: longer than the gap between two operations of a step.
constexpr int kSpins = 1000;

/// Waits until `value` differs from `old`: spins, then sleeps in the kernel.
uint32_t wait_for_change(const std::atomic<uint32_t>& value, uint32_t old, int num_spins) {
  for (int i = 0; i < num_spins; ++i) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    __builtin_ia32_pause();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

void bind(pthread_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  const int result = pthread_setaffinity_np(thread, sizeof set, &set);
  if (result != 0) {
    throw Error(Reason::kUsage, "cannot bind a thread to processor " + std::to_string(cpu) + ": " +
                                    std::strerror(result) +
                                    "; choose processors that this process may use");
  }
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, const std::vector<int>& cpus) : num_threads_(num_threads) {
  if (num_threads < 1) {
    throw Error(Reason::kUsage,
                "a host device needs at least 1 thread, not " + std::to_string(num_threads));
  }
  if (!cpus.empty() && cpus.size() < static_cast<size_t>(num_threads)) {
    throw Error(Reason::kUsage, std::to_string(num_threads) +
                                    " threads need as many processors, but " +
                                    std::to_string(cpus.size()) + " are given");
  }
  // With more threads than processors a spinning thread only keeps the others from working.
  const unsigned num_cpus = std::thread::hardware_concurrency();
  num_spins_ = static_cast<unsigned>(num_threads) <= num_cpus ? kSpins : 0;
  // Signals belong to the program's own threads.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  try {
    for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { work(i); });
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    if (!cpus.empty()) {
      cpu_set_t set;
      pthread_getaffinity_np(pthread_self(), sizeof set, &set);
      for (int i = 1; i < num_threads; ++i) bind(threads_[i - 1].native_handle(), cpus[i]);
      bind(pthread_self(), cpus[0]);
      old_binding_.resize(sizeof set);
      std::memcpy(old_binding_.data(), &set, sizeof set);
    }
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    const size_t started = threads_.size() + 1;
    stop();
    throw Error(Reason::kNoDevice, "cannot start thread " + std::to_string(started + 1) + " of " +
                                       std::to_string(num_threads) +
                                       " of a host device: " + error.what() +
                                       "; ask for fewer threads or raise the limit of processes");
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  stop();
  if (old_binding_.empty()) return;
  cpu_set_t set;
  std::memcpy(&set, old_binding_.data(), sizeof set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

void ThreadPool::stop() noexcept {
  stopping_ = true;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void ThreadPool::run_raw(RawBody call, const void* body) {
  if (num_threads_ == 1) {
    call(body, 0);
    return;
  }
  call_ = call;
  body_ = body;
  num_running_.store(static_cast<uint32_t>(num_threads_ - 1), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  call(body, 0);
  uint32_t running = num_running_.load(std::memory_order_acquire);
  while (running != 0) running = wait_for_change(num_running_, running, num_spins_);
}

void ThreadPool::work(int thread) {
  uint32_t generation = 0;
  while (true) {
    generation = wait_for_change(generation_, generation, num_spins_);
    if (stopping_) return;
    call_(body_, thread);
    if (num_running_.fetch_sub(1, std::memory_order_acq_rel) == 1) num_running_.notify_one();
  }
}

}  // namespace galley::device
