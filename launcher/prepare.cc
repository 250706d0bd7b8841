#include "launcher/prepare.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "engine/model/layout.h"
#include "engine/model/weights.h"
#include "engine/text/chat_template.h"
#include "engine/text/token_file.h"
#include "engine/text/tokenizer.h"
#include "launcher/job_file.h"
#include "launcher/run.h"
#include "placement/pins.h"
#include "predictor/precision.h"
#include "trainer/run_job.h"

namespace galley::launcher {
namespace {

/// Everything that was wrong with one job.
struct JobProblem {
  std::string job;
  Reason reason;
  std::string text;
};

/// Exit codes in the order of precedence: 78 before 66 before 65; others after.
int precedence(Reason reason) {
  switch (reason_traits(reason).exit_code) {
    case 78:
      return 0;
    case 66:
      return 1;
    case 65:
      return 2;
    default:
      return 3;
  }
}

/// True for what is wrong with a job's own inputs; other errors (disk full, ...) end the
/// preparation.
bool is_input_fault(Reason reason) { return precedence(reason) < 3; }

text::LossOn loss_on(model::LossKind loss) {
  switch (loss) {
    case model::LossKind::kCompletion:
      return text::LossOn::kCompletion;
    case model::LossKind::kAll:
      return text::LossOn::kAll;
    case model::LossKind::kAssistant:
      break;
  }
  return text::LossOn::kAssistant;
}

text::RowOptions row_options(const model::TrainSpec& spec, const std::tm& clock) {
  text::RowOptions options;
  options.loss = loss_on(spec.loss);
  options.truncation = spec.truncation == model::Truncation::kKeepEnd
                           ? text::Truncation::kKeepEnd
                           : text::Truncation::kKeepStart;
  options.max_length = static_cast<size_t>(spec.sequence);
  options.sanitize = spec.special_tokens_in_messages ? text::Sanitize::kNo : text::Sanitize::kYes;
  options.local_now = clock;
  return options;
}

/// The clock that chat templates see: the day the run began, so that a resume renders the same
/// text.
std::tm run_clock(const std::string& run_directory, Tokenise tokenise) {
  auto seconds = static_cast<int64_t>(std::time(nullptr));
  if (tokenise == Tokenise::kKeep) {
    const std::string path = path_join(run_directory, "started_at");
    if (path_exists(path)) {
      if (const auto stored = parse_int(trim(read_file(path)))) seconds = *stored;
    } else {
      write_file_atomically(path, cat(seconds, "\n"));
    }
  }
  const auto time = static_cast<time_t>(seconds);
  std::tm clock{};
  localtime_r(&time, &clock);
  return clock;
}

/// A sequence longer than the model's positions: cut when nobody asked for it, else a fault.
void fit_sequence(const JobEntry& entry, PreparedJob* job) {
  if (job->spec.sequence <= job->config.max_position) return;
  for (const OptionOrigin& option : entry.options) {
    if (option.key != "batch.sequence" || option.origin == "default") continue;
    throw Error(
        Reason::kBadConfig,
        cat(option.origin, ": batch.sequence = ", job->spec.sequence, " is longer than the ",
            job->config.max_position, " positions of ", job->spec.model,
            " (max_position_embeddings); give at most ", job->config.max_position));
  }
  job->spec.sequence = job->config.max_position;
  job->notes.push_back(cat("sequence ", job->spec.sequence, ", the model's longest"));
}

/// A pin of kernels that the precision forbids, whatever the GPU; what is rounded at load.
void check_precision(PreparedJob* job) {
  const predictor::ResolvedPrecision resolved = predictor::resolve_precision(
      job->config, job->spec.precision, predictor::PrecisionUse::kTraining);
  if (!resolved.note.empty()) job->notes.push_back(resolved.note);
  const std::string& pin = job->spec.kernels;
  if (pin.empty() || resolved.may_round_inputs) return;
  if (!device::kernel_set_rounds(device::kernel_set_from_name(pin))) return;
  throw Error(
      Reason::kBadConfig,
      cat("plan.kernels = \"", pin, "\" rounds inputs to bf16, which precision = ",
          job->spec.precision == model::Precision::kF32 ? "\"f32\""
                                                        : "\"auto\" of a model not stored in bf16",
          " forbids; set precision = \"bf16\", or leave the kernels to galley"));
}

/// Pins that this model cannot be divided into, told from config.json before any weight is read.
void check_layout_pins(const PreparedJob& job) {
  const model::TrainSpec& spec = job.spec;
  const model::ParallelLayout layout = placement::pinned_layout(spec);
  model::require_layout(job.config, layout);
  if (layout.dp_size > spec.global_batch) {
    throw Error(Reason::kBadConfig,
                cat("plan.dp = ", spec.dp, " replicas cannot share a global batch of ",
                    spec.global_batch, spec.global_batch == 1 ? " row" : " rows",
                    "; set plan.dp to at most ", spec.global_batch));
  }
}

std::optional<text::ChatTemplate> load_template(const model::TrainSpec& spec,
                                                std::string* missing) {
  if (!spec.chat_template.empty()) return text::ChatTemplate::load(spec.chat_template);
  try {
    return text::ChatTemplate::load_for_model(spec.model);
  } catch (const Error& error) {
    // Rows of plain text need no template; rows of turns will say so by line.
    if (error.reason() != Reason::kMissingPath) throw;
    *missing = error.what();
    return std::nullopt;
  }
}

/// Rows that teach nothing are left out without a fault; that must not go unnoticed.
std::string dropped_note(const text::PrepareResult& result) {
  const text::TokenSummary& summary = result.summary;
  const uint64_t dropped = summary.num_no_target + summary.num_no_target_after_truncation;
  if (dropped == 0) return "";
  std::string text =
      cat(dropped, " of ", dropped + summary.num_rows,
          dropped == 1 ? " rows is left out: it has" : " rows are left out: they have",
          " no token with loss");
  if (summary.num_no_target_after_truncation > 0) {
    text += cat(" (", summary.num_no_target_after_truncation,
                " of them only after the cut to batch.sequence)");
  }
  std::vector<std::string> places;
  for (const auto& [line, path] : result.first_without_target)
    places.push_back(cat(result.paths.at(path), ":", line));
  if (places.empty()) return text;
  return cat(text, ": ", join(places, ", "), places.size() < dropped ? ", ..." : "");
}

class Preparation {
 public:
  Preparation(const PrepareOptions& options, const std::function<void(const std::string&)>& report)
      : options_(options), report_(report) {
    clock_ = run_clock(options.run_directory, options.tokenise);
  }

  /// Fills `job` or records what is wrong with it.
  bool prepare(const JobEntry& entry, PreparedJob* job) {
    const size_t before = problems_.size();
    job->spec = entry.spec;
    const auto guard = [&](const auto& step) {
      try {
        step();
        return true;
      } catch (const Error& error) {
        if (!is_input_fault(error.reason())) {
          throw Error(error.reason(), cat("job \"", entry.spec.name, "\": ", error.what()));
        }
        problems_.push_back({entry.spec.name, error.reason(), error.what()});
        return false;
      }
    };
    for (const model::DataSource& source : job->spec.data) {
      guard([&] {
        if (!path_exists(source.path))
          throw Error(Reason::kMissingPath, cat("no such data file: ", source.path));
      });
    }
    if (!guard([&] { job->config = model::read_model_config(job->spec.model); })) return false;
    guard([&] { check_layout_pins(*job); });
    guard([&] {
      std::vector<std::string> warnings;
      const model::ModelWeights weights =
          model::ModelWeights::open(job->spec.model, job->config, &warnings);
      job->model_fingerprint = weights.fingerprint();
      job->config.stored_dtype = predictor::stored_matrix_dtype(weights, job->config);
      for (const std::string& warning : warnings) job->notes.push_back(warning);
    });
    guard([&] { check_precision(job); });
    guard([&] { model::adapted_linears(job->config, job->spec.lora); });
    guard([&] { fit_sequence(entry, job); });
    if (problems_.size() == before) guard([&] { tokenise(job); });
    return problems_.size() == before;
  }

  const std::vector<JobProblem>& problems() const { return problems_; }

 private:
  void tokenise(PreparedJob* job) {
    const model::TrainSpec& spec = job->spec;
    text::Tokenizer tokenizer = text::Tokenizer::load(spec.model);
    std::string missing;
    const std::optional<text::ChatTemplate> chat_template = load_template(spec, &missing);
    if (!missing.empty()) job->notes.push_back(missing);
    const text::RowTokenizer rows(std::move(tokenizer), chat_template ? &*chat_template : nullptr,
                                  text::load_special_tokens(spec.model), row_options(spec, clock_));
    std::vector<std::string> paths;
    for (const model::DataSource& source : spec.data) paths.push_back(source.path);
    if (options_.tokenise == Tokenise::kKeep) {
      job->token_file = path_join(path_join(options_.run_directory, "tokens"), spec.name + ".bin");
      refuse_changed_data(*job, paths, rows);
    }
    const text::PrepareResult result = text::prepare_tokens(paths, rows, job->token_file);
    result.require_ok();
    const text::TokenSummary& summary = result.summary;
    // The embedding may have more rows than the tokenizer has ids, never fewer than the rows use.
    if (summary.highest_id >= job->config.vocab_size) {
      throw Error(Reason::kBadModel,
                  cat(spec.model, ": the rows use token id ", summary.highest_id,
                      ", but the embedding has only ", job->config.vocab_size,
                      " rows (vocab_size in config.json); tokenizer and model do not "
                      "belong together"));
    }
    job->data.num_rows = static_cast<int64_t>(summary.num_rows);
    job->data.longest_tokens = static_cast<int64_t>(summary.longest);
    job->data.mean_tokens =
        static_cast<double>(summary.num_tokens) / static_cast<double>(summary.num_rows);
    job->data.target_fraction =
        static_cast<double>(summary.num_targets) / static_cast<double>(summary.num_tokens);
    job->data.measured = true;
    job->notes.push_back(summary.describe());
    if (const std::string note = dropped_note(result); !note.empty()) job->notes.push_back(note);
    const int64_t steps = predictor::total_steps(spec, job->data.num_rows);
    if (spec.warmup_steps >= steps) {
      job->notes.push_back(cat("warm-up (", spec.warmup_steps,
                               " steps) is as long as the whole job (", steps,
                               " steps): the learning rate never reaches its peak"));
      report_(cat(spec.name, ": ", job->notes.back()));
    }
    report_(cat(spec.name, ": ", summary.describe(), result.reused ? " (tokenised before)" : ""));
  }

  /// A job that has begun goes on with the rows it began with, or not at all.
  void refuse_changed_data(const PreparedJob& job, const std::vector<std::string>& paths,
                           const text::RowTokenizer& rows) const {
    const std::string directory =
        path_join(path_join(options_.run_directory, "jobs"), job.spec.name);
    const bool begun =
        is_directory(directory) && (trainer::newest_checkpoint_step(directory) >= 0 ||
                                    is_directory(path_join(directory, "adapter")));
    if (!begun || !path_exists(job.token_file)) return;
    try {
      if (text::TokenFile::open(job.token_file).inputs_hash() ==
          text::token_inputs_hash(paths, rows))
        return;
    } catch (const Error& error) {
      if (error.reason() == Reason::kBadData) return;  // broken: made anew, the trainer compares
      throw;
    }
    throw Error(
        Reason::kBadConfig,
        cat("job \"", job.spec.name,
            "\": its data, tokenizer or chat template changed since it began in ",
            options_.run_directory, "; put them back to continue, or start anew with --run NAME"));
  }

  const PrepareOptions& options_;
  const std::function<void(const std::string&)>& report_;
  std::tm clock_{};
  std::vector<JobProblem> problems_;
};

[[noreturn]] void throw_problems(std::vector<JobProblem> problems) {
  std::stable_sort(problems.begin(), problems.end(), [](const JobProblem& a, const JobProblem& b) {
    return precedence(a.reason) < precedence(b.reason);
  });
  std::vector<std::string> lines;
  for (const JobProblem& problem : problems)
    lines.push_back(cat("job \"", problem.job, "\": ", problem.text));
  throw Error(problems.front().reason, join(lines, "\n"));
}

/// The record of a run directory's jobs; a broken one names the way out.
Json read_resolved(const std::string& path) {
  try {
    return parse_json_or_throw(read_file(path), path, Reason::kIo);
  } catch (const Error& error) {
    throw Error(error.reason(),
                cat(error.what(),
                    "; the record of the run's settings is broken: remove this file "
                    "to continue the run with the job file as it is, or start anew with "
                    "--run NAME"));
  }
}

/// Refuses a job that changed in a run directory that already has it.
void refuse_edited_jobs(const std::string& run_directory, const JobFile& file) {
  const std::string path = path_join(run_directory, "resolved.json");
  if (!path_exists(path)) return;
  const Json record = read_resolved(path);
  const Json* jobs = record.find("jobs");
  if (jobs == nullptr) return;
  std::vector<std::string> lines;
  for (const JobEntry& entry : file.jobs) {
    const Json* old = jobs->find(entry.spec.name);
    if (old == nullptr) continue;
    const model::TrainSpec old_spec = model::train_spec_from_json(*old);
    if (model::spec_hash(old_spec) == model::spec_hash(entry.spec)) continue;
    lines.push_back(cat("job \"", entry.spec.name, "\" was begun with other settings; different: ",
                        join(differing_keys(old_spec, entry.spec), ", ")));
  }
  if (lines.empty()) return;
  lines.push_back(cat(
      "The run directory ", run_directory,
      " belongs to the old settings. Put them back to continue, or start anew with --run NAME."));
  throw Error(Reason::kBadConfig, join(lines, "\n"));
}

void write_resolved(const std::string& run_directory, const JobFile& file, Json* resolved) {
  const std::string path = path_join(run_directory, "resolved.json");
  Json jobs = Json::object();
  if (path_exists(path)) {
    const Json record = read_resolved(path);
    if (const Json* old = record.find("jobs")) jobs = *old;
  }
  for (const JobEntry& entry : file.jobs) jobs.set(entry.spec.name, model::to_json(entry.spec));
  Json record = Json::object();
  record.set("jobs", jobs).set("options", *resolved);
  write_file_atomically(path, record.dump_pretty());
  write_file_atomically(path_join(run_directory, "resolved.toml"), resolved_toml(file));
}

}  // namespace

std::string run_directory_for(const std::string& runs_directory, const std::string& job_file,
                              const std::string& run_name) {
  std::string name = run_name;
  if (name.empty()) name = std::filesystem::path(job_file).stem().string();
  if (!is_plain_name(name)) {
    throw Error(Reason::kUsage, cat("\"", name,
                                    "\" cannot name a run directory: use letters, digits, '.', '_' "
                                    "and '-'; say --run NAME"));
  }
  return path_join(runs_directory, name);
}

PreparedRun prepare_jobs(const PrepareOptions& options, const Environment& environment,
                         const std::function<void(const std::string&)>& report) {
  const JobFile file = read_job_file(options.job_file, environment);
  PreparedRun run;
  run.checkpoint_every_s = file.run.checkpoint_every_s;
  run.keep_checkpoints = file.run.keep_checkpoints;
  run.worker_timeout_s = file.run.worker_timeout_s;
  run.wall_time_s = file.run.wall_time_s;
  run.run_directory = options.run_directory;
  run.resolved = to_json(file);
  const bool keep = options.tokenise == Tokenise::kKeep;
  if (keep) {
    refuse_edited_jobs(options.run_directory, file);
    make_directories(path_join(options.run_directory, "tokens"));
    make_directories(path_join(options.run_directory, "jobs"));
    sweep_temporaries(options.run_directory);
    sweep_temporaries(path_join(options.run_directory, "tokens"));
  }
  Preparation preparation(options, report);
  for (const JobEntry& entry : file.jobs) {
    PreparedJob job;
    if (preparation.prepare(entry, &job)) run.jobs.push_back(std::move(job));
  }
  if (!preparation.problems().empty()) {
    if (!options.skip_bad_jobs) throw_problems(preparation.problems());
    std::map<std::string, std::vector<std::string>> reasons;
    for (const JobProblem& problem : preparation.problems())
      reasons[problem.job].push_back(problem.text);
    for (const auto& [job, texts] : reasons) run.bad_jobs.emplace_back(job, join(texts, "; "));
  }
  if (keep) write_resolved(options.run_directory, file, &run.resolved);
  return run;
}

std::string resolve_run_directory(const RunOptions& options, const Environment& environment) {
  const JobFile file = read_job_file(options.job_file, environment);
  return run_directory_for(file.run.directory, options.job_file, options.run_name);
}

PreparedRun prepare_run(const RunOptions& options, const Environment& environment,
                        const std::function<void(const std::string&)>& report) {
  PrepareOptions prepare;
  prepare.job_file = options.job_file;
  prepare.run_directory = resolve_run_directory(options, environment);
  prepare.skip_bad_jobs = options.skip_bad_jobs;
  return prepare_jobs(prepare, environment, report);
}

}  // namespace galley::launcher
