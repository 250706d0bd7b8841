#include <sched.h>
#include <sys/resource.h>

#include <atomic>

#include "engine/core/error.h"
#include "engine/device/host/thread_pool.h"
#include "tests/engine/device/device_testing.h"

namespace galley::device {
namespace {

HostDeviceOptions options_of(uint64_t capacity, int threads) {
  HostDeviceOptions options;
  options.capacity_bytes = capacity;
  options.num_threads = threads;
  return options;
}

TEST(HostDevice, scratch_is_what_the_traits_say_and_operations_allocate_nothing) {
  for (const int threads : {1, 2, 5}) {
    const HostDeviceOptions options = options_of(uint64_t{1} << 30, threads);
    const DeviceTraits planned = host_device_traits(options);
    const auto device = HostDevice::create(options);
    EXPECT_EQ(device->traits().gemm_workspace_bytes, planned.gemm_workspace_bytes);
    EXPECT_EQ(device->traits().attention_workspace_bytes, planned.attention_workspace_bytes);
    EXPECT_EQ(device->traits().num_threads, static_cast<uint32_t>(threads));
    const uint64_t scratch = planned.gemm_workspace_bytes + planned.attention_workspace_bytes;
    EXPECT_EQ(device->allocated_bytes(), scratch);
    const auto stream = device->create_stream();
    OpSet ops = device->all_ops(*stream);
    const Tensor a = Tensor::random(300, 700, 1), b = Tensor::random(700, 90, 2);
    Tensor c(300, 90);
    ops.linear->matmul_nn(a.view(), b.view(), 1.0f, c.matrix(), Write::kSet);
    EXPECT_EQ(device->peak_allocated_bytes(), scratch);
  }
}

TEST(HostDevice, memory_is_zero_aligned_and_counted) {
  const auto device = HostDevice::create(options_of(uint64_t{1} << 30, 1));
  const size_t before = device->allocated_bytes();
  for (const size_t bytes :
       {size_t{1}, size_t{100}, size_t{4096}, size_t{300000}, size_t{5} << 20}) {
    const Buffer buffer = device->allocate(bytes, "test");
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(device->allocated_bytes(), before + bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(*buffer.at<char>(i), 0);
    std::memset(buffer.data(), 1, bytes);
  }
  EXPECT_EQ(device->allocated_bytes(), before);
  EXPECT_EQ(device->peak_allocated_bytes(), before + (size_t{5} << 20));
}

TEST(HostDevice, buffers_move_and_free_once) {
  const auto device = HostDevice::create(options_of(uint64_t{1} << 30, 1));
  const size_t before = device->allocated_bytes();
  Buffer a = device->allocate(1000, "a"), b = device->allocate(500, "b");
  b = std::move(a);
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(device->allocated_bytes(), before + 1000);
  Buffer c(std::move(b));
  EXPECT_EQ(b.data(), nullptr);
  EXPECT_EQ(device->allocated_bytes(), before + 1000);
  c = Buffer();
  EXPECT_EQ(device->allocated_bytes(), before);
}

TEST(HostDevice, capacity_is_a_hard_limit_and_the_error_says_what_to_do) {
  const auto device = HostDevice::create(options_of(uint64_t{64} << 20, 1));
  const size_t free_bytes = (size_t{64} << 20) - device->allocated_bytes();
  const Buffer most = device->allocate(free_bytes - 100, "weights");
  const size_t before = device->allocated_bytes();
  for (const size_t bytes : {size_t{101}, size_t{1} << 40, ~size_t{0}}) {
    try {
      device->allocate(bytes, "the activations");
      FAIL() << "an allocation beyond the capacity succeeded";
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kOutOfMemory);
      const std::string text = error.what();
      EXPECT_NE(text.find("the activations"), std::string::npos) << text;
      EXPECT_NE(text.find("64.0 MiB"), std::string::npos) << text;
    }
    EXPECT_EQ(device->allocated_bytes(), before);
  }
  EXPECT_NO_THROW(device->allocate(100, "the last bytes"));
}

TEST(HostDevice, capacity_below_its_own_scratch_is_out_of_memory) {
  EXPECT_THROW(HostDevice::create(options_of(1000, 2)), Error);
}

TEST(HostDevice, copies_and_fills) {
  const auto device = HostDevice::create(options_of(uint64_t{1} << 30, 2));
  const auto stream = device->create_stream();
  const size_t bytes = (size_t{3} << 20) + 5;
  const Buffer a = device->allocate(bytes, "a"), b = device->allocate(bytes, "b");
  std::vector<char> in(bytes), out(bytes);
  for (size_t i = 0; i < bytes; ++i) in[i] = static_cast<char>(i * 7 + i / 251);
  device->copy_to_device(*stream, a.data(), in.data(), bytes);
  device->copy_on_device(*stream, b.data(), a.data(), bytes);
  device->copy_to_host(*stream, out.data(), b.data(), bytes);
  const auto event = device->create_event();
  device->record(*event, *stream);
  device->wait(*stream, *event);
  device->synchronize(*stream);
  EXPECT_EQ(in, out);
  device->fill_zero(*stream, b.data(), bytes);
  EXPECT_EQ(std::count(b.at<char>(0), b.at<char>(bytes), 0), static_cast<std::ptrdiff_t>(bytes));
}

TEST(HostDevice, identity_names_processor_threads_and_kernels) {
  HostDeviceOptions options = options_of(uint64_t{1} << 30, 2);
  options.kernels = KernelSet::kPortable;
  const auto device = HostDevice::create(options);
  EXPECT_EQ(device->identity().kind, "host");
  EXPECT_NE(device->identity().name.find("2 threads, portable"), std::string::npos);
  EXPECT_TRUE(device->identity().uuid.starts_with("host:"));
  EXPECT_EQ(device->kernels(), KernelSet::kPortable);
  options.kernels = KernelSet::kAuto;
  EXPECT_EQ(HostDevice::create(options)->kernels(), best_kernel_set());
}

TEST(HostDevice, free_memory_is_the_default_capacity) {
  EXPECT_GT(host_device_traits(options_of(0, 1)).capacity_bytes, uint64_t{64} << 20);
}

TEST(KernelSet, names_round_trip_and_unknown_ones_are_refused) {
  for (const KernelSet set :
       {KernelSet::kAuto, KernelSet::kPortable, KernelSet::kAvx2, KernelSet::kAvx512}) {
    EXPECT_EQ(kernel_set_from_name(kernel_set_name(set)), set);
  }
  try {
    kernel_set_from_name("avx51");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kUsage);
    EXPECT_NE(std::string(error.what()).find("avx512"), std::string::npos);
  }
  EXPECT_TRUE(kernel_set_usable(KernelSet::kPortable));
  EXPECT_TRUE(kernel_set_usable(best_kernel_set()));
}

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

TEST(ThreadPool, impossible_bindings_and_counts_are_refused) {
  EXPECT_THROW(ThreadPool(2, {0}), Error);
  EXPECT_THROW(ThreadPool(1, {100000}), Error);
  EXPECT_THROW(ThreadPool(2, {0, 1000}), Error);
  EXPECT_THROW(ThreadPool(0, {}), Error);
}

}  // namespace
}  // namespace galley::device
