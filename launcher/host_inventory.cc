#include "launcher/host_inventory.h"

#include "engine/core/processors.h"
#include "launcher/process.h"
#include "launcher/world.h"

namespace galley::launcher {
namespace {

Hello this_machine() {
  Hello hello;
  hello.host = host_name();
  hello.cpus = describe_processors(allowed_cpus());
  hello.node_cpus = num_online_cpus();
  hello.cpu_quota = cpu_quota();
  hello.free_memory_bytes = free_memory_bytes();
  return hello;
}

}  // namespace

placement::Cluster local_cluster() { return build_world({this_machine()}, std::nullopt).cluster; }

placement::Cluster local_view(const placement::Cluster& cluster_file) {
  if (!cluster_file.emulated) return cluster_file;
  return build_world({this_machine()}, cluster_file).cluster;
}

}  // namespace galley::launcher
