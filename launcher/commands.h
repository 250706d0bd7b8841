// Commands: what each `galley COMMAND` does, as functions from options to an exit code.
//
// command_line.cc parses flags into these options; nothing here parses arguments. Input and output
// streams are arguments so that tests can run a command in process. Errors are thrown as
// galley::Error; the caller prints them and returns their exit code.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/env.h"

namespace galley::launcher {

enum class OutputForm { kTable, kJson };

/// Streams of one command.
struct Streams {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
};

struct ValidateOptions {
  std::string job_file;
  bool skip_bad_jobs = false;
  OutputForm form = OutputForm::kTable;
};
int command_validate(const ValidateOptions& options, const Environment& environment,
                     Streams streams);

struct PlanOptions {
  std::string job_file;
  std::string cluster_file;  // empty: this node's host device
  bool skip_bad_jobs = false;
  OutputForm form = OutputForm::kTable;
};
int command_plan(const PlanOptions& options, const Environment& environment, Streams streams);

struct PredictOptions {
  std::string job_file;      // this or `model`
  std::string model;         // a folder with config.json; no weights needed
  std::string cluster_file;  // GPU types of this cluster; else the whole table and this host
  std::vector<std::string> gpu_types;
  // With --model:
  int64_t rank = 16;
  int64_t sequence = 2048;
  int64_t global_batch = 16;
  std::vector<std::string> targets;
  std::string precision = "auto";
  OutputForm form = OutputForm::kTable;
};
int command_predict(const PredictOptions& options, const Environment& environment, Streams streams);

struct ConfigOptions {
  std::string job_file;
  bool origin = false;
  OutputForm form = OutputForm::kTable;
};
int command_config(const ConfigOptions& options, const Environment& environment, Streams streams);

struct TokenizeOptions {
  std::string tokenizer;  // folder or tokenizer.json
  std::string input;      // file; empty: standard input
  bool no_special = false;
};
int command_tokenize(const TokenizeOptions& options, Streams streams);

struct RenderOptions {
  std::string template_file;  // this or `model`
  std::string model;
  std::string input;
  std::string now;  // "2025-03-14T09:26:53"; empty: the clock
};
int command_render(const RenderOptions& options, Streams streams);

struct DataOptions {
  std::string data;
  std::string model;
  std::string template_file;
  int64_t max_length = 2048;
  std::string loss = "assistant";
  std::string truncation = "keep_start";
  std::string special_tokens = "text";
  std::string now;
  bool show_labels = false;
};
int command_data(const DataOptions& options, Streams streams);

struct GenerateOptions {
  std::string model;
  std::string adapter;
  std::string input;    // JSON lines; empty: standard input
  std::string prompt;   // one plain prompt instead
  std::string message;  // one user message instead
  std::string template_file;
  std::string logits_file;  // safetensors with the last position of each prompt; nothing generated
  int64_t max_tokens = 256;
  double temperature = 0;  // 0: greedy
  int64_t top_k = 0;       // 0: off
  double top_p = 1;
  uint64_t seed = 0;
  std::string precision = "auto";
  int threads = 0;  // 0: all cores of this process
  int batch = 8;    // prompts decoded together
  bool json_lines = false;
};
int command_generate(const GenerateOptions& options, Streams streams);

struct InspectOptions {
  std::string path;
  OutputForm form = OutputForm::kTable;
};
int command_inspect(const InspectOptions& options, Streams streams);

struct ExportOptions {
  std::string checkpoint;
  std::string directory;
};
int command_export(const ExportOptions& options, Streams streams);

struct StatusOptions {
  std::string run_directory;
  bool watch = false;  // again and again until the run has ended
  OutputForm form = OutputForm::kTable;
};
int command_status(const StatusOptions& options, Streams streams);

struct DoctorOptions {
  std::string runs_directory = "runs";
  OutputForm form = OutputForm::kTable;
};
int command_doctor(const DoctorOptions& options, const Environment& environment, Streams streams);

struct BenchOptions {
  std::string model;  // folder; empty: the 135M shape with random weights
  int64_t sequence = 512;
  double target_percent = 100;  // of the positions that carry loss
  int steps = 3;
  int threads = 0;  // 0: all cores of this process
  std::string precision = "auto";
  std::string kernels = "auto";
  bool profile = false;
  OutputForm form = OutputForm::kTable;  // kJson: JSON lines
};
int command_bench(const BenchOptions& options, Streams streams);

/// Text of `galley --version`: galley, then what it was built against. Loads nothing.
std::string version_text();

}  // namespace galley::launcher
