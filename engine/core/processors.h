// The processors (logical CPUs) that a process may use: which they are, how they share cores and
// memory nodes, and for how many of them its control groups leave time.
//
// Functions without state that read /proc and /sys at each call; safe from any thread. What follows
// from the facts (how many threads, which processor for whom) is decided by pure functions.
#pragma once

#include <string>
#include <vector>

namespace galley {

/// A logical CPU and where it is.
struct Processor {
  int cpu = 0;   // number of the operating system
  int core = 0;  // the lowest number among the siblings that share its arithmetic units
  int node = 0;  // of memory (NUMA)
  bool operator==(const Processor&) const = default;
};

/// What this process may use, ascending: a launcher, taskset, cpuset or Slurm decides. It is what
/// all its threads together may, so that one which is bound to a core of its own narrows nothing.
std::vector<int> allowed_cpus();
/// Where these are; a CPU that the system does not describe is a core of its own on node 0.
std::vector<Processor> describe_processors(const std::vector<int>& cpus,
                                           const std::string& system = "/sys/devices/system");
/// Processors' worth of time that the control groups of this process leave it (cpu.max, or
/// cpu.cfs_quota_us), the tightest of all levels; 0: no limit.
double cpu_quota(const std::string& own_groups = "/proc/self/cgroup",
                 const std::string& root = "/sys/fs/cgroup");

/// "0-3,8" -> 0 1 2 3 8; what is no list of numbers ends it.
std::vector<int> parse_cpu_list(const std::string& text);
/// Distinct cores among them.
int count_cores(const std::vector<Processor>& processors);
/// Threads that can compute at the same time: one per core (siblings share the arithmetic units),
/// and no more than the quota pays for, rounded up; at least 1.
int useful_threads(const std::vector<Processor>& processors, double quota);
/// The same of this process, here and now.
int useful_threads_here();

}  // namespace galley
