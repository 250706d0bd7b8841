#include "launcher/binding.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/core/processors.h"
#include "engine/core/strings.h"

namespace galley::launcher {
namespace {

constexpr std::array<std::pair<BoundBy, std::string_view>, 4> kNames = {{
    {BoundBy::kNobody, ""},
    {BoundBy::kMpirunDefault, "mpirun's default"},
    {BoundBy::kMpirunOption, "an option of mpirun"},
    {BoundBy::kSrun, "srun"},
}};

bool wished(const Environment& environment) {
  for (const char* name : {"OMPI_MCA_hwloc_base_binding_policy", "OMPI_MCA_hwloc_base_cpu_list",
                           "OMPI_MCA_hwloc_base_cpu_set", "OMPI_MCA_rmaps_base_cpus_per_rank",
                           "OMPI_MCA_orte_rankfile", "OMPI_MCA_rmaps_rank_file_path"}) {
    if (environment.has(name)) return true;
  }
  const std::string mapping =
      to_lower(environment.get("OMPI_MCA_rmaps_base_mapping_policy").value_or(""));
  return mapping.find("pe=") != std::string::npos;
}

/// Processors of this thread and of its parent, which is mpirun's daemon on this machine: that one
/// has what taskset or Slurm left to it.
std::pair<cpu_set_t, cpu_set_t> own_and_parents() {
  cpu_set_t own, parents;
  CPU_ZERO(&own);
  CPU_ZERO(&parents);
  sched_getaffinity(0, sizeof own, &own);
  sched_getaffinity(getppid(), sizeof parents, &parents);
  return {own, parents};
}

}  // namespace

BoundBy bound_by(const Environment& environment) {
  if (environment.get("OMPI_MCA_orte_bound_at_launch").value_or("0") == "1") {
    return wished(environment) ? BoundBy::kMpirunOption : BoundBy::kMpirunDefault;
  }
  const std::string type = environment.get("SLURM_CPU_BIND_TYPE").value_or("none");
  const bool started_by_srun = !environment.has("OMPI_COMM_WORLD_RANK");
  return started_by_srun && type != "none" && !type.empty() ? BoundBy::kSrun : BoundBy::kNobody;
}

std::string bound_by_name(BoundBy bound) {
  for (const auto& [value, name] : kNames) {
    if (value == bound) return std::string(name);
  }
  return "";
}

BoundBy bound_by_from_name(const std::string& name) {
  for (const auto& [value, known] : kNames) {
    if (known == name) return value;
  }
  return BoundBy::kNobody;
}

void undo_default_binding(const Environment& environment) {
  if (bound_by(environment) != BoundBy::kMpirunDefault) return;
  const auto [own, parents] = own_and_parents();
  cpu_set_t both;
  CPU_AND(&both, &own, &parents);
  const bool wider = CPU_EQUAL(&both, &own) && CPU_COUNT(&parents) > CPU_COUNT(&own);
  if (wider) sched_setaffinity(0, sizeof parents, &parents);
}

bool default_binding_undone(const Environment& environment) {
  if (bound_by(environment) != BoundBy::kMpirunDefault) return false;
  const auto [own, parents] = own_and_parents();
  return CPU_EQUAL(&own, &parents) && CPU_COUNT(&own) > 1;
}

std::vector<int> bind_process(const std::vector<int>& cpus, int num_threads, std::string* note) {
  if (cpus.empty()) return {};
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(static_cast<size_t>(cpu), &set);
  }
  std::error_code ignored;  // a thread may end meanwhile
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    if (const auto id = parse_int(task.path().filename().string())) {
      sched_setaffinity(static_cast<pid_t>(*id), sizeof set, &set);
    }
  }
  const std::vector<int> granted = allowed_cpus();
  if (granted == cpus && granted.size() >= static_cast<size_t>(num_threads)) return cpus;
  std::vector<std::string> wanted;
  for (const int cpu : cpus) wanted.push_back(cat(cpu));
  *note = cat("this worker was given the processors ", join(wanted, ", "), " for ", num_threads,
              num_threads == 1 ? " thread" : " threads", ", but may use ", granted.size(),
              " here (its cpuset is another one than the coordinator knows); its threads are not "
              "bound to single cores");
  return {};
}

}  // namespace galley::launcher
