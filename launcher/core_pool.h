// CorePool: hands the cores of each machine out to workers. Pure; owned by the coordinator.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/core/processors.h"

namespace galley::launcher {

/// What a run may use of one machine.
struct HostCores {
  std::vector<Processor> processors;
  double quota = 0;  // processors' worth of time that its control group leaves; 0: no limit

  /// Threads that can compute there at the same time.
  int threads() const { return useful_threads(processors, quota); }
  /// A quota is of time, not of cores: who is bound then meets others on the same cores while the
  /// rest of the machine idles.
  bool may_bind() const { return quota <= 0 || quota >= count_cores(processors); }
};

class CorePool {
 public:
  explicit CorePool(const std::map<std::string, HostCores>& hosts);
  /// One processor on each of `count` whole cores of a host, in ascending order: the least used
  /// ones, all on one memory node where that is possible, else on few nodes; siblings stay free as
  /// long as there are cores. Fewer when the host has fewer; none when workers are not to be bound.
  std::vector<int> take(const std::string& host, int count);
  void give_back(const std::string& host, const std::vector<int>& cpus);

 private:
  struct Core {
    int node = 0;
    std::map<int, int> users;  // by processor
    int num_users() const;
  };
  std::map<std::string, std::map<int, Core>> hosts_;
};

}  // namespace galley::launcher
