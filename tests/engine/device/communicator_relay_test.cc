// HostCommunicator over several nodes: workers of one node meet, others are reached through relays
// that a slow pump empties.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <memory>
#include <thread>

#include "engine/core/error.h"
#include "tests/engine/device/communicator_testing.h"

namespace galley::device {
namespace {

constexpr size_t kRingBytes = 4096;  // smaller than most messages

/// The agents of all nodes and what carries frames between them, in one thread.
class Pump {
 public:
  Pump(int workers, uint64_t seed) : draw_(seed, random_stream("pump")) {
    for (int i = 0; i < workers; ++i) ports_.push_back(std::make_unique<RelayPort>(kRingBytes));
  }
  void start() {
    thread_ = std::thread([this] {
      while (!done_) {
        step();
        if (draw_.below(4) == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
  }
  ~Pump() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
  }
  FileDescriptor relay_of(int worker) const {
    return FileDescriptor(::dup(ports_[static_cast<size_t>(worker)]->fd()));
  }

 private:
  struct Carried {
    size_t to;
    RelayPort::Frame frame;
  };

  /// Some frames up, some frames on, some frames down; order is kept, all else is chance.
  void step() {
    for (size_t from = 0; from < ports_.size(); ++from) {
      while (draw_.below(3) != 0) {
        std::optional<RelayPort::Frame> frame = ports_[from]->pop();
        if (!frame) break;
        const auto to = static_cast<size_t>(frame->peer);
        frame->peer = static_cast<int>(from);
        carried_.push_back({to, std::move(*frame)});
      }
    }
    while (!carried_.empty() && draw_.below(3) != 0) {
      Carried& next = carried_.front();
      ports_[next.to]->push(next.frame.peer, std::move(next.frame.bytes));
      carried_.pop_front();
    }
    for (auto& port : ports_) port->flush();
  }

  Random draw_;
  std::vector<std::unique_ptr<RelayPort>> ports_;
  std::deque<Carried> carried_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

void run_over_nodes(const std::vector<int>& nodes, uint64_t steps) {
  const GroupMeeting meeting{cat("relay-test-", ::getpid(), "-", nodes.size()), nodes, kRingBytes};
  Pump pump(meeting.size(), nodes.size());
  pump.start();
  std::vector<std::thread> threads;
  std::atomic<bool> failed{false};
  for (int rank = 0; rank < meeting.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto check = [&] {
        if (failed) throw Error(Reason::kStopped, "another worker has failed");
      };
      try {
        const auto transport = join_group(meeting, rank, pump.relay_of(rank), check, 20);
        EXPECT_EQ(transport->rank(), rank);
        const int local = static_cast<int>(meeting.local_ranks(rank).size());
        EXPECT_EQ(transport->shared_bytes(),
                  group_memory_bytes(local, kRingBytes) + relay_memory_bytes(kRingBytes));
        const auto group = make_host_communicator(transport.get(), all_members(meeting.size()));
        run_random_program(transport.get(), group.get(), 11, steps);
        double one = 1;  // nobody's rings go while another still reads from them
        group->all_reduce_host({&one, 1});
        EXPECT_EQ(one, meeting.size());
      } catch (const std::exception& error) {
        failed = true;
        ADD_FAILURE() << "worker " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(CommunicatorRelay, one_worker_on_each_node) { run_over_nodes({0, 1}, 40); }

TEST(CommunicatorRelay, some_near_some_far) { run_over_nodes({0, 1, 0, 1}, 40); }

TEST(CommunicatorRelay, three_nodes_unlike) { run_over_nodes({4, 4, 7, 9, 4}, 30); }

TEST(CommunicatorRelay, without_a_relay_nobody_joins_over_nodes) {
  try {
    join_group({"token", {0, 1}, kRingBytes}, 0, {}, {}, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kInternal);
  }
}

}  // namespace
}  // namespace galley::device
