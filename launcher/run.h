// The run-time of galley as main sees it: run under mpirun, launch (parent of mpirun), worker, and
// the exit code of a run. Every function is called once, from the main thread of its own process.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/core/env.h"

namespace galley::launcher {

/// Where events go besides the logs of the run directory.
enum class EventOutput {
  kPlain,      // plain lines on stderr: one per event, one summary per minute
  kForLaunch,  // records for a parent `galley launch` on stderr (the hidden flag
               // --events-for-launch)
};

struct RunOptions {
  std::string job_file;
  std::string cluster_file;  // empty: what the ranks report
  std::string run_name;      // empty: stem of the job file
  bool skip_bad_jobs = false;
  std::optional<double> wall_time_s;       // --wall-time; else the job file's; else Slurm's
  std::optional<double> worker_timeout_s;  // --worker-timeout; else the job file's
  EventOutput events = EventOutput::kPlain;
};

/// `galley run`, under mpirun or srun: opens the MPI library, coordinates (rank 0) or serves as an
/// agent, and returns the exit code, the same on all ranks. Errors are printed here, none is
/// thrown.
int run_main(const RunOptions& options, const Environment& environment);

enum class ProgressStyle { kAuto, kBars, kLines, kNone };

struct LaunchOptions {
  RunOptions run;
  int num_ranks = 0;     // -n; 0: from Slurm, else 2
  bool requeue = false;  // on 75: scontrol requeue for the own Slurm job
  int max_requeues = 3;  // in a row without a new step
  ProgressStyle progress = ProgressStyle::kAuto;
  std::vector<std::string> mpirun_options;  // after --
};

/// `galley launch`: starts and outlives mpirun; returns the run's code. Prints its own errors.
int launch_main(const LaunchOptions& options, const Environment& environment);

/// `galley worker` (internal; an agent starts it): argv[2..] hold the link and the agent's pid.
int worker_main(int argc, char** argv);

/// Code of the completion record of a run directory; 75 when there is none.
/// Error(kMissingPath) when `run_directory` does not exist.
int read_exit_code(const std::string& run_directory);

/// Version of the MPI headers that the MPI library was built against, e.g. "Open MPI 4.1.4"; a
/// constant of the build, loads nothing.
std::string mpi_build_version();

}  // namespace galley::launcher
