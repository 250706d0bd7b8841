#include "engine/core/link.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

namespace galley {
namespace {

TEST(LinkTest, messages_arrive_whole_and_in_order) {
  auto [a, b] = Link::make_sockets();
  Link left(std::move(a)), right(std::move(b));
  EXPECT_FALSE(right.try_receive());
  left.send("one");
  left.send("");
  left.send(std::string(3, '\0'));
  EXPECT_EQ(right.try_receive(), "one");
  EXPECT_EQ(right.try_receive(), "");
  EXPECT_EQ(right.try_receive(), std::string(3, '\0'));
  EXPECT_FALSE(right.try_receive());
  EXPECT_FALSE(right.closed());
}

TEST(LinkTest, a_message_larger_than_the_sockets_buffer_is_queued) {
  auto [a, b] = Link::make_sockets();
  Link left(std::move(a)), right(std::move(b));
  const std::string large(8 << 20, 'x');
  left.send(large);
  EXPECT_FALSE(left.flush());
  std::optional<std::string> received;
  while (!received) {
    left.flush();
    received = right.try_receive();
  }
  EXPECT_EQ(*received, large);
  EXPECT_TRUE(left.flush());
}

TEST(LinkTest, what_a_dead_peer_said_is_read_before_the_link_closes) {
  auto [a, b] = Link::make_sockets();
  Link right(std::move(b));
  {
    Link left(std::move(a));
    left.send("last words");
  }
  EXPECT_TRUE(right.wait(0));
  EXPECT_EQ(right.try_receive(), "last words");
  EXPECT_FALSE(right.try_receive());
  EXPECT_TRUE(right.closed());
  right.send("into the void");  // no signal, no error
  EXPECT_TRUE(right.drain(0));
}

TEST(LinkTest, a_frame_that_is_too_long_closes_the_link) {
  auto [a, b] = Link::make_sockets();
  Link right(std::move(b));
  const unsigned char header[] = {0xFF, 0xFF, 0xFF, 0xFF, 'x'};
  ASSERT_EQ(write(a.get(), header, sizeof header), static_cast<ssize_t>(sizeof header));
  EXPECT_FALSE(right.try_receive());
  EXPECT_TRUE(right.closed());
}

}  // namespace
}  // namespace galley
