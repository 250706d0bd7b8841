// Cluster: the nodes and GPUs of one allocation, as a value; and the cluster file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/json.h"
#include "predictor/gpu_table.h"

namespace galley::placement {

/// Index of a GPU in Cluster::gpus.
using GpuIndex = int;

struct Gpu {
  predictor::GpuType type;
  int node = 0;         // index in Cluster::nodes
  int local_index = 0;  // on its node
  std::string uuid;     // of a real card; made up for emulated ones
  int threads = 1;      // host device and emulated GPUs: cores of a worker there
};
struct Node {
  std::string name;
};
struct Cluster {
  std::vector<Node> nodes;
  std::vector<Gpu> gpus;
  bool emulated = false;  // GPUs are memory-limited shares of the host device
  /// "n3:gpu2"
  std::string gpu_name(GpuIndex gpu) const;
};

/// Reads cluster.toml (or JSON): [[node]] names/gpus, [cluster] emulate. Error(kBadConfig) with
/// line, nearest key; kMissingPath.
Cluster read_cluster_file(const std::string& path);

Json to_json(const Cluster& cluster);
Cluster cluster_from_json(const Json& json);

}  // namespace galley::placement
