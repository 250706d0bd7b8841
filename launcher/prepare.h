// prepare_run: everything that happens before the first worker starts, in one place.
//
// Reads the job file, validates every job (model folder, tokenizer, chat template, every row), and
// tokenises the rows once into the run directory. Used by `galley run`, `validate`, `plan` and
// `predict`; only `run` writes. Single-threaded; touches no device and no MPI.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/env.h"
#include "engine/core/json.h"
#include "engine/model/model_config.h"
#include "engine/model/train_spec.h"
#include "predictor/predictor.h"

namespace galley::launcher {

struct RunOptions;

struct PreparedJob {
  model::TrainSpec spec;
  model::ModelConfig config;
  predictor::DataShape data;
  std::string token_file;          // RUN/tokens/NAME.bin; empty when nothing was written
  std::vector<std::string> notes;  // cut rows, dropped rows, surplus tensors, ...
  std::string model_fingerprint;
};

struct PreparedRun {
  std::vector<PreparedJob> jobs;
  std::vector<std::pair<std::string, std::string>> bad_jobs;  // name, reason; with skip_bad_jobs
  double checkpoint_every_s = 600;
  int keep_checkpoints = 2;
  double worker_timeout_s = 10;
  std::optional<double> wall_time_s;  // as the job file says; nothing: from Slurm
  std::string run_directory;          // runs/STEM
  Json resolved;                      // every option with its origin
};

/// Throws one Error that lists everything that is wrong, with the code of the first kind in the
/// order 78, 66, 65. `report` gets one line per thing done.
PreparedRun prepare_run(const RunOptions& options, const Environment& environment,
                        const std::function<void(const std::string&)>& report);

enum class Tokenise { kKeep, kCheckOnly };  // kCheckOnly: into a temporary that is removed again
struct PrepareOptions {
  std::string job_file;
  std::string run_directory;  // empty with kCheckOnly
  bool skip_bad_jobs = false;
  Tokenise tokenise = Tokenise::kKeep;
};
PreparedRun prepare_jobs(const PrepareOptions& options, const Environment& environment,
                         const std::function<void(const std::string&)>& report);

/// Where the run of these options lives: [run] directory (or GALLEY_RUNS) and the run's name. Reads
/// the job file; kBadConfig, kMissingPath.
std::string resolve_run_directory(const RunOptions& options, const Environment& environment);

/// runs/ + stem of the job file, or the given name. Error(kUsage) for a name that is no plain name.
std::string run_directory_for(const std::string& runs_directory, const std::string& job_file,
                              const std::string& run_name);

}  // namespace galley::launcher
