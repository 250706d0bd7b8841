// Small facts about processes of this machine, from /proc. Pure reads; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace galley::launcher {

/// Path of the running program, links resolved.
std::string own_executable();
std::string host_name();
/// Cores of this machine that are online.
int num_online_cpus();
/// Memory that this process may still take: MemAvailable, or less under a cgroup limit.
uint64_t free_memory_bytes();
/// RssAnon + RssShmem of a process, or 0 when it is gone.
uint64_t resident_bytes(pid_t pid);
/// Start time of a process in clock ticks since boot (tells a reused pid apart); nothing when gone.
std::optional<uint64_t> process_start_ticks(pid_t pid);
/// Times the out-of-memory killer struck in the cgroup of this process (memory.events); 0 if
/// unknown.
int64_t oom_kill_count(const std::string& cgroup_root = "/sys/fs/cgroup");
/// Seconds since an arbitrary start, never set back.
double monotonic_now();
/// Unix time in seconds.
double wall_clock_now();

}  // namespace galley::launcher
