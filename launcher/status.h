// The status file of a run (RUN/status.json) and the table that `galley status` makes of it.
//
// Written every few seconds by the coordinator's process, read from any node. Pure functions of
// values, but for read_status.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/progress.h"
#include "launcher/run_directory.h"

namespace galley::launcher {

constexpr double kStatusSeconds = 2;  // between two of them while a run goes on

struct RunStatus {
  double time = 0;        // of the clock on the wall, when this was so
  int attempt = 1;        // start of the run
  std::string host;       // of the coordinator
  std::string slurm_job;  // empty: none
  std::vector<JobRow> jobs;
};
Json to_json(const RunStatus& status);

/// What a run directory tells.
struct FoundStatus {
  std::optional<RunStatus> status;  // none: the run has not got so far
  std::optional<RunRecord> record;  // of a run that has ended
};
/// Error(kMissingPath) when it is no run directory.
FoundStatus read_status(const std::string& run_directory);

/// Head line, one row per job, and of jobs on several GPUs one row per GPU. `now`: clock on the
/// wall.
std::string status_text(const std::string& run_directory, const FoundStatus& found, double now);

}  // namespace galley::launcher
