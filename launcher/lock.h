// RunLock: one coordinator per run directory.
//
// A directory with owner.json (host, pid and its start time, Slurm job id, heartbeat), made
// elsewhere and renamed into place, which works on every shared file system. A lock is stale only
// when its owner is known to be gone (the process on this host, or its Slurm job), never by its
// age.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "engine/core/env.h"
#include "engine/core/json.h"

namespace galley::launcher {

/// Whether a Slurm job still runs; nothing when that cannot be known.
using SlurmJobQuestion = std::function<std::optional<bool>(const std::string& job_id)>;
/// Asks squeue.
std::optional<bool> slurm_job_runs(const std::string& job_id);

class RunLock {
 public:
  /// Takes the lock, or Error(kCannotCreate) that names the owner and says what to do.
  RunLock(std::string path, const Environment& environment,
          const SlurmJobQuestion& question = slurm_job_runs);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  /// Renews the heartbeat, for people who look; at most every few seconds.
  void beat(double now);

 private:
  void write_owner(const std::string& folder) const;
  bool try_take();

  std::string path_;
  Json owner_;
  double last_beat_ = 0;
};

}  // namespace galley::launcher
