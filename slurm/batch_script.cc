#include "slurm/batch_script.h"

#include "engine/core/strings.h"

namespace galley::slurm {

std::string batch_script(const BatchScript& o) {
  // One rank coordinates, one serves each GPU; galley itself binds its workers to cores.
  const int tasks = (o.gpus_per_node > 0 ? o.gpus_per_node : 1) + 1;
  std::string out = "#!/bin/bash\n";
  if (!o.site.empty()) out += "# For " + o.site + ". Every value below may be edited.\n";
  out += "#SBATCH --job-name=galley\n";
  out += cat("#SBATCH --nodes=", o.nodes, "\n");
  out += cat("#SBATCH --ntasks-per-node=", tasks,
             "           # one for each GPU (or host device), and one that coordinates\n");
  out += "#SBATCH --cpus-per-task=2\n";
  out += "#SBATCH --mem=32G                    # host memory of a node\n";
  out += cat("#SBATCH --time=", o.time, "\n");
  if (o.gpus_per_node > 0) {
    out += cat("#SBATCH --gres=gpu:", o.gpu_type.empty() ? "" : o.gpu_type + ":", o.gpus_per_node,
               "\n");
  }
  out +=
      "##SBATCH --constraint=\"a100|v100\"     # several types in one allocation, where the site "
      "allows it\n";
  if (!o.partition.empty()) out += "#SBATCH --partition=" + o.partition + "\n";
  if (!o.account.empty()) out += "#SBATCH --account=" + o.account + "\n";
  out += "#SBATCH --output=%x-%j.out\n";
  out += "#SBATCH --open-mode=append            # a requeue would overwrite the log\n";
  out += o.launcher == "srun"
             ? "#SBATCH --requeue                     # after preemption or a node's failure\n"
             : "#SBATCH --requeue                     # after preemption, or exit code 75\n";
  out +=
      "#SBATCH --signal=B:USR1@600           # ten minutes before the limit: checkpoint and stop\n";
  out += "#SBATCH --hint=nomultithread\n\n";
  out += "set -euo pipefail\n";
  out += "# module load galley                  # or put galley on PATH\n\n";
  if (o.launcher == "srun") {
    out += "# srun has no parent that requeues: on 75 (stopped early) submit the script again.\n";
    out += cat("exec srun --mpi=pmix --kill-on-bad-exit=0 --cpu-bind=none galley run ", o.job_file,
               "\n");
  } else {
    out += "# exec: galley launch gets Slurm's signals itself and returns the run's exit code.\n";
    out += cat("exec galley launch --requeue ", o.job_file, "\n");
  }
  return out;
}

}  // namespace galley::slurm
