#include "engine/core/byte_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "engine/core/group_memory.h"
#include "engine/core/group_transport.h"
#include "engine/core/random.h"

namespace galley {
namespace {

struct TestRing {
  explicit TestRing(size_t capacity) : data(capacity), ring(&counters, data.data(), capacity) {}
  RingCounters counters{};
  std::vector<std::byte> data;
  ByteRing ring;
};

TEST(ByteRing, takes_what_there_is_room_for) {
  TestRing test(10);
  EXPECT_EQ(test.ring.write("abcdefg", 7), 7u);
  EXPECT_EQ(test.ring.write("hijklmn", 7), 3u);
  EXPECT_EQ(test.ring.write("x", 1), 0u);
  EXPECT_EQ(test.ring.room(), 0u);
  test.ring.consume(4);
  EXPECT_EQ(test.ring.write("ABCDE", 5), 4u);
  // In one piece up to the end of the memory, then from its beginning.
  const std::span<const std::byte> first = test.ring.readable();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(first.data()), first.size()), "efghij");
  char all[10];
  test.ring.peek(0, all, 10);
  EXPECT_EQ(std::string(all, 10), "efghijABCD");
  test.ring.consume(6);
  EXPECT_EQ(test.ring.readable().size(), 4u);
}

TEST(ByteRing, two_pieces_appear_together_over_the_end) {
  TestRing test(8);
  test.ring.write("123456", 6);
  test.ring.consume(6);
  const std::string first = "abc", second = "defg";
  test.ring.write_together(std::as_bytes(std::span(first)), std::as_bytes(std::span(second)));
  char all[7];
  test.ring.peek(0, all, 7);
  EXPECT_EQ(std::string(all, 7), "abcdefg");
  EXPECT_THROW(test.ring.write_together(std::as_bytes(std::span(first)), {}), Error);
}

TEST(ByteRing, a_thread_reads_what_another_writes) {
  TestRing test(4093);
  constexpr uint64_t kTotal = 2'000'000;
  Doorbell bell{};
  std::thread writer([&] {
    Random draw(1, 1);
    uint64_t position = 0;
    std::vector<uint8_t> piece(6000);
    while (position < kTotal) {
      const uint64_t wanted = std::min(kTotal - position, draw.below(piece.size()) + 1);
      for (uint64_t i = 0; i < wanted; ++i) piece[i] = static_cast<uint8_t>((position + i) % 251);
      const size_t taken = test.ring.write(piece.data(), wanted);
      position += taken;
      if (taken > 0) bell.ring();
      if (taken == 0) std::this_thread::yield();
    }
  });
  uint64_t position = 0, wrong = 0;
  uint32_t seen = 0;
  while (position < kTotal) {
    const uint32_t count = bell.count();
    const std::span<const std::byte> bytes = test.ring.readable();
    for (std::byte byte : bytes) wrong += static_cast<uint8_t>(byte) != position++ % 251;
    test.ring.consume(bytes.size());
    if (bytes.empty() && count == seen) bell.sleep(seen, 50);
    seen = count;
  }
  writer.join();
  EXPECT_EQ(wrong, 0u);
}

TEST(Doorbell, a_ring_ends_a_sleep_and_none_is_lost) {
  Doorbell bell{};
  std::thread sleeper([&] {
    // Far longer than the test may take, were a ring lost.
    for (uint32_t seen = 0; seen < 2000;) {
      bell.sleep(seen, 60'000);
      seen = bell.count();
    }
  });
  for (int i = 0; i < 2000; ++i) bell.ring();
  sleeper.join();
  EXPECT_EQ(bell.count(), 2000u);
}

TEST(GroupMemory, every_pair_has_a_ring_of_its_own) {
  GroupMemory memory(3, 5000);
  EXPECT_EQ(memory.bytes(), group_memory_bytes(3, 5000));
  GroupMemory other(FileDescriptor(::dup(memory.fd())), 3, 5000);
  for (char from = 0; from < 3; ++from) {
    for (char to = 0; to < 3; ++to) {
      if (from == to) continue;
      const char text[2] = {from, to};
      ByteRing ring = memory.ring(from, to);
      EXPECT_EQ(ring.capacity(), 8192u);
      ring.write(text, 2);
      memory.doorbell(to)->ring();
    }
  }
  for (char from = 0; from < 3; ++from) {
    EXPECT_EQ(other.doorbell(from)->count(), 2u);
    for (char to = 0; to < 3; ++to) {
      if (from == to) continue;
      char text[2];
      ASSERT_EQ(other.ring(from, to).available(), 2u);
      other.ring(from, to).peek(0, text, 2);
      EXPECT_EQ(text[0], from);
      EXPECT_EQ(text[1], to);
    }
  }
}

TEST(GroupMemory, memory_of_another_size_is_refused) {
  GroupMemory memory(3, 4096);
  EXPECT_THROW(GroupMemory(FileDescriptor(::dup(memory.fd())), 4, 4096), Error);
  EXPECT_EQ(::ftruncate(memory.fd(), 4096), -1);  // nobody can make it smaller under the others
}

TEST(GroupMemory, planned_bytes) {
  EXPECT_EQ(group_memory_bytes(1, 1 << 20), 0u);
  EXPECT_GE(group_memory_bytes(2, 1 << 20), uint64_t{2} << 20);
  EXPECT_GE(group_memory_bytes(4, 1 << 20), uint64_t{12} << 20);
  EXPECT_LT(group_memory_bytes(4, 1 << 20), uint64_t{13} << 20);
  EXPECT_GE(relay_memory_bytes(1 << 20), uint64_t{2} << 20);
  EXPECT_EQ(group_ring_bytes(1), size_t{64} << 10);
  EXPECT_EQ(group_ring_bytes(1'000'001), size_t{1'003'520});
  EXPECT_EQ(group_ring_bytes(uint64_t{1} << 40), size_t{8} << 20);
}

}  // namespace
}  // namespace galley
