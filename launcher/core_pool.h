// CorePool: hands the cores of each machine out to workers. Pure; owned by the coordinator.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace galley::launcher {

class CorePool {
 public:
  explicit CorePool(const std::map<std::string, std::vector<int>>& cores);
  /// The `count` least used cores of a host, in ascending order; fewer when it has fewer.
  std::vector<int> take(const std::string& host, int count);
  void give_back(const std::string& host, const std::vector<int>& cores);

 private:
  std::map<std::string, std::map<int, int>> users_;  // host -> core -> workers on it
};

}  // namespace galley::launcher
