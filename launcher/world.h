// RunWorld: who can do what, from the ranks' Hello messages and the cluster file. Pure.
//
// Decides which ranks serve as agents, which GPUs (real, emulated or host devices) they hold, and
// which cores belong to which machine. Rank 0 serves only where its machine has no other rank.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/json.h"
#include "engine/core/processors.h"
#include "launcher/binding.h"
#include "launcher/core_pool.h"
#include "placement/cluster.h"

namespace galley::launcher {

/// What a rank says of itself and its machine in its first message.
struct Hello {
  int rank = 0;
  int protocol = 0;
  std::string build;
  std::string host;
  std::string mpi_version;
  std::vector<Processor> cpus;  // that it and its workers may run on
  int node_cpus = 0;            // of the machine
  double cpu_quota = 0;         // processors' worth of time of its control group; 0: no limit
  BoundBy bound_by = BoundBy::kNobody;
  bool binding_undone = false;  // mpirun's default, by galley
  uint64_t free_memory_bytes = 0;
  std::string visible_gpus;     // CUDA_VISIBLE_DEVICES or SLURM_STEP_GPUS there; empty: none
  bool gpu_driver = false;      // a CUDA driver library is loadable there
  std::string open_file_limit;  // soft limit
  // Slurm's variables as this rank sees them, only to be warned of: who a rank is MPI says.
  std::string slurm_procid, slurm_nodeid;
  bool in_slurm = false;
};
Json to_json(const Hello& hello);
Hello hello_from_json(int rank, const Json& message);

struct RunWorld {
  placement::Cluster cluster;
  std::vector<int> gpu_rank;               // by GpuIndex: the agent that starts its workers
  std::vector<std::string> gpu_host;       // by GpuIndex: the machine
  std::map<std::string, HostCores> cores;  // by host
  std::vector<int> agents;                 // ranks that hold GPUs or may
  std::vector<std::string> warnings;
};

/// Error(kUsage) when ranks are of different builds (with hosts and both versions);
/// Error(kBadConfig) for a cluster file that names real GPUs which are not here.
RunWorld build_world(const std::vector<Hello>& hellos,
                     const std::optional<placement::Cluster>& cluster_file);

}  // namespace galley::launcher
