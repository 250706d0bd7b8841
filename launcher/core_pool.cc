#include "launcher/core_pool.h"

#include <algorithm>
#include <limits>

namespace galley::launcher {

int CorePool::Core::num_users() const {
  int sum = 0;
  for (const auto& [cpu, number] : users) sum += number;
  return sum;
}

CorePool::CorePool(const std::map<std::string, HostCores>& hosts) {
  for (const auto& [host, cores] : hosts) {
    if (!cores.may_bind()) continue;
    for (const Processor& processor : cores.processors) {
      Core& core = hosts_[host][processor.core];
      core.node = processor.node;
      core.users[processor.cpu] = 0;
    }
  }
}

std::vector<int> CorePool::take(const std::string& host, int count) {
  std::map<int, Core>& cores = hosts_[host];
  std::vector<int> left;  // core numbers
  for (const auto& [number, core] : cores) left.push_back(number);
  std::vector<int> taken;
  while (count > static_cast<int>(taken.size()) && !left.empty()) {
    int least = std::numeric_limits<int>::max();
    for (const int number : left) least = std::min(least, cores[number].num_users());
    std::map<int, std::vector<int>> by_node;  // of the least used ones
    for (const int number : left) {
      if (cores[number].num_users() == least) by_node[cores[number].node].push_back(number);
    }
    // The fullest node that can take the worker whole; if none can, the emptiest.
    const size_t missing = static_cast<size_t>(count) - taken.size();
    const std::vector<int>* best = nullptr;
    for (const auto& [node, numbers] : by_node) {
      if (best == nullptr) {
        best = &numbers;
        continue;
      }
      const bool fits = numbers.size() >= missing, best_fits = best->size() >= missing;
      if (fits ? !best_fits || numbers.size() < best->size()
               : !best_fits && numbers.size() > best->size()) {
        best = &numbers;
      }
    }
    for (size_t i = 0; i < std::min(missing, best->size()); ++i) {
      std::map<int, int>& users = cores[(*best)[i]].users;
      const auto sibling =
          std::min_element(users.begin(), users.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
      ++sibling->second;
      taken.push_back(sibling->first);
      left.erase(std::find(left.begin(), left.end(), (*best)[i]));
    }
  }
  std::sort(taken.begin(), taken.end());
  return taken;
}

void CorePool::give_back(const std::string& host, const std::vector<int>& cpus) {
  for (auto& [number, core] : hosts_[host]) {
    for (auto& [cpu, users] : core.users) {
      if (std::find(cpus.begin(), cpus.end(), cpu) != cpus.end()) --users;
    }
  }
}

}  // namespace galley::launcher
