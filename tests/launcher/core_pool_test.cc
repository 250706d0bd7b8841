#include "launcher/core_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace galley::launcher {
namespace {

using Cpus = std::vector<int>;

/// `sockets` x `cores` with `threads` each; numbered as Linux does: all cores first, then siblings.
HostCores machine(int sockets, int cores, int threads) {
  HostCores host;
  for (int t = 0; t < threads; ++t) {
    for (int s = 0; s < sockets; ++s) {
      for (int c = 0; c < cores; ++c) {
        const int core = s * cores + c;
        host.processors.push_back({t * sockets * cores + core, core, s});
      }
    }
  }
  return host;
}

Cpus range(int first, int last) {
  Cpus cpus;
  for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  return cpus;
}

TEST(CorePool, two_workers_get_a_socket_each) {
  CorePool pool({{"x", machine(2, 8, 1)}});
  EXPECT_EQ(pool.take("x", 8), range(0, 7));
  EXPECT_EQ(pool.take("x", 8), range(8, 15));
}

TEST(CorePool, a_worker_that_fits_a_node_never_straddles_two) {
  CorePool pool({{"x", machine(2, 8, 1)}});
  EXPECT_EQ(pool.take("x", 5), range(0, 4));
  EXPECT_EQ(pool.take("x", 4), range(8, 11));  // three are left on node 0: too few
  EXPECT_EQ(pool.take("x", 3), range(5, 7));   // these three fit there exactly
  EXPECT_EQ(pool.take("x", 4), range(12, 15));
}

TEST(CorePool, a_worker_larger_than_a_node_takes_few_nodes) {
  CorePool pool({{"x", machine(4, 4, 1)}});
  EXPECT_EQ(pool.take("x", 2), range(0, 1));
  EXPECT_EQ(pool.take("x", 7), (Cpus{4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(CorePool({{"x", machine(2, 8, 1)}}).take("x", 16), range(0, 15));
}

TEST(CorePool, workers_get_whole_cores_and_share_no_siblings) {
  CorePool pool({{"x", machine(2, 8, 2)}});
  std::set<int> cores;
  for (int worker = 0; worker < 4; ++worker) {
    const Cpus cpus = pool.take("x", 4);
    ASSERT_EQ(cpus.size(), 4u);
    const int node = cpus[0] / 8;
    for (const int cpu : cpus) {
      EXPECT_LT(cpu, 16);  // one thread of each core
      EXPECT_EQ(cpu / 8, node);
      EXPECT_TRUE(cores.insert(cpu % 16).second);
    }
  }
  EXPECT_EQ(machine(2, 8, 2).threads(), 16);
}

TEST(CorePool, more_workers_than_cores_share_them_evenly_siblings_first) {
  CorePool pool({{"x", machine(1, 2, 2)}});
  EXPECT_EQ(pool.take("x", 2), (Cpus{0, 1}));
  EXPECT_EQ(pool.take("x", 2), (Cpus{2, 3}));  // the siblings, not the same processors
  EXPECT_EQ(pool.take("x", 1), (Cpus{0}));
  EXPECT_EQ(pool.take("x", 1), (Cpus{1}));
  CorePool single({{"x", machine(1, 1, 1)}});
  EXPECT_EQ(single.take("x", 1), Cpus{0});
  EXPECT_EQ(single.take("x", 3), Cpus{0});  // fewer when it has fewer
}

TEST(CorePool, what_is_given_back_is_taken_again) {
  CorePool pool({{"x", machine(1, 4, 1)}, {"y", machine(1, 4, 1)}});
  const Cpus first = pool.take("x", 2);
  EXPECT_EQ(pool.take("x", 2), (Cpus{2, 3}));
  pool.give_back("x", first);
  EXPECT_EQ(pool.take("x", 2), first);
  EXPECT_EQ(pool.take("y", 4), range(0, 3));  // another machine is not concerned
  EXPECT_TRUE(pool.take("nowhere", 2).empty());
}

TEST(CorePool, a_quota_of_time_binds_nobody) {
  HostCores limited = machine(1, 8, 1);
  limited.quota = 2.5;
  EXPECT_EQ(limited.threads(), 3);
  EXPECT_TRUE(CorePool({{"x", limited}}).take("x", 3).empty());
  limited.quota = 8;
  EXPECT_EQ(CorePool({{"x", limited}}).take("x", 8), range(0, 7));
}

}  // namespace
}  // namespace galley::launcher
