#include "engine/device/host/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

#include "engine/core/error.h"

namespace galley::device {
namespace {

TEST(ThreadPool, every_thread_runs_once_per_call) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads, {});
    std::vector<int> runs(static_cast<size_t>(threads));
    for (int i = 0; i < 100; ++i)
      pool.run([&](int thread) { ++runs[static_cast<size_t>(thread)]; });
    for (const int count : runs) EXPECT_EQ(count, 100);
  }
}

TEST(ThreadPool, pain_P177_a_thread_limit_is_explained_and_one_thread_needs_none) {
  // More stacks than the address space that is left can hold (a few may be cached).
  rlimit old_space = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &old_space), 0);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need the address space";
#endif
  rlimit tight = old_space;
  tight.rlim_cur = 1 << 20;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  Reason reason = Reason::kOk;
  int runs = 0;
  try {
    ThreadPool(64, {});
  } catch (const Error& error) {
    reason = error.reason();
  }
  ThreadPool(1, {}).run([&](int) { ++runs; });
  ASSERT_EQ(setrlimit(RLIMIT_AS, &old_space), 0);
  EXPECT_EQ(reason, Reason::kNoDevice);
  EXPECT_EQ(runs, 1);
}

TEST(ThreadPool, partition_covers_everything_once_and_is_the_same_each_time) {
  ThreadPool pool(3, {});
  for (const int64_t count : {1, 2, 3, 7, 64, 1000, 1001}) {
    for (const int64_t grain : {1, 5, 64}) {
      std::vector<int> first(static_cast<size_t>(count), -1);
      for (int repeat = 0; repeat < 3; ++repeat) {
        std::vector<int> owner(static_cast<size_t>(count), -1);
        pool.parallel_for(count, grain, [&](int64_t begin, int64_t end, int thread) {
          EXPECT_EQ(begin % grain, 0);
          for (int64_t i = begin; i < end; ++i) owner[static_cast<size_t>(i)] = thread;
        });
        for (const int thread : owner) EXPECT_GE(thread, 0);
        if (repeat == 0) first = owner;
        EXPECT_EQ(owner, first);
      }
    }
  }
}

TEST(ThreadPool, small_counts_stay_on_the_caller) {
  ThreadPool pool(4, {});
  const auto caller = std::this_thread::get_id();
  for (const int64_t count : {1, 63, 64}) {
    int calls = 0;
    pool.parallel_for(count, 64, [&](int64_t begin, int64_t end, int thread) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      EXPECT_EQ(thread, 0);
      EXPECT_EQ(begin, 0);
      EXPECT_EQ(end, count);
      ++calls;
    });
    EXPECT_EQ(calls, 1);
  }
}

/// Processor time of this process.
double processor_seconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(ThreadPool, idle_threads_sleep_with_and_without_a_core_each) {
  for (const int threads : {2, 16}) {
    ThreadPool pool(threads, {});
    std::atomic<int> runs{0};
    for (int i = 0; i < 20; ++i) pool.run([&](int) { ++runs; });
    EXPECT_EQ(runs, 20 * threads);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const double before = processor_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_LT(processor_seconds() - before, 0.02) << threads;  // spinning would take 0.2 or more
  }
}

TEST(ThreadPool, binds_threads_and_gives_the_callers_binding_back) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  {
    ThreadPool pool(2, {cpu, cpu});
    std::atomic<int> bound{0};
    pool.run([&](int) {
      cpu_set_t now;
      sched_getaffinity(0, sizeof now, &now);
      if (CPU_COUNT(&now) == 1 && CPU_ISSET(cpu, &now)) ++bound;
    });
    EXPECT_EQ(bound, 2);
  }
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(ThreadPool, spreads_over_cores_when_it_takes_all_of_them) {
  using Cpus = std::vector<int>;
  const std::vector<Processor> four = {{0, 0, 0}, {1, 1, 0}, {2, 2, 0}, {3, 3, 0}};
  EXPECT_EQ(spread_over_cores(4, four, 0), (Cpus{0, 1, 2, 3}));
  EXPECT_TRUE(spread_over_cores(3, four, 0).empty());  // the system finds the free ones
  EXPECT_TRUE(spread_over_cores(5, four, 0).empty());
  EXPECT_TRUE(spread_over_cores(4, four, 2).empty());  // a quota of time, not of cores
  EXPECT_EQ(spread_over_cores(4, four, 4), (Cpus{0, 1, 2, 3}));
  EXPECT_TRUE(spread_over_cores(1, {{7, 7, 0}}, 0).empty());
  // Siblings share a core; one of each is taken.
  const std::vector<Processor> siblings = {{0, 0, 0}, {1, 1, 0}, {8, 0, 0}, {9, 1, 0}};
  EXPECT_EQ(spread_over_cores(2, siblings, 0), (Cpus{0, 1}));
  EXPECT_TRUE(spread_over_cores(4, siblings, 0).empty());
}

/// Where the threads of the pool may run.
std::vector<std::vector<int>> bindings(ThreadPool& pool) {
  std::vector<std::vector<int>> result(static_cast<size_t>(pool.size()));
  pool.run([&](int thread) {
    cpu_set_t now;
    sched_getaffinity(0, sizeof now, &now);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &now)) result[static_cast<size_t>(thread)].push_back(cpu);
    }
  });
  return result;
}

TEST(ThreadPool, a_bound_caller_does_not_hold_the_threads_of_a_second_pool_on_its_core) {
  const std::vector<int> allowed = allowed_cpus();
  const int cores = count_cores(describe_processors(allowed));
  ThreadPool first(cores, {});
  EXPECT_EQ(allowed_cpus(), allowed);
  ThreadPool second(cores + 1, {});  // more than cores: not bound
  const auto free = bindings(second);
  for (size_t i = 1; i < free.size(); ++i) EXPECT_EQ(free[i], allowed) << i;
  ThreadPool third(cores, {});
  EXPECT_EQ(bindings(third), bindings(first));
}

TEST(ThreadPool, impossible_bindings_and_counts_are_refused) {
  EXPECT_THROW(ThreadPool(2, {0}), Error);
  EXPECT_THROW(ThreadPool(1, {100000}), Error);
  EXPECT_THROW(ThreadPool(2, {0, 1000}), Error);
  EXPECT_THROW(ThreadPool(0, {}), Error);
}

}  // namespace
}  // namespace galley::device
