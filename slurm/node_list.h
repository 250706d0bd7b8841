// Slurm's node list grammar: "n[1-2,4]", "rack[1-2]n[01-03,07],login1", and counts "2(x2),1".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace galley::slurm {

/// Names in order; several brackets multiply, the first one slowest. Error(kBadConfig) for text
/// that is no node list, or for more than 65,536 names.
std::vector<std::string> expand_node_list(std::string_view list);

/// "2(x2),1" -> 2, 2, 1 (SLURM_TASKS_PER_NODE, SLURM_JOB_CPUS_PER_NODE).
std::vector<int> expand_counts(std::string_view counts);

}  // namespace galley::slurm
