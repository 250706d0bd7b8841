// The mpirun line of `galley launch`, as a pure function.
#pragma once

#include <string>
#include <vector>

#include "launcher/run.h"

namespace galley::launcher {

struct LaunchPlace {
  std::string program;  // path of galley
  int num_cores = 1;    // that this process may use
  bool inside_slurm = false;
};

/// mpirun and its options, then galley run and its own.
std::vector<std::string> mpirun_line(const LaunchOptions& options, const LaunchPlace& place);

}  // namespace galley::launcher
