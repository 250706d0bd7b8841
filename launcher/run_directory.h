// RunDirectory: where a run keeps what (interface: resolved.toml, plan.json, journal.jsonl, logs/,
// tokens/, inbox/, done.json, jobs/NAME/), and the completion record.
//
// Values and small files; written by the coordinator's process only.
#pragma once

#include <optional>
#include <string>

#include "engine/core/error.h"
#include "engine/core/json.h"

namespace galley::launcher {

struct RunDirectory {
  std::string path;
  std::string logs() const { return path + "/logs"; }
  std::string journal() const { return path + "/journal.jsonl"; }
  std::string plan() const { return path + "/plan.json"; }
  std::string record() const { return path + "/done.json"; }
  std::string status() const { return path + "/status.json"; }
  std::string jobs_table() const { return path + "/jobs.csv"; }
  std::string lock() const { return path + "/lock"; }
  std::string requeues() const { return path + "/requeues.json"; }
  std::string job(const std::string& name) const { return path + "/jobs/" + name; }
  /// Makes the folders, mode 0700. kCannotCreate, kPermission, kDiskFull.
  void create() const;
};

/// The completion record: what a script needs to know, written before the ranks leave.
struct RunRecord {
  Reason reason = Reason::kOk;
  int code = 0;
  std::string text;
  int attempt = 1;
};
void write_run_record(const RunDirectory& directory, const RunRecord& record);
/// Nothing when there is none, or none that can be read.
std::optional<RunRecord> read_run_record(const RunDirectory& directory);
/// Steps that all jobs of a run have saved, counted from its journal: grows with every new step.
int64_t saved_steps(const RunDirectory& directory);

}  // namespace galley::launcher
