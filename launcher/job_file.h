// Job files: TOML (or JSON) in, resolved training jobs out, with the origin of every option.
//
// One table of options (job_options.cc) is the truth about keys, defaults, checks and printing.
// Layers, later wins: built-in default, site file, user file, [defaults.train] of the job file, the
// job itself, environment. Pure but for reading files; every fault is collected, none stops the
// rest.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/core/env.h"
#include "engine/core/json.h"
#include "engine/core/toml.h"
#include "engine/model/train_spec.h"

namespace galley::launcher {

/// Where one option's value came from.
struct OptionOrigin {
  std::string key;    // "optimizer.learning_rate"
  std::string value;  // TOML text
  std::string
      origin;  // "default", "jobs.toml:14", "/etc/galley/galley.toml:3", "environment GALLEY_RUNS"
};

struct JobEntry {
  model::TrainSpec spec;              // paths absolute
  int line = 0;                       // of its [[train]]
  std::vector<OptionOrigin> options;  // in the order of the option table
};

struct RunSettings {
  std::string directory = "runs";     // relative to the working directory
  std::optional<double> wall_time_s;  // nothing: "auto", from Slurm
  double checkpoint_every_s = 600;
  int keep_checkpoints = 2;
  double worker_timeout_s = 10;  // see CoordinatorSettings
  std::vector<OptionOrigin> options;
};

struct JobFile {
  std::string path;
  RunSettings run;
  std::vector<JobEntry> jobs;
};

/// Configuration files below the job file: site, then user; only those that exist.
std::vector<std::string> configuration_files(const Environment& environment);

/// Error with all faults ("file:line: message" each): kBadConfig or kNotAvailable (78),
/// kMissingPath (66).
JobFile read_job_file(const std::string& path, const Environment& environment);

/// {"run": {...}, "train": [{...}]} with value and origin of every option.
Json to_json(const JobFile& file);
enum class Origins { kHidden, kShown };
/// The resolved job file as TOML: every option spelled out, its origin as a comment.
std::string resolved_toml(const JobFile& file, Origins origins = Origins::kShown);
/// Keys in which two resolved jobs differ, for "edited job in an existing run directory".
std::vector<std::string> differing_keys(const model::TrainSpec& old_spec,
                                        const model::TrainSpec& new_spec);

}  // namespace galley::launcher
