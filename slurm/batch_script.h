// A complete sbatch script as text. Pure; nothing of any site is compiled in.
#pragma once

#include <string>

namespace galley::slurm {

struct BatchScript {
  std::string site;                 // for the comment only
  std::string launcher = "mpirun";  // or "srun"
  int nodes = 1;
  int gpus_per_node = 1;  // 0: none asked for
  std::string gpu_type;   // as the site's gres names it; empty: any
  std::string time = "04:00:00";
  std::string partition, account;  // empty: the site's default
  std::string job_file = "jobs.toml";
};

/// The script; its last line replaces the shell, so that signals of Slurm reach galley itself.
std::string batch_script(const BatchScript& options);

}  // namespace galley::slurm
