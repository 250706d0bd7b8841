#include "launcher/core_pool.h"

#include <algorithm>
#include <utility>

namespace galley::launcher {

CorePool::CorePool(const std::map<std::string, std::vector<int>>& cores) {
  for (const auto& [host, list] : cores) {
    for (const int core : list) users_[host][core] = 0;
  }
}

std::vector<int> CorePool::take(const std::string& host, int count) {
  std::map<int, int>& users = users_[host];
  std::vector<std::pair<int, int>> order;  // users, core
  for (const auto& [core, number] : users) order.emplace_back(number, core);
  std::sort(order.begin(), order.end());
  order.resize(std::min(order.size(), static_cast<size_t>(std::max(count, 0))));
  std::vector<int> taken;
  for (const auto& [number, core] : order) {
    ++users[core];
    taken.push_back(core);
  }
  std::sort(taken.begin(), taken.end());
  return taken;
}

void CorePool::give_back(const std::string& host, const std::vector<int>& cores) {
  for (const int core : cores) --users_[host][core];
}

}  // namespace galley::launcher
