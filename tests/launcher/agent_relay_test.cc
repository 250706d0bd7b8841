#include "launcher/agent_relay.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "launcher/protocol.h"

namespace galley::launcher {
namespace {

constexpr uint64_t kRingBytes = 1 << 16;
constexpr int64_t kGroup = 3;

/// Worker 0 of a group of two nodes, as its process sees it.
std::unique_ptr<GroupTransport> worker_of(int relay_fd) {
  GroupMeeting meeting;
  meeting.token = "agent_relay_test";
  meeting.nodes = {0, 1};
  meeting.ring_bytes = kRingBytes;
  return join_group(
      meeting, 0, FileDescriptor(dup(relay_fd)), [] {}, 10);
}

std::string payloads(Channel& channel) {
  std::string bytes;
  while (const auto message = channel.try_receive()) {
    const BulkPiece piece = decode_bulk(message->bytes);
    EXPECT_EQ(piece.group, kGroup);
    EXPECT_EQ(piece.from, 0);
    EXPECT_EQ(piece.to, 1);
    bytes += piece.payload;
  }
  return bytes;
}

TEST(AgentRelay, what_a_worker_wrote_before_it_ended_still_goes_out) {
  const auto channels = make_thread_channels(2);
  AgentRelay relay(channels[0].get());
  const auto worker = worker_of(relay.open(kGroup, 0, {0, 1}, kRingBytes));
  ASSERT_EQ(worker->try_write(1, "first, ", 7), 7u);
  relay.step(0);
  ASSERT_EQ(worker->try_write(1, "and last words", 14), 14u);
  relay.close(kGroup, 0);  // it has been reaped
  EXPECT_EQ(payloads(*channels[1]), "first, and last words");
  EXPECT_TRUE(relay.empty());
  relay.close(kGroup, 0);  // once more does no harm
}

TEST(AgentRelay, pieces_for_a_worker_that_has_ended_are_dropped) {
  const auto channels = make_thread_channels(2);
  AgentRelay relay(channels[0].get());
  relay.open(kGroup, 0, {0, 1}, kRingBytes);
  relay.close(kGroup, 0);
  relay.take(encode_bulk({kGroup, 0, 1, "late"}), 0);
  EXPECT_FALSE(relay.step(0));
  EXPECT_TRUE(relay.empty());
}

}  // namespace
}  // namespace galley::launcher
