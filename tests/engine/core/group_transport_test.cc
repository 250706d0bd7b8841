#include "engine/core/group_transport.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "engine/core/error.h"
#include "engine/core/hash.h"
#include "engine/core/meeting_socket.h"
#include "engine/core/strings.h"

namespace galley {
namespace {

constexpr size_t kRingBytes = 4096;

std::string unique_token(const char* test) { return cat("transport-test-", ::getpid(), "-", test); }

/// The name of the socket of node 0, as strangers can find it in /proc/net/unix.
std::string socket_name(const GroupMeeting& meeting) {
  return cat("galley-group-", hash128_hex(cat(meeting.token, " 0")));
}

void write_text(GroupTransport* transport, int to, const std::string& text) {
  EXPECT_EQ(transport->try_write(to, text.data(), text.size()), text.size());
}

std::string read_text(GroupTransport* transport, int from, size_t bytes) {
  std::string text;
  while (text.size() < bytes) {
    const std::span<const std::byte> in = transport->readable(from);
    if (in.empty()) {
      transport->wait();
      continue;
    }
    text.append(reinterpret_cast<const char*>(in.data()), in.size());
    transport->consume(from, in.size());
  }
  return text;
}

TEST(GroupTransport, threads_exchange_bytes) {
  const auto transports = make_thread_transports(3, kRingBytes);
  EXPECT_EQ(transports[1]->rank(), 1);
  EXPECT_EQ(transports[1]->size(), 3);
  EXPECT_EQ(transports[1]->shared_bytes(), group_memory_bytes(3, kRingBytes));
  write_text(transports[0].get(), 2, "from 0");
  write_text(transports[1].get(), 2, "from 1");
  EXPECT_EQ(read_text(transports[2].get(), 1, 6), "from 1");
  EXPECT_EQ(read_text(transports[2].get(), 0, 6), "from 0");
  EXPECT_TRUE(transports[2]->readable(0).empty());
  EXPECT_TRUE(transports[1]->readable(0).empty());
}

TEST(GroupTransport, one_worker_has_nobody_to_talk_to) {
  const auto transports = make_thread_transports(1, kRingBytes);
  EXPECT_EQ(transports[0]->shared_bytes(), 0u);
  transports[0]->wait();  // returns by itself
  const auto joined = join_group({"token", {3}, kRingBytes}, 0, {}, {}, 1);
  EXPECT_EQ(joined->size(), 1);
}

TEST(GroupTransport, the_check_is_called_while_nothing_happens_and_may_end_the_wait) {
  const auto transports = make_thread_transports(2, kRingBytes);
  int calls = 0;
  transports[0]->set_wait_check([&] {
    if (++calls == 3) throw Error(Reason::kStopped, "enough");
  });
  EXPECT_THROW(read_text(transports[0].get(), 1, 1), Error);
  EXPECT_EQ(calls, 3);
}

TEST(GroupTransport, abort_ends_waits_now_and_later) {
  const auto transports = make_thread_transports(2, kRingBytes);
  std::thread waiting([&] { EXPECT_THROW(read_text(transports[0].get(), 1, 1), Error); });
  transports[0]->abort();
  waiting.join();
  for (const auto& transport : transports) {
    try {
      transport->wait();
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kWorkerDied);
    }
  }
}

TEST(GroupTransport, pending_sends_keep_their_order) {
  const auto transports = make_thread_transports(2, kRingBytes);
  const std::string large(3 * kRingBytes, 'l'), small = "small";
  PendingSends& sends = transports[0]->sends();
  const uint64_t first = sends.add(*transports[0], 1, large.data(), large.size());
  const uint64_t second = sends.add(*transports[0], 1, small.data(), small.size());
  EXPECT_EQ(first, large.size());
  EXPECT_EQ(second, large.size() + 5);
  EXPECT_LT(sends.sent(1), first);
  EXPECT_FALSE(sends.progress(*transports[0]));  // full
  std::thread reader([&] { EXPECT_EQ(read_text(transports[1].get(), 0, second), large + small); });
  while (!sends.empty()) {
    if (!sends.progress(*transports[0])) transports[0]->wait();
  }
  reader.join();
  EXPECT_EQ(sends.sent(1), second);
}

/// Everybody says its rank to everybody.
void greet_all(GroupTransport* transport) {
  for (int to = 0; to < transport->size(); ++to) {
    if (to != transport->rank()) write_text(transport, to, cat(transport->rank()));
  }
  for (int from = 0; from < transport->size(); ++from) {
    if (from != transport->rank()) {
      EXPECT_EQ(read_text(transport, from, 1), cat(from));
    }
  }
}

void join_and_greet(const GroupMeeting& meeting, int rank) {
  const auto transport = join_group(meeting, rank, {}, {}, 20);
  greet_all(transport.get());
}

TEST(JoinGroup, in_any_order_and_with_strangers_at_the_door) {
  for (int first = 0; first < 3; ++first) {
    const GroupMeeting meeting{unique_token("order"), {0, 0, 0}, kRingBytes};
    std::thread early([&] { join_and_greet(meeting, first); });
    // One who says nothing, one who talks nonsense, one of another attempt, one who is no member.
    std::vector<MeetingSocket> strangers;
    for (const std::string& words : {std::string(), std::string("nonsense"),
                                     std::string("galley group 1\nother token\n3 4096 0\n1"),
                                     cat("galley group 1\n", meeting.token, "\n3 4096 0\n7")}) {
      for (int tries = 0; first == 0 && tries < 500; ++tries) {
        strangers.push_back(MeetingSocket::connect(socket_name(meeting)));
        if (strangers.back().valid()) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      if (first == 0) {
        ASSERT_TRUE(strangers.back().valid());
        if (!words.empty()) {
          EXPECT_TRUE(strangers.back().send(words, {}));
        }
      }
    }
    std::thread later([&] { join_and_greet(meeting, (first + 1) % 3); });
    join_and_greet(meeting, (first + 2) % 3);
    early.join();
    later.join();
    EXPECT_FALSE(MeetingSocket::connect(socket_name(meeting)).valid());  // it is closed
    for (MeetingSocket& stranger : strangers) {
      MeetingPacket packet;
      if (!stranger.valid()) continue;
      EXPECT_NE(stranger.receive(&packet), MeetingSocket::Received::kPacket);
      EXPECT_TRUE(packet.descriptors.empty());
    }
  }
}

TEST(JoinGroup, pain_P007_groups_that_meet_at_the_same_time_on_one_node_do_not_clash) {
  std::vector<std::thread> threads;
  std::vector<GroupMeeting> meetings;
  for (const char* name : {"clash-1", "clash-2", "clash-3"}) {
    meetings.push_back({unique_token(name), {0, 0}, kRingBytes});
  }
  for (int rank : {1, 0}) {
    for (size_t i = 0; i < meetings.size(); ++i) {
      threads.emplace_back([&meetings, i, rank] {
        const auto transport = join_group(meetings[i], rank, {}, {}, 20);
        write_text(transport.get(), 1 - rank, cat(i));
        EXPECT_EQ(read_text(transport.get(), 1 - rank, 1), cat(i));
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(JoinGroup, who_does_not_come_in_time_is_named) {
  const GroupMeeting meeting{unique_token("late"), {0, 1, 0, 0}, kRingBytes};
  RelayPort port(kRingBytes);
  try {
    join_group(meeting, 0, FileDescriptor(::dup(port.fd())), {}, 0.05);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kWorkerDied);
    EXPECT_NE(std::string(error.what()).find("workers 2, 3 on its node"), std::string::npos)
        << error.what();
  }
  try {
    join_group(meeting, 3, FileDescriptor(::dup(port.fd())), {}, 0.05);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("for worker 0 on its node"), std::string::npos)
        << error.what();
  }
}

TEST(JoinGroup, another_token_never_meets) {
  const GroupMeeting mine{unique_token("mine"), {0, 0}, kRingBytes};
  const GroupMeeting other{unique_token("other"), {0, 0}, kRingBytes};
  std::thread second([&] { EXPECT_THROW(join_group(other, 1, {}, {}, 0.2), Error); });
  EXPECT_THROW(join_group(mine, 0, {}, {}, 0.2), Error);
  second.join();
}

TEST(JoinGroup, the_check_ends_it) {
  const auto check = [] { throw Error(Reason::kStopped, "stop"); };
  for (int rank = 0; rank < 2; ++rank) {
    try {
      join_group({unique_token("check"), {0, 0}, kRingBytes}, rank, {}, check, 20);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kStopped);
    }
  }
}

TEST(JoinGroup, other_users_are_refused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  const std::string name = unique_token("user");
  MeetingSocket door = MeetingSocket::listen(name);
  ASSERT_TRUE(door.valid());
  EXPECT_FALSE(MeetingSocket::listen(name).valid());
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    ::_exit(MeetingSocket::connect(name).valid() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "it talked to a socket of another user";
  EXPECT_FALSE(door.accept().valid());  // nor is the one that has come let in
  EXPECT_TRUE(MeetingSocket::connect(name).valid());
  EXPECT_TRUE(door.accept().valid());
}

TEST(RelayPort, carries_frames_through_rings_smaller_than_a_message) {
  const GroupMeeting meeting{unique_token("relay"), {0, 1, 2}, kRingBytes};
  RelayPort port(kRingBytes);
  const auto worker = join_group(meeting, 0, FileDescriptor(::dup(port.fd())), {}, 1);
  EXPECT_EQ(worker->shared_bytes(), relay_memory_bytes(kRingBytes));

  // Up: in order, whole, and both peers in turn.
  const std::string message(3 * kRingBytes, 'u');
  PendingSends& sends = worker->sends();
  sends.add(*worker, 1, message.data(), message.size());
  sends.add(*worker, 2, "to two", 6);
  std::string got[3];
  do {
    while (const std::optional<RelayPort::Frame> frame = port.pop()) {
      got[frame->peer] += frame->bytes;
    }
  } while (sends.progress(*worker));
  EXPECT_EQ(got[1], message);
  EXPECT_EQ(got[2], "to two");

  // Down: what the ring does not take waits at the port; peers are told apart.
  port.push(2, std::string(2 * kRingBytes, 'd'));
  port.push(1, "from one");
  EXPECT_GT(port.queued_bytes(), kRingBytes);
  EXPECT_FALSE(port.flush());
  std::string two, one;
  while (two.size() < 2 * kRingBytes || one.size() < 8) {
    for (int from : {1, 2}) {
      const std::span<const std::byte> in = worker->readable(from);
      std::string& text = from == 1 ? one : two;
      text.append(reinterpret_cast<const char*>(in.data()), in.size());
      worker->consume(from, in.size());
    }
    port.flush();
  }
  EXPECT_EQ(port.queued_bytes(), 0u);
  EXPECT_EQ(two, std::string(2 * kRingBytes, 'd'));
  EXPECT_EQ(one, "from one");
}

TEST(RelayPort, both_directions_wake_the_worker) {
  const GroupMeeting meeting{unique_token("wake"), {0, 1}, kRingBytes};
  RelayPort port(kRingBytes);
  const auto worker = join_group(meeting, 0, FileDescriptor(::dup(port.fd())), {}, 1);
  std::thread agent([&] {
    port.push(1, "x");
    std::string all;
    while (all.size() < 2 * kRingBytes) {
      if (const std::optional<RelayPort::Frame> frame = port.pop()) all += frame->bytes;
    }
  });
  EXPECT_EQ(read_text(worker.get(), 1, 1), "x");
  const std::string large(2 * kRingBytes, 'y');
  worker->sends().add(*worker, 1, large.data(), large.size());
  while (!worker->sends().empty()) {
    if (!worker->sends().progress(*worker)) worker->wait();
  }
  agent.join();
}

TEST(RelayPort, other_memory_is_refused) {
  const GroupMeeting meeting{unique_token("memory"), {0, 1}, kRingBytes};
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  FileDescriptor other(ends[1]);
  EXPECT_THROW(join_group(meeting, 0, FileDescriptor(ends[0]), {}, 1), Error);
}

}  // namespace
}  // namespace galley
