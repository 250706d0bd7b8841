#include "launcher/world.h"

#include <algorithm>
#include <set>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "launcher/protocol.h"

namespace galley::launcher {
namespace {

void check_same_build(const std::vector<Hello>& hellos) {
  const Hello& first = hellos.front();
  for (const Hello& hello : hellos) {
    if (hello.build == first.build && hello.protocol == first.protocol) continue;
    throw Error(Reason::kUsage, cat("rank ", hello.rank, " on ", hello.host, " runs galley ",
                                    hello.build, " (protocol ", hello.protocol, "), but rank 0 on ",
                                    first.host, " runs ", first.build, " (protocol ",
                                    first.protocol, "); start the same program on every node"));
  }
}

std::map<std::string, HostCores> cores_by_host(const std::vector<Hello>& hellos) {
  std::map<std::string, std::map<int, Processor>> found;
  std::map<std::string, HostCores> cores;
  for (const Hello& hello : hellos) {
    for (const Processor& processor : hello.cpus) found[hello.host][processor.cpu] = processor;
    double& quota = cores[hello.host].quota;
    if (hello.cpu_quota > 0) quota = quota > 0 ? std::min(quota, hello.cpu_quota) : hello.cpu_quota;
  }
  for (const auto& [host, processors] : found) {
    for (const auto& [cpu, processor] : processors) cores[host].processors.push_back(processor);
  }
  return cores;
}

std::vector<int> choose_agents(const std::vector<Hello>& hellos) {
  std::map<std::string, int> ranks_on;
  for (const Hello& hello : hellos) ++ranks_on[hello.host];
  std::vector<int> agents;
  for (const Hello& hello : hellos) {
    if (hello.rank != 0 || ranks_on[hello.host] == 1) agents.push_back(hello.rank);
  }
  return agents;
}

/// What the ranks with one core are told, by who bound them.
std::string binding_remedy(BoundBy bound) {
  switch (bound) {
    case BoundBy::kMpirunDefault:
    case BoundBy::kMpirunOption:
      return cat(" (", bound_by_name(bound),
                 "); add --bind-to none to mpirun: galley binds its workers itself");
    case BoundBy::kSrun:
      return " (srun); add --cpu-bind=none to srun: galley binds its workers itself";
    case BoundBy::kNobody:
      break;
  }
  return " (taskset, a container or the allocation gives no more; under mpirun it may be its "
         "binding: add --bind-to none)";
}

void warn_of_binding(const std::vector<Hello>& hellos, RunWorld* world) {
  std::vector<std::string> undone;
  std::map<BoundBy, std::vector<std::string>> bound;
  for (const Hello& hello : hellos) {
    if (hello.binding_undone) undone.push_back(cat(hello.rank));
    if (count_cores(hello.cpus) == 1 && hello.node_cpus > static_cast<int>(hello.cpus.size())) {
      bound[hello.bound_by].push_back(cat(hello.rank));
    }
  }
  if (!undone.empty()) {
    world->warnings.push_back(
        cat("mpirun bound rank ", join(undone, ", "),
            " to single cores, as it does when told nothing; galley uses all cores that mpirun "
            "may use and binds its workers itself. --bind-to none avoids this"));
  }
  for (const auto& [by, ranks] : bound) {
    world->warnings.push_back(
        cat("rank ", join(ranks, ", "), " may use one core only", binding_remedy(by)));
  }
}

void warn_of_quota(RunWorld* world) {
  for (const auto& [host, cores] : world->cores) {
    if (cores.may_bind()) continue;
    world->warnings.push_back(cat("the control group of ", host, " leaves the time of ",
                                  format("%.3g", cores.quota), " of its ",
                                  count_cores(cores.processors), " cores: workers there have ",
                                  cores.threads(), " threads in all, bound to no core"));
  }
}

void warn_of_gpus(const std::vector<Hello>& hellos, RunWorld* world) {
  std::set<std::string> without_driver, with_driver;
  for (const Hello& hello : hellos) {
    const bool listed = !hello.visible_gpus.empty() && hello.visible_gpus != "NoDevFiles" &&
                        hello.visible_gpus != "-1";
    if (hello.gpu_driver) with_driver.insert(hello.host);
    if (listed && !hello.gpu_driver) without_driver.insert(hello.host);
  }
  const auto names = [](const std::set<std::string>& hosts) {
    return join(std::vector<std::string>(hosts.begin(), hosts.end()), ", ");
  };
  if (!without_driver.empty()) {
    world->warnings.push_back(
        cat("GPUs are listed on ", names(without_driver),
            ", but no driver answers for them there; the host devices are used"));
  }
  if (!with_driver.empty()) {
    world->warnings.push_back(cat("there are GPUs on ", names(with_driver),
                                  ", but this version trains on host devices only"));
  }
}

/// Cards that answer, but that this version does not train on.
void warn_of_idle_gpus(const std::vector<Hello>& hellos, RunWorld* world) {
  std::set<std::string> hosts;
  for (const Hello& hello : hellos) {
    if (hello.gpu_driver) hosts.insert(hello.host);
  }
  if (hosts.empty()) return;
  world->warnings.push_back(cat(
      "there is a GPU driver on ", join(std::vector<std::string>(hosts.begin(), hosts.end()), ", "),
      ", but this version trains on the host devices only; the GPUs stay idle"));
}

/// Under mpirun in a Slurm job ranks inherit the numbers of the batch shell or of mpirun's daemon
/// on their node, which nobody can help. Where there is no Slurm job, somebody has exported what a
/// script's shell had.
void warn_of_slurm_numbers(const std::vector<Hello>& hellos, RunWorld* world) {
  std::vector<std::string> contradicting;
  std::map<std::string, std::set<std::string>> hosts;  // by variable and value
  bool in_slurm = true;
  for (const Hello& hello : hellos) {
    in_slurm = in_slurm && hello.in_slurm;
    if (!hello.slurm_procid.empty()) {
      hosts["SLURM_PROCID=" + hello.slurm_procid].insert(hello.host);
      if (hello.slurm_procid != cat(hello.rank)) contradicting.push_back(cat(hello.rank));
    }
    if (!hello.slurm_nodeid.empty()) {
      hosts["SLURM_NODEID=" + hello.slurm_nodeid].insert(hello.host);
    }
  }
  std::vector<std::string> copied;
  for (const auto& [variable, on] : hosts) {
    if (on.size() > 1) copied.push_back(variable);
  }
  if (in_slurm || (copied.empty() && contradicting.empty())) return;
  world->warnings.push_back(
      cat(copied.empty() ? cat("SLURM_PROCID is not the rank on rank ", join(contradicting, ", "))
                         : cat(join(copied, " and "), " on several nodes"),
          ": it was typed or exported in a script. galley takes ranks from MPI and nodes from what "
          "they call themselves, and ignores it"));
}

/// The agents that share the GPUs of a node: in turn over the nodes, of one machine.
std::vector<int> agents_of_node(int node, size_t num_nodes, const std::vector<Hello>& hellos,
                                const std::vector<int>& agents) {
  const size_t first = static_cast<size_t>(node) % agents.size();
  const auto host = [&](size_t i) { return hellos[static_cast<size_t>(agents[i])].host; };
  std::vector<int> chosen;
  for (size_t i = first; i < agents.size(); i += std::max<size_t>(num_nodes, 1)) {
    if (host(i) == host(first)) chosen.push_back(agents[i]);
  }
  return chosen;
}

void add_emulated(const placement::Cluster& file, const std::vector<Hello>& hellos,
                  RunWorld* world) {
  world->cluster = file;
  std::map<std::string, int> gpus_on;
  for (placement::Gpu& gpu : world->cluster.gpus) {
    const std::vector<int> ranks =
        agents_of_node(gpu.node, world->cluster.nodes.size(), hellos, world->agents);
    const int rank = ranks[static_cast<size_t>(gpu.local_index) % ranks.size()];
    const std::string& host = hellos[static_cast<size_t>(rank)].host;
    world->gpu_rank.push_back(rank);
    world->gpu_host.push_back(host);
    ++gpus_on[host];
  }
  for (size_t i = 0; i < world->cluster.gpus.size(); ++i) {
    const std::string& host = world->gpu_host[i];
    const int cores = world->cores[host].threads();
    world->cluster.gpus[i].threads = std::max(1, cores / gpus_on[host]);
  }
}

// Rough peaks for the planner's order of speeds only; one type per machine, so they decide nothing
// else.
constexpr double kFlopsPerCore = 40e9;
constexpr double kBytesPerSecondPerCore = 8e9;
constexpr double kUsableMemory =
    0.9;  // of what is free: the system and the page cache need the rest

void add_host_devices(const std::vector<Hello>& hellos, RunWorld* world) {
  std::set<std::string> done;
  for (const int rank : world->agents) {
    const Hello& hello = hellos[static_cast<size_t>(rank)];
    if (!done.insert(hello.host).second) continue;
    const int cores = world->cores[hello.host].threads();
    placement::Gpu gpu;
    gpu.type.name = predictor::kHostTypeName;
    gpu.type.description = cat("host device of ", hello.host, ", ", cores, " cores");
    gpu.type.memory_bytes =
        static_cast<uint64_t>(kUsableMemory * static_cast<double>(hello.free_memory_bytes));
    gpu.type.bandwidth_bytes_per_s = cores * kBytesPerSecondPerCore;
    gpu.type.peak_f32_flops = cores * kFlopsPerCore;
    gpu.node = static_cast<int>(world->cluster.nodes.size());
    gpu.uuid = cat("host:", hello.host);
    gpu.threads = cores;
    world->cluster.nodes.push_back({hello.host});
    world->cluster.gpus.push_back(std::move(gpu));
    world->gpu_rank.push_back(rank);
    world->gpu_host.push_back(hello.host);
  }
  world->cluster.emulated = true;
}

}  // namespace

Json to_json(const Hello& hello) {
  Json cpus = Json::array();
  for (const Processor& processor : hello.cpus) {
    Json place = Json::array();
    for (const int number : {processor.cpu, processor.core, processor.node}) place.push(number);
    cpus.push(std::move(place));
  }
  return make_message("hello")
      .set("protocol", hello.protocol)
      .set("build", hello.build)
      .set("host", hello.host)
      .set("mpi_version", hello.mpi_version)
      .set("cpus", std::move(cpus))
      .set("node_cpus", hello.node_cpus)
      .set("cpu_quota", hello.cpu_quota)
      .set("bound_by", bound_by_name(hello.bound_by))
      .set("binding_undone", hello.binding_undone)
      .set("free_memory_bytes", Json(hello.free_memory_bytes))
      .set("visible_gpus", hello.visible_gpus)
      .set("gpu_driver", hello.gpu_driver)
      .set("open_file_limit", hello.open_file_limit)
      .set("slurm_procid", hello.slurm_procid)
      .set("slurm_nodeid", hello.slurm_nodeid)
      .set("in_slurm", hello.in_slurm);
}

Hello hello_from_json(int rank, const Json& message) {
  Hello hello;
  hello.rank = rank;
  hello.protocol = static_cast<int>(message.get_int("protocol"));
  hello.build = message.get_string("build");
  hello.host = message.get_string("host");
  hello.mpi_version = message.get_string("mpi_version");
  for (const Json& cpu : message.at("cpus").as_array()) {
    const auto number = [&cpu](size_t i) {
      return static_cast<int>(cpu.as_array().at(i).as_int());
    };
    hello.cpus.push_back({number(0), number(1), number(2)});
  }
  hello.node_cpus = static_cast<int>(message.get_int("node_cpus"));
  hello.cpu_quota = message.get_double("cpu_quota");
  hello.bound_by = bound_by_from_name(message.get_string("bound_by"));
  hello.binding_undone = message.get_bool("binding_undone");
  hello.free_memory_bytes = static_cast<uint64_t>(message.get_int("free_memory_bytes"));
  hello.visible_gpus = message.get_string("visible_gpus");
  hello.gpu_driver = message.get_bool("gpu_driver");
  hello.open_file_limit = message.get_string("open_file_limit");
  hello.slurm_procid = message.get_string("slurm_procid");
  hello.slurm_nodeid = message.get_string("slurm_nodeid");
  hello.in_slurm = message.get_bool("in_slurm");
  return hello;
}

RunWorld build_world(const std::vector<Hello>& hellos,
                     const std::optional<placement::Cluster>& cluster_file) {
  GALLEY_CHECK(!hellos.empty());
  check_same_build(hellos);
  RunWorld world;
  world.cores = cores_by_host(hellos);
  world.agents = choose_agents(hellos);
  warn_of_binding(hellos, &world);
  warn_of_quota(&world);
  warn_of_slurm_numbers(hellos, &world);
  if (cluster_file) {
    if (!cluster_file->emulated) {
      throw Error(
          Reason::kBadConfig,
          "the cluster file names real GPUs, which are for `galley plan`; to run on emulated "
          "ones add emulate = true under [cluster], to run on what is here leave --cluster out");
    }
    add_emulated(*cluster_file, hellos, &world);
  } else {
    warn_of_gpus(hellos, &world);
    warn_of_idle_gpus(hellos, &world);
    add_host_devices(hellos, &world);
  }
  return world;
}

}  // namespace galley::launcher
