#include <algorithm>

#include "engine/core/error.h"
#include "engine/device/host/host_memory.h"
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

TEST(HostMemory, pages_alternate_between_nodes_as_often_as_these_have_threads) {
  using Order = std::vector<int>;
  EXPECT_EQ(interleave_nodes({0}), Order{0});
  EXPECT_EQ(interleave_nodes({0, 0, 0}), (Order{0, 1, 2}));
  EXPECT_EQ(interleave_nodes({0, 0, 1, 1}), (Order{0, 2, 1, 3}));
  // Two sockets of 8 cores: every stretch of 2 n pages has n on each.
  const std::vector<int> nodes = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  const Order order = interleave_nodes(nodes);
  for (size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(nodes[static_cast<size_t>(order[i])], static_cast<int>(i % 2)) << i;
  }
  // Six threads here and two there: three quarters of the pages here, never five in a row.
  const std::vector<int> uneven = {0, 0, 0, 1, 1, 0, 0, 0};
  Order sorted = interleave_nodes(uneven);
  int in_a_row = 0;
  for (size_t i = 0; i < 2 * sorted.size(); ++i) {
    const int thread = sorted[i % sorted.size()];
    in_a_row = uneven[static_cast<size_t>(thread)] == 0 ? in_a_row + 1 : 0;
    EXPECT_LT(in_a_row, 5);
  }
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, (Order{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(HostMemory, all_threads_take_zero_pages_of_any_size) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads, {});
    for (const PageOwner owner : {PageOwner::kAllThreads, PageOwner::kEachThread}) {
      for (const size_t bytes :
           {size_t{100}, size_t{300000}, size_t{4} << 20, (size_t{11} << 20) + 12345}) {
        auto* const data = static_cast<char*>(host_memory_allocate(bytes, owner, pool));
        ASSERT_NE(data, nullptr);
        EXPECT_EQ(std::count(data, data + bytes, 0), static_cast<std::ptrdiff_t>(bytes));
        host_memory_free(data, bytes);
      }
      EXPECT_EQ(host_memory_allocate(size_t{1} << 60, owner, pool), nullptr);
    }
  }
}

}  // namespace
}  // namespace galley::device
