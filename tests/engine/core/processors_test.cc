#include "engine/core/processors.h"

#include <gtest/gtest.h>
#include <sched.h>

#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "tests/support/reference.h"

namespace galley {
namespace {

void put(const std::string& root, const std::string& path, const std::string& text) {
  make_directories(path_directory(path_join(root, path)));
  write_file_atomically(path_join(root, path), text);
}

/// Two sockets of 8 cores with two threads each, numbered as Linux does: cores first, then
/// siblings.
std::string two_sockets(const std::string& name) {
  const std::string root = testing::scratch_directory(name);
  put(root, "node/online", "0-1\n");
  put(root, "node/node0/cpulist", "0-7,16-23\n");
  put(root, "node/node1/cpulist", "8-15,24-31\n");
  for (int cpu = 0; cpu < 32; ++cpu) {
    put(root, cat("cpu/cpu", cpu, "/topology/thread_siblings_list"),
        cat(cpu % 16, ",", cpu % 16 + 16, "\n"));
  }
  return root;
}

TEST(Processors, cpu_lists) {
  EXPECT_EQ(parse_cpu_list("0-3,8\n"), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list("5"), std::vector<int>{5});
  EXPECT_TRUE(parse_cpu_list("").empty());
  EXPECT_TRUE(parse_cpu_list("none").empty());
  EXPECT_TRUE(parse_cpu_list("0-99999999").empty());
}

TEST(Processors, siblings_and_nodes_come_from_the_system) {
  const std::string root = two_sockets("topology");
  const auto found = describe_processors({0, 9, 16, 31}, root);
  EXPECT_EQ(found, (std::vector<Processor>{{0, 0, 0}, {9, 9, 1}, {16, 0, 0}, {31, 15, 1}}));
  EXPECT_EQ(count_cores(found), 3);
}

TEST(Processors, a_system_that_says_nothing_has_one_thread_per_core) {
  const auto found = describe_processors({2, 5}, testing::scratch_directory("no_topology"));
  EXPECT_EQ(found, (std::vector<Processor>{{2, 2, 0}, {5, 5, 0}}));
}

TEST(Processors, threads_are_cores_and_no_more_than_the_quota_pays_for) {
  std::vector<int> all(32);
  for (int cpu = 0; cpu < 32; ++cpu) all[static_cast<size_t>(cpu)] = cpu;
  const auto processors = describe_processors(all, two_sockets("useful"));
  EXPECT_EQ(useful_threads(processors, 0), 16);
  EXPECT_EQ(useful_threads(processors, 2), 2);
  EXPECT_EQ(useful_threads(processors, 2.5), 3);
  EXPECT_EQ(useful_threads(processors, 0.1), 1);
  EXPECT_EQ(useful_threads(processors, 64), 16);
  EXPECT_EQ(useful_threads({}, 0), 1);
}

TEST(Processors, quota_of_control_groups) {
  const std::string root = testing::scratch_directory("quota");
  put(root, "a/b/cpu.max", "400000 100000\n");
  put(root, "a/cpu.max", "150000 100000\n");
  put(root, "free/cpu.max", "max 100000\n");
  put(root, "cpu,cpuacct/box/cpu.cfs_quota_us", "50000\n");
  put(root, "cpu,cpuacct/box/cpu.cfs_period_us", "25000\n");
  put(root, "cpu,cpuacct/open/cpu.cfs_quota_us", "-1\n");
  put(root, "cpu,cpuacct/open/cpu.cfs_period_us", "100000\n");
  const auto quota = [&root](const std::string& groups) {
    put(root, "self", groups);
    return cpu_quota(path_join(root, "self"), root);
  };
  EXPECT_DOUBLE_EQ(quota("0::/a/b\n"), 1.5);  // the tightest of all levels
  EXPECT_DOUBLE_EQ(quota("0::/free\n"), 0);
  EXPECT_DOUBLE_EQ(quota("4:cpu,cpuacct:/box\n0::/\n"), 2);
  EXPECT_DOUBLE_EQ(quota("4:cpu,cpuacct:/open\n0::/free\n"), 0);
  EXPECT_DOUBLE_EQ(quota(""), 0);
  // In a container the root of what is mounted is the container's own group.
  put(root, "cpu.max", "300000 100000\n");
  EXPECT_DOUBLE_EQ(quota("0::/docker/0123\n"), 3);
  EXPECT_DOUBLE_EQ(quota("0::/\n"), 3);
}

TEST(Processors, this_machine) {
  EXPECT_FALSE(allowed_cpus().empty());
  EXPECT_GE(useful_threads_here(), 1);
  EXPECT_LE(useful_threads_here(), static_cast<int>(allowed_cpus().size()));
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(allowed_cpus().back()), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(useful_threads_here(), 1);
  sched_setaffinity(0, sizeof before, &before);
}

}  // namespace
}  // namespace galley
