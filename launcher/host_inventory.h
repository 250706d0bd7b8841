// What this machine offers to commands that run outside of mpirun (plan, predict, doctor).
#pragma once

#include <optional>

#include "placement/cluster.h"

namespace galley::launcher {

/// The host device of this machine, as `galley run` with one rank here would see it.
placement::Cluster local_cluster();
/// The cluster of a file as `galley run` would see it: emulated GPUs share this machine's cores.
placement::Cluster local_view(const placement::Cluster& cluster_file);

}  // namespace galley::launcher
