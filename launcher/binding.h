// Which processors a rank and its workers may use: mpirun's default binding is undone, a worker is
// bound to what it was given.
//
// Called once by a process at its start, by its main thread, before others start.
#pragma once

#include <string>
#include <vector>

#include "engine/core/env.h"

namespace galley::launcher {

/// Who bound this rank to some processors only, as its environment says.
enum class BoundBy {
  kNobody,         // or somebody who leaves no trace: taskset, a container, a cpuset
  kMpirunDefault,  // Open MPI binds the ranks of a small run to a core each when it is told nothing
  kMpirunOption,   // --bind-to, --map-by :PE=, --cpu-list, a rank file
  kSrun,           // --cpu-bind, or a default of the site
};
BoundBy bound_by(const Environment& environment);
std::string bound_by_name(BoundBy bound);
/// kNobody for an unknown name.
BoundBy bound_by_from_name(const std::string& name);

/// A core each is nothing for an agent, whose workers inherit it, and nobody wished it: where
/// mpirun's default has bound this process, it takes all that mpirun itself may use there.
void undo_default_binding(const Environment& environment);
/// That it has been done.
bool default_binding_undone(const Environment& environment);

/// Binds every thread of this process to `cpus`. Returns them when all were granted; otherwise (the
/// system gives fewer than `num_threads` of them) nothing, with the reason in `note`: the threads
/// then share what they may use.
std::vector<int> bind_process(const std::vector<int>& cpus, int num_threads, std::string* note);

}  // namespace galley::launcher
