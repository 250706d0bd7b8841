#include "engine/core/channel.h"

#include <gtest/gtest.h>

#include <thread>

namespace galley {
namespace {

TEST(ThreadChannelTest, keeps_order_per_sender_and_names_it) {
  auto channels = make_thread_channels(3);
  channels[1]->send(0, "first");
  channels[1]->send(0, "second");
  channels[0]->send(0, "to myself");
  std::vector<std::string> of_one;
  int received = 0;
  while (auto message = channels[0]->try_receive()) {
    ++received;
    if (message->from == 1) of_one.push_back(message->bytes);
  }
  EXPECT_EQ(received, 3);
  EXPECT_EQ(of_one, (std::vector<std::string>{"first", "second"}));
  EXPECT_FALSE(channels[2]->try_receive());
  EXPECT_EQ(channels[2]->rank(), 2);
  EXPECT_EQ(channels[2]->size(), 3);
}

TEST(ThreadChannelTest, threads_may_send_at_once_and_die_before_delivery) {
  auto channels = make_thread_channels(3);
  const auto send_many = [](std::unique_ptr<Channel> channel) {
    for (int i = 0; i < 1000; ++i) channel->send(0, std::to_string(i));
  };
  std::thread one(send_many, std::move(channels[1])), two(send_many, std::move(channels[2]));
  int next[3] = {0, 0, 0};
  for (int received = 0; received < 2000;) {
    const auto message = channels[0]->try_receive();
    if (!message) continue;
    EXPECT_EQ(message->bytes, std::to_string(next[message->from]++));
    ++received;
  }
  one.join();
  two.join();
}

}  // namespace
}  // namespace galley
