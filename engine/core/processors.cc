#include "engine/core/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "engine/core/strings.h"

namespace galley {
namespace {

/// Pseudo files have no size; empty when there is none.
std::string read_pseudo_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// "200000 100000" of cpu.max: processors' worth of time; nothing for "max".
std::optional<double> quota_v2(const std::string& folder) {
  const std::string text = read_pseudo_file(folder + "/cpu.max");
  const std::vector<std::string> words = split(trim(text), ' ');
  if (words.size() != 2) return std::nullopt;
  const auto quota = parse_int(words[0]), period = parse_int(words[1]);
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

std::optional<double> quota_v1(const std::string& folder) {
  const auto quota = parse_int(trim(read_pseudo_file(folder + "/cpu.cfs_quota_us")));
  const auto period = parse_int(trim(read_pseudo_file(folder + "/cpu.cfs_period_us")));
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

/// The tightest quota of a group and all above it. A container sees its own group as the root,
/// whatever path it is told.
template <typename Quota>
void tighten(const std::string& root, std::string group, const Quota& quota_of, double* quota) {
  while (true) {
    while (!group.empty() && group.back() == '/') group.pop_back();
    if (const std::optional<double> here = quota_of(root + group)) {
      *quota = *quota > 0 ? std::min(*quota, *here) : *here;
    }
    if (group.empty()) return;
    group.resize(group.find_last_of('/') == std::string::npos ? 0 : group.find_last_of('/'));
  }
}

int first_number_in(const std::string& path, int otherwise) {
  const std::vector<int> list = parse_cpu_list(read_pseudo_file(path));
  return list.empty() ? otherwise : *std::min_element(list.begin(), list.end());
}

}  // namespace

std::vector<int> allowed_cpus() {
  cpu_set_t all;
  CPU_ZERO(&all);
  std::error_code ignored;  // a thread may end meanwhile
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    cpu_set_t set;
    const auto id = parse_int(task.path().filename().string());
    if (!id || sched_getaffinity(static_cast<pid_t>(*id), sizeof set, &set) != 0) continue;
    CPU_OR(&all, &all, &set);
  }
  cpu_set_t own;
  if (sched_getaffinity(0, sizeof own, &own) == 0) CPU_OR(&all, &all, &own);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all)) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<Processor> describe_processors(const std::vector<int>& cpus,
                                           const std::string& system) {
  std::vector<Processor> processors;
  for (const int cpu : cpus) {
    const std::string siblings = cat(system, "/cpu/cpu", cpu, "/topology/thread_siblings_list");
    processors.push_back({cpu, first_number_in(siblings, cpu), 0});
  }
  for (const int node : parse_cpu_list(read_pseudo_file(system + "/node/online"))) {
    const auto there =
        parse_cpu_list(read_pseudo_file(cat(system, "/node/node", node, "/cpulist")));
    for (Processor& processor : processors) {
      if (std::find(there.begin(), there.end(), processor.cpu) != there.end()) {
        processor.node = node;
      }
    }
  }
  return processors;
}

double cpu_quota(const std::string& own_groups, const std::string& root) {
  double quota = 0;
  for (const std::string& line : split(read_pseudo_file(own_groups), '\n')) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) tighten(root, group, quota_v2, &quota);
    const std::vector<std::string> names = split(controllers, ',');
    if (std::find(names.begin(), names.end(), "cpu") != names.end()) {
      tighten(cat(root, "/", controllers), group, quota_v1, &quota);
    }
  }
  return quota;
}

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  if (trim(text).empty()) return cpus;
  for (const std::string& part : split(trim(text), ',')) {
    const size_t dash = part.find('-');
    const auto first = parse_int(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : parse_int(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last >= CPU_SETSIZE) return cpus;
    for (int64_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

int count_cores(const std::vector<Processor>& processors) {
  std::set<int> cores;
  for (const Processor& processor : processors) cores.insert(processor.core);
  return static_cast<int>(cores.size());
}

int useful_threads(const std::vector<Processor>& processors, double quota) {
  int threads = count_cores(processors);
  if (quota > 0) threads = std::min(threads, static_cast<int>(std::ceil(std::min(quota, 1e6))));
  return std::max(threads, 1);
}

int useful_threads_here() {
  return useful_threads(describe_processors(allowed_cpus()), cpu_quota());
}

}  // namespace galley
