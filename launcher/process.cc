#include "launcher/process.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"

namespace galley::launcher {
namespace {

/// Small pseudo files say 0 for their size, so they are read as streams; empty when unreadable.
std::string read_proc(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The number after `key` at the start of a line.
std::optional<int64_t> field_after(const std::string& text, std::string_view key) {
  for (const std::string& line : split(text, '\n')) {
    if (!line.starts_with(key)) continue;
    const std::string rest(trim(std::string_view(line).substr(key.size())));
    return parse_int(rest.substr(0, rest.find_first_of(" \t")));
  }
  return std::nullopt;
}

std::string own_cgroup() {
  for (const std::string& line : split(read_proc("/proc/self/cgroup"), '\n')) {
    if (line.starts_with("0::")) return line.substr(3);
  }
  return "";
}

}  // namespace

std::string own_executable() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length < 0) throw_errno("read", "/proc/self/exe", errno, Reason::kInternal);
  return {path, static_cast<size_t>(length)};
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

int num_online_cpus() { return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)); }

uint64_t free_memory_bytes() {
  const auto available = field_after(read_proc("/proc/meminfo"), "MemAvailable:");
  uint64_t bytes = static_cast<uint64_t>(available.value_or(0)) * 1024;
  // Every group up to the root may hold a limit of its own (a container's root is its own group).
  for (std::string group = own_cgroup();;) {
    while (!group.empty() && group.back() == '/') group.pop_back();
    const std::string folder = "/sys/fs/cgroup" + group;
    const auto limit = parse_int(trim(read_proc(folder + "/memory.max")));
    const auto used = parse_int(trim(read_proc(folder + "/memory.current")));
    if (limit && used) {
      bytes = std::min(bytes, static_cast<uint64_t>(std::max<int64_t>(*limit - *used, 0)));
    }
    if (group.empty()) break;
    group.resize(group.find_last_of('/') == std::string::npos ? 0 : group.find_last_of('/'));
  }
  return bytes;
}

uint64_t resident_bytes(pid_t pid) {
  const std::string status = read_proc(cat("/proc/", pid, "/status"));
  const int64_t kib =
      field_after(status, "RssAnon:").value_or(0) + field_after(status, "RssShmem:").value_or(0);
  return static_cast<uint64_t>(kib) * 1024;
}

std::optional<uint64_t> process_start_ticks(pid_t pid) {
  const std::string stat = read_proc(cat("/proc/", pid, "/stat"));
  const size_t name_end = stat.rfind(')');  // the name may hold spaces and brackets
  if (name_end == std::string::npos) return std::nullopt;
  const std::vector<std::string> fields = split(trim(stat.substr(name_end + 1)), ' ');
  constexpr size_t kStartTime = 19;  // field 22 of proc(5), counted from the state
  if (fields.size() <= kStartTime || fields[0] == "Z") return std::nullopt;
  const auto ticks = parse_int(fields[kStartTime]);
  return ticks ? std::optional<uint64_t>(static_cast<uint64_t>(*ticks)) : std::nullopt;
}

int64_t oom_kill_count(const std::string& cgroup_root) {
  return field_after(read_proc(cgroup_root + own_cgroup() + "/memory.events"), "oom_kill ")
      .value_or(0);
}

double monotonic_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double wall_clock_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace galley::launcher
