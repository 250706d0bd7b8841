#include "engine/device/host/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <cstring>
#include <set>
#include <string>
#include <system_error>

#include "engine/core/error.h"

namespace galley::device {
namespace {

// 40 to 75 microseconds: as long as it takes to wake a sleeping thread, and longer than the gap
// between two operations of a step. Counted in cycles because a pause takes 3 to 140 of them.
constexpr uint64_t kSpinCycles = 150'000;

/// Waits until `value` differs from `old`: spins, then sleeps in the kernel.
uint32_t wait_for_change(const std::atomic<uint32_t>& value, uint32_t old, uint64_t spin_cycles) {
  const uint64_t begin = __builtin_ia32_rdtsc();
  do {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    __builtin_ia32_pause();
  } while (__builtin_ia32_rdtsc() - begin < spin_cycles);
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

/// 0, or the error number.
int set_binding(pthread_t thread, const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(static_cast<size_t>(cpu), &set);
  }
  return pthread_setaffinity_np(thread, sizeof set, &set);
}

void bind(pthread_t thread, int cpu) {
  if (const int error = set_binding(thread, {cpu}); error != 0) {
    throw Error(Reason::kUsage, "cannot bind a thread to processor " + std::to_string(cpu) + ": " +
                                    std::strerror(error) +
                                    "; choose processors that this process may use");
  }
}

}  // namespace

std::vector<int> spread_over_cores(int num_threads, const std::vector<Processor>& allowed,
                                   double quota) {
  if (num_threads < 2 || count_cores(allowed) != num_threads) return {};
  if (quota > 0 && quota < num_threads) return {};
  std::set<int> taken;
  std::vector<int> cpus;
  for (const Processor& processor : allowed) {
    if (taken.insert(processor.core).second) cpus.push_back(processor.cpu);
  }
  return cpus;
}

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
  if (num_threads == 1 && cpus.empty()) return;
  const std::vector<Processor> allowed = describe_processors(allowed_cpus());
  const double quota = cpu_quota();
  const std::vector<int> places =
      cpus.empty() ? spread_over_cores(num_threads, allowed, quota) : cpus;
  // A spinning thread is in the way of one that shares its processor.
  const int processors = places.empty()
                             ? useful_threads(allowed, quota)
                             : static_cast<int>(std::set(places.begin(), places.end()).size());
  if (num_threads <= processors) spin_cycles_ = kSpinCycles;
  try {
    start_threads();
    if (!places.empty()) {
      bind_all(places);
    } else {
      // A caller that another pool has bound does not hold these on its one core.
      std::vector<int> all;
      for (const Processor& processor : allowed) all.push_back(processor.cpu);
      for (std::thread& thread : threads_) set_binding(thread.native_handle(), all);
    }
  } catch (...) {
    stop();
    throw;
  }
}

void ThreadPool::start_threads() {
  // Signals belong to the program's own threads.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  try {
    for (int i = 1; i < num_threads_; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    throw Error(Reason::kNoDevice, "cannot start thread " + std::to_string(threads_.size() + 2) +
                                       " of " + std::to_string(num_threads_) +
                                       " of a host device: " + error.what() +
                                       "; ask for fewer threads or raise the limit of processes");
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

void ThreadPool::bind_all(const std::vector<int>& cpus) {
  cpu_set_t set;
  pthread_getaffinity_np(pthread_self(), sizeof set, &set);
  for (size_t i = 0; i < threads_.size(); ++i) bind(threads_[i].native_handle(), cpus[i + 1]);
  bind(pthread_self(), cpus[0]);
  old_binding_.resize(sizeof set);
  std::memcpy(old_binding_.data(), &set, sizeof set);
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
  while (running != 0) running = wait_for_change(num_running_, running, spin_cycles_);
}

void ThreadPool::work(int thread) {
  uint32_t generation = 0;
  while (true) {
    generation = wait_for_change(generation_, generation, spin_cycles_);
    if (stopping_) return;
    call_(body_, thread);
    if (num_running_.fetch_sub(1, std::memory_order_acq_rel) == 1) num_running_.notify_one();
  }
}

}  // namespace galley::device
