// HostCommunicator among threads: sums, order, interleaving, full rings, allocations, abort.
#include "engine/device/communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include "engine/core/error.h"
#include "tests/engine/device/communicator_testing.h"
#include "tests/support/counted_new.h"

namespace galley::device {
namespace {

constexpr size_t kSmallRing = 4096;

/// Runs `body` in a thread per worker; what one throws aborts the others and fails the test.
void run_workers(int size, size_t ring_bytes,
                 const std::function<void(GroupTransport*, Communicator*)>& body) {
  const auto transports = make_thread_transports(size, ring_bytes);
  std::vector<std::thread> threads;
  for (const auto& transport : transports) {
    threads.emplace_back([&, t = transport.get()] {
      try {
        const auto group = make_host_communicator(t, all_members(size));
        body(t, group.get());
        EXPECT_TRUE(t->sends().empty());
      } catch (const std::exception& error) {
        t->abort();
        ADD_FAILURE() << "worker " << t->rank() << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(HostCommunicator, all_reduce_adds_in_the_order_of_ranks) {
  for (int size = 1; size <= 5; ++size) {
    for (size_t ring : {kSmallRing, group_ring_bytes(1 << 20)}) {
      run_workers(size, ring, [&](GroupTransport*, Communicator* group) {
        uint64_t step = 0;
        for (int64_t count : {0, 1, 3, 511, 512, 513, 1000, 4099, 70001}) {
          expect_all_reduce(group, all_members(size), ++step, count);
        }
      });
    }
  }
}

TEST(HostCommunicator, a_million_floats) {
  run_workers(3, kSmallRing, [&](GroupTransport*, Communicator* group) {
    expect_all_reduce(group, all_members(3), 1, 1'000'003);
    // Two thirds of it twice, and nothing else.
    EXPECT_NEAR(static_cast<double>(group->sent_bytes()), 4e6 * 4 / 3, 1000);
  });
}

TEST(HostCommunicator, uneven_parts) {
  const std::vector<int64_t> counts = {700, 0, 9001, 1};
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  run_workers(4, kSmallRing, [&](GroupTransport*, Communicator* group) {
    std::vector<float> data = values_of(group->rank(), 7, total);
    group->reduce_scatter(data.data(), counts);
    const std::vector<float> sum = sum_in_order(all_members(4), 7, total);
    const int64_t begin =
        std::accumulate(counts.begin(), counts.begin() + group->rank(), int64_t{0});
    const auto own = static_cast<size_t>(counts[static_cast<size_t>(group->rank())]);
    EXPECT_TRUE(same_bits(std::span(data).subspan(static_cast<size_t>(begin), own),
                          std::span(sum).subspan(static_cast<size_t>(begin), own)));
    group->all_gather(data.data(), counts);
    EXPECT_TRUE(same_bits(data, sum));
  });
}

TEST(HostCommunicator, sends_do_not_wait_for_their_receivers) {
  // Much larger than the rings, in both directions at once, several on their way.
  run_workers(2, kSmallRing, [](GroupTransport*, Communicator* group) {
    const int other = 1 - group->rank();
    std::vector<std::vector<float>> sent;
    for (uint64_t i = 0; i < 4; ++i) sent.push_back(values_of(group->rank(), i, 20000 + other));
    for (const auto& data : sent) {
      group->send(other, data.data(), static_cast<int64_t>(data.size()));
    }
    for (uint64_t i = 0; i < 4; ++i) {
      std::vector<float> data(20000 + static_cast<size_t>(group->rank()));
      group->receive(other, data.data(), static_cast<int64_t>(data.size()));
      EXPECT_TRUE(same_bits(data, values_of(other, i, static_cast<int64_t>(data.size()))));
    }
    group->finish_sends();
  });
}

TEST(HostCommunicator, a_send_of_one_communicator_moves_while_another_waits) {
  // 0 sends far more than the ring holds to 1 in the group and then waits for 2 in its pair; 2
  // begins only when 1 has received everything.
  std::atomic<bool> received{false};
  run_workers(3, kSmallRing, [&](GroupTransport* transport, Communicator* group) {
    std::vector<float> data = values_of(0, 3, 50000);
    float one = 1;
    if (group->rank() == 1) {
      group->receive(0, data.data(), 50000);
      received = true;
      return;
    }
    const auto pair = make_host_communicator(transport, {0, 2});
    if (group->rank() == 0) {
      group->send(1, data.data(), 50000);
    } else {
      while (!received) std::this_thread::yield();
    }
    pair->all_reduce(&one, 1);
    EXPECT_EQ(one, 2);
    group->finish_sends();
  });
}

TEST(HostCommunicator, host_values) {
  run_workers(3, kSmallRing, [](GroupTransport*, Communicator* group) {
    const int rank = group->rank();
    std::vector<double> numbers = {0.1 * (rank + 1), -0.0, 1e300};
    group->all_reduce_host(numbers);
    EXPECT_EQ(numbers[0], 0.1 * 1 + 0.1 * 2 + 0.1 * 3);
    EXPECT_TRUE(std::signbit(numbers[1]));
    EXPECT_EQ(numbers[2], 3e300);

    const std::string own(static_cast<size_t>(rank * 5001), static_cast<char>('a' + rank));
    const std::vector<std::string> texts = group->all_gather_host(own);
    ASSERT_EQ(texts.size(), 3u);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(texts[static_cast<size_t>(i)],
                std::string(static_cast<size_t>(i * 5001), static_cast<char>('a' + i)));
    }
    EXPECT_EQ(group->broadcast_host(own, 2), std::string(10002, 'c'));
    EXPECT_EQ(group->broadcast_host(own, 0), "");

    std::vector<float> range = values_of(0, 9, 3001);
    if (rank == 0) group->send_host(2, range);
    if (rank == 2) {
      std::vector<float> got(3001);
      group->receive_host(0, got);
      EXPECT_TRUE(same_bits(got, range));
    }
  });
}

TEST(HostCommunicator, random_programs_over_several_communicators) {
  for (int size = 2; size <= 5; ++size) {
    run_workers(size, kSmallRing << (size % 3),
                [&](GroupTransport* transport, Communicator* group) {
                  run_random_program(transport, group, static_cast<uint64_t>(size), 60);
                });
  }
}

TEST(HostCommunicator, float_operations_do_not_allocate) {
  std::atomic<int> warm{0};
  std::atomic<long> before{0};
  run_workers(3, kSmallRing, [&](GroupTransport*, Communicator* group) {
    const std::vector<int64_t> counts = {5000, 4000, 3000};
    std::vector<float> data(12000), other(12000);
    const auto step = [&] {
      group->all_reduce(data.data(), 12000);
      group->all_reduce(data.data(), 9);
      group->reduce_scatter(data.data(), counts);
      group->all_gather(data.data(), counts);
      group->send((group->rank() + 1) % 3, data.data(), 12000);
      group->receive((group->rank() + 2) % 3, other.data(), 12000);
      group->finish_sends();
    };
    for (int i = 0; i < 3; ++i) step();
    double count = 1;
    group->all_reduce_host({&count, 1});  // all are warm ...
    if (++warm == 3) before = testing::num_allocations.load();
    group->all_reduce_host({&count, 1});  // ... and the number is noted
    while (warm < 3) std::this_thread::yield();
    for (int i = 0; i < 5; ++i) step();
    group->all_reduce_host({&count, 1});
    if (group->rank() == 0) {
      EXPECT_EQ(testing::num_allocations.load(), before.load());
    }
    group->all_reduce_host({&count, 1});
  });
}

TEST(HostCommunicator, pain_P020_who_throws_ends_the_waits_of_its_partners) {
  const auto transports = make_thread_transports(3, kSmallRing);
  std::vector<std::thread> threads;
  std::atomic<int> ended{0};
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group =
          make_host_communicator(transports[static_cast<size_t>(rank)].get(), {0, 1, 2});
      std::vector<float> data(5000);
      try {
        group->all_reduce(data.data(), 5000);
      } catch (const Error& error) {
        if (error.reason() == Reason::kWorkerDied) ++ended;
      }
    });
  }
  try {  // as a worker does that finds its adapter wrong
    throw Error(Reason::kBadConfig, "no such module");
  } catch (const Error&) {
    transports[2]->abort();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended, 2);
}

TEST(HostCommunicator, nothing_stays_borrowed_when_a_wait_ends_by_an_exception) {
  const auto transports = make_thread_transports(2, kSmallRing);
  transports[0]->set_wait_check([] { throw Error(Reason::kStopped, "stop"); });
  const auto group = make_host_communicator(transports[0].get(), {0, 1});
  {
    std::vector<float> data(20'000);
    EXPECT_THROW(group->all_reduce(data.data(), 20'000), Error);
  }
  EXPECT_TRUE(transports[0]->sends().empty());
}

TEST(HostCommunicator, waiting_is_counted) {
  run_workers(2, kSmallRing, [](GroupTransport*, Communicator* group) {
    float one = 1;
    if (group->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    group->all_reduce(&one, 1);
    if (group->rank() == 0) {
      EXPECT_GT(group->waited_s(), 0.01);
    }
  });
}

}  // namespace
}  // namespace galley::device
