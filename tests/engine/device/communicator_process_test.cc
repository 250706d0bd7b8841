// HostCommunicator among processes: this program starts itself as the members of a group, and kills
// them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/core/env.h"
#include "engine/core/error.h"
#include "engine/core/hash.h"
#include "tests/engine/device/communicator_testing.h"

namespace galley::device {
namespace {

constexpr size_t kRingBytes = 16384;
constexpr int kMarks = 3;
constexpr int kEndedByError = 42;  // exit code of a member whose wait ended with kWorkerDied

/// Ends of pipes to a member: it reads orders from descriptor 0 and writes marks to 3.
struct Member {
  pid_t pid = 0;
  FileDescriptor orders, marks;

  void expect_mark() const {
    char mark = 0;
    pollfd waiting{marks.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&waiting, 1, 60'000), 1);
    ASSERT_EQ(::read(marks.get(), &mark, 1), 1);
  }
  int exit_status() const {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return status;
  }
};

std::pair<FileDescriptor, FileDescriptor> make_pipe() {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

Member start_member(const std::string& token, int rank, int size, const std::string& what) {
  auto [orders_read, orders_write] = make_pipe();
  auto [marks_read, marks_write] = make_pipe();
  std::vector<std::string> texts;
  const Environment own = Environment::current();
  for (const auto& [name, value] : own.all()) {
    texts.push_back(cat(name, "=", value));
  }
  texts.push_back(cat("GALLEY_TEST_MEMBER=", token, " ", rank, " ", size, " ", what));
  std::vector<char*> environment;
  for (std::string& text : texts) environment.push_back(text.data());
  environment.push_back(nullptr);
  std::string program = "/proc/self/exe", filter = "--gtest_filter=CommunicatorMember.*",
              also = "--gtest_also_run_disabled_tests";
  char* arguments[] = {program.data(), filter.data(), also.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, orders_read.get(), 0);
  posix_spawn_file_actions_adddup2(&actions, marks_write.get(), kMarks);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  Member member;
  EXPECT_EQ(
      posix_spawn(&member.pid, program.c_str(), &actions, nullptr, arguments, environment.data()),
      0);
  posix_spawn_file_actions_destroy(&actions);
  member.orders = std::move(orders_write);
  member.marks = std::move(marks_read);
  return member;
}

size_t num_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

/// Throws when the other end of descriptor 0 has been closed: the agent says that a peer is dead.
void check_orders() {
  pollfd orders{0, POLLIN, 0};
  if (::poll(&orders, 1, 0) == 1 && (orders.revents & POLLHUP) != 0) {
    throw Error(Reason::kWorkerDied, "the agent says that a peer is dead");
  }
}

/// For ever, with a mark after every round; an order of one byte: abort.
void sum_for_ever(GroupTransport* transport, Communicator* group) {
  std::vector<float> data(100'003, 1.0f);
  while (true) {
    group->all_reduce(data.data(), static_cast<int64_t>(data.size()));
    std::fill(data.begin(), data.end(), 1.0f);
    [[maybe_unused]] const ssize_t written = ::write(kMarks, "m", 1);
    pollfd orders{0, POLLIN, 0};
    if (::poll(&orders, 1, 0) == 1 && (orders.revents & POLLIN) != 0) {
      transport->abort();
      ::_exit(0);
    }
  }
}

// Not a test of its own: the members that the tests below start.
TEST(CommunicatorMember, DISABLED_member) {
  const std::optional<std::string> task = Environment::current().get("GALLEY_TEST_MEMBER");
  if (!task) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGPIPE, SIG_IGN);
  ::fcntl(kMarks, F_SETFL, O_NONBLOCK);  // marks that nobody reads must not stop the work
  std::istringstream words(*task);
  std::string token, what;
  int rank = 0, size = 0;
  words >> token >> rank >> size >> what;
  const size_t before = num_descriptors();
  try {
    const GroupMeeting meeting{token, std::vector<int>(static_cast<size_t>(size)), kRingBytes};
    const auto transport = join_group(meeting, rank, {}, check_orders, 30);
    EXPECT_EQ(num_descriptors(), before);  // memory stays, descriptors and sockets do not
    EXPECT_EQ(transport->shared_bytes(), group_memory_bytes(size, kRingBytes));
    const auto group = make_host_communicator(transport.get(), all_members(size));
    if (what == "for_ever") sum_for_ever(transport.get(), group.get());
    run_random_program(transport.get(), group.get(), 5, 50);
  } catch (const Error& error) {
    ::_exit(error.reason() == Reason::kWorkerDied ? kEndedByError : 1);
  }
  ::_exit(HasFailure() ? 1 : 0);
}

class CommunicatorProcess : public ::testing::Test {
 protected:
  std::vector<Member> start(int size, const std::string& what) {
    token_ = cat("process-test-", ::getpid(), "-", what, "-", size);
    std::vector<Member> members;
    for (int rank = size - 1; rank >= 0; --rank) {
      members.insert(members.begin(), start_member(token_, rank, size, what));
    }
    return members;
  }
  void TearDown() override {
    std::ifstream sockets("/proc/net/unix");
    const std::string all{std::istreambuf_iterator<char>(sockets), {}};
    EXPECT_EQ(all.find(hash128_hex(token_ + " 0")), std::string::npos) << "a socket is left";
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      EXPECT_EQ(entry.path().string().find("galley"), std::string::npos) << entry.path();
    }
  }

 private:
  std::string token_;
};

TEST_F(CommunicatorProcess, sums_are_right) {
  for (int size : {2, 4}) {
    for (const Member& member : start(size, "program")) EXPECT_EQ(member.exit_status(), 0);
  }
}

TEST_F(CommunicatorProcess, a_member_killed_in_an_all_reduce_ends_the_others_by_their_check) {
  for (int victim = 0; victim < 3; ++victim) {
    std::vector<Member> members = start(3, "for_ever");
    for (const Member& member : members) {
      for (int round = 0; round < 5; ++round) member.expect_mark();
    }
    ASSERT_EQ(::kill(members[static_cast<size_t>(victim)].pid, SIGKILL), 0);
    EXPECT_TRUE(WIFSIGNALED(members[static_cast<size_t>(victim)].exit_status()));
    for (Member& member : members) member.orders.reset();
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const int status = members[static_cast<size_t>(rank)].exit_status();
      EXPECT_TRUE(WIFEXITED(status)) << status;
      EXPECT_EQ(WEXITSTATUS(status), kEndedByError);
    }
  }
}

TEST_F(CommunicatorProcess, a_member_that_aborts_ends_the_others) {
  std::vector<Member> members = start(3, "for_ever");
  for (const Member& member : members) member.expect_mark();
  ASSERT_EQ(::write(members[1].orders.get(), "a", 1), 1);
  EXPECT_EQ(members[1].exit_status(), 0);
  for (size_t other : {0u, 2u}) {
    EXPECT_EQ(WEXITSTATUS(members[other].exit_status()), kEndedByError);
  }
}

TEST_F(CommunicatorProcess, a_member_that_never_comes_is_given_up_by_the_check) {
  const std::string token = cat("process-test-", ::getpid(), "-absent");
  Member first = start_member(token, 0, 3, "program");
  Member second = start_member(token, 1, 3, "program");
  first.orders.reset();
  second.orders.reset();
  EXPECT_EQ(WEXITSTATUS(first.exit_status()), kEndedByError);
  EXPECT_EQ(WEXITSTATUS(second.exit_status()), kEndedByError);
}

}  // namespace
}  // namespace galley::device
