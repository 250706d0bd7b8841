// validate, plan, predict, config: what a job file means, without running it.
#include <algorithm>
#include <filesystem>
#include <ostream>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "launcher/commands.h"
#include "launcher/host_inventory.h"
#include "launcher/job_file.h"
#include "launcher/prepare.h"
#include "launcher/table.h"
#include "placement/describe.h"
#include "placement/pins.h"
#include "placement/planner.h"
#include "predictor/predictor.h"

namespace galley::launcher {
namespace {

PreparedRun check_only(const std::string& job_file, bool skip_bad_jobs,
                       const Environment& environment) {
  PrepareOptions options;
  options.job_file = job_file;
  options.skip_bad_jobs = skip_bad_jobs;
  options.tokenise = Tokenise::kCheckOnly;
  return prepare_jobs(options, environment, [](const std::string&) {});
}

void print_bad_jobs(const PreparedRun& run, Streams streams) {
  for (const auto& [job, reason] : run.bad_jobs)
    streams.err << "galley: job \"" << job << "\": " << reason << "\n";
}

placement::Cluster cluster_for(const std::string& cluster_file) {
  return cluster_file.empty() ? local_cluster()
                              : local_view(placement::read_cluster_file(cluster_file));
}

/// The speed that a type has where it runs: an emulated one is no faster than the host's cores.
std::string speed_text(const predictor::Prediction& prediction, const predictor::GpuType& type) {
  return cat(format_count(prediction.tokens_per_second), " tok/s",
             type.emulated ? " (emulated)" : "");
}

std::vector<placement::QueuedJob> queue_of(const PreparedRun& run) {
  std::vector<placement::QueuedJob> queue;
  for (const PreparedJob& job : run.jobs) {
    placement::QueuedJob queued;
    queued.name = job.spec.name;
    queued.order = static_cast<int64_t>(queue.size());
    queued.priority = job.spec.priority;
    queued.config = job.config;
    queued.spec = job.spec;
    queued.data = job.data;
    queue.push_back(std::move(queued));
  }
  return queue;
}

std::string head_line(const placement::Cluster& cluster, size_t num_jobs) {
  std::vector<std::string> types;
  for (const placement::Gpu& gpu : cluster.gpus) {
    if (std::find(types.begin(), types.end(), gpu.type.name) == types.end())
      types.push_back(gpu.type.name);
  }
  const auto plural = [](size_t n, const char* noun) {
    return cat(n, " ", noun, n == 1 ? "" : "s");
  };
  if (types == std::vector<std::string>{predictor::kHostTypeName}) {
    return cat("No GPU: ", plural(cluster.gpus.size(), "host device"), ", ",
               plural(num_jobs, "job"), ".");
  }
  return cat(plural(types.size(), "GPU type"), ", ", plural(cluster.gpus.size(), "GPU"),
             cluster.emulated ? " (emulated on the host device)" : "", ", ",
             plural(num_jobs, "job"), ".");
}

const model::ModelConfig& config_of(const PreparedRun& run, const std::string& job) {
  const auto found =
      std::find_if(run.jobs.begin(), run.jobs.end(),
                   [&](const PreparedJob& candidate) { return candidate.spec.name == job; });
  return found->config;
}

/// Jobs that cannot run make 3, or 69 when none can.
int plan_exit_code(size_t num_scheduled, size_t num_refused, size_t num_bad) {
  if (num_refused == 0 && num_bad == 0) return 0;
  if (num_scheduled == 0 && num_refused > 0) return reason_traits(Reason::kDoesNotFit).exit_code;
  return reason_traits(Reason::kJobFailed).exit_code;
}

/// The GPU types to predict for: of the cluster, named ones, or this host and the whole table.
std::vector<placement::Gpu> types_for(const PredictOptions& options) {
  std::vector<placement::Gpu> gpus;
  const auto add = [&](placement::Gpu gpu) {
    for (const placement::Gpu& known : gpus) {
      if (known.type.name == gpu.type.name && known.type.memory_bytes == gpu.type.memory_bytes)
        return;
    }
    gpus.push_back(std::move(gpu));
  };
  if (!options.cluster_file.empty()) {
    for (const placement::Gpu& gpu : cluster_for(options.cluster_file).gpus) add(gpu);
  }
  for (const std::string& name : options.gpu_types) {
    placement::Gpu gpu;
    if (name == predictor::kHostTypeName) {
      gpu = local_cluster().gpus.front();
    } else {
      gpu.type = predictor::gpu_type_by_name(name);
    }
    add(gpu);
  }
  if (!gpus.empty()) return gpus;
  add(local_cluster().gpus.front());
  for (const predictor::GpuType& type : predictor::gpu_table()) {
    placement::Gpu gpu;
    gpu.type = type;
    add(gpu);
  }
  return gpus;
}

/// A job made of --model and the flags: rows as long as the sequence.
PreparedJob job_of_model(const PredictOptions& options) {
  PreparedJob job;
  job.config = model::read_model_config(options.model);
  job.spec.name = job.config.name;
  job.spec.model = options.model;
  job.spec.lora.rank = options.rank;
  job.spec.lora.alpha = 2.0 * static_cast<double>(options.rank);
  job.spec.lora.targets = options.targets;
  job.spec.sequence = std::min(options.sequence, job.config.max_position);
  job.spec.global_batch = options.global_batch;
  job.spec.precision = model::precision_from_name(options.precision);
  job.data.longest_tokens = job.spec.sequence;
  job.data.mean_tokens = static_cast<double>(job.spec.sequence);
  return job;
}

/// The shape of a job on a GPU type, or on as many GPUs of one node as its pins ask for.
predictor::Candidate candidate_on(const PreparedJob& job, const placement::Gpu& gpu) {
  const int threads = std::max(1, gpu.threads);
  if (placement::asks_for_group(job.spec)) {
    const model::ParallelLayout layout = placement::pinned_layout(job.spec);
    const std::vector<predictor::GroupGpu> gpus(static_cast<size_t>(layout.num_workers()),
                                                {gpu.type, threads, 0});
    return predictor::group_candidate(job.config, job.spec, job.data, layout, gpus);
  }
  const auto candidates = predictor::candidates(job.config, job.spec, job.data, gpu.type, threads);
  const auto fitting = std::find_if(candidates.begin(), candidates.end(),
                                    [](const auto& each) { return each.prediction.fits; });
  return fitting == candidates.end() ? candidates.back() : *fitting;
}

Json prediction_json(const std::string& job, const placement::Gpu& gpu,
                     const predictor::Candidate& candidate) {
  const predictor::Prediction& prediction = candidate.prediction;
  Json parts = Json::object();
  for (const predictor::PredictionPart& part : prediction.parts) parts.set(part.name, part.bytes);
  Json out = Json::object();
  out.set("job", job)
      .set("gpu_type", gpu.type.name)
      .set("layout", model::to_json(candidate.shape.layout))
      .set("fits", prediction.fits)
      .set("planned_bytes", prediction.planned_bytes)
      .set("predicted_bytes", prediction.predicted_bytes)
      .set("low_bytes", prediction.low_bytes)
      .set("high_bytes", prediction.high_bytes)
      .set("usable_bytes", prediction.usable_bytes)
      .set("moment", prediction.moment)
      .set("parts", parts)
      .set("micro_batch_tokens", candidate.shape.micro_batch_tokens)
      .set("recompute", candidate.shape.recompute_blocks ? "block" : "none")
      .set("weights", dtype_name(candidate.shape.weight_dtype))
      .set("may_round_inputs", candidate.shape.may_round_inputs)
      .set("precision_note", candidate.shape.precision_note)
      .set("tokens_per_second", prediction.tokens_per_second)
      .set("seconds", prediction.seconds)
      .set("reason", prediction.reason);
  return out;
}

}  // namespace

int command_validate(const ValidateOptions& options, const Environment& environment,
                     Streams streams) {
  const PreparedRun run = check_only(options.job_file, options.skip_bad_jobs, environment);
  print_bad_jobs(run, streams);
  if (options.form == OutputForm::kJson) {
    Json jobs = Json::array();
    for (const PreparedJob& job : run.jobs) {
      Json notes = Json::array();
      for (const std::string& note : job.notes) notes.push(note);
      Json entry = Json::object();
      entry.set("job", job.spec.name)
          .set("model", job.spec.model)
          .set("rows", job.data.num_rows)
          .set("longest_tokens", job.data.longest_tokens)
          .set("mean_tokens", job.data.mean_tokens)
          .set("steps", predictor::total_steps(job.spec, job.data.num_rows))
          .set("trainable_parameters",
               model::num_trainable(model::adapted_linears(job.config, job.spec.lora)))
          .set("notes", notes);
      jobs.push(entry);
    }
    Json out = Json::object();
    out.set("jobs", jobs);
    streams.out << out.dump_pretty();
  } else {
    Table table({"job", "model", "rows", "longest", "steps", "trained parameters"});
    for (const PreparedJob& job : run.jobs) {
      const uint64_t trained =
          model::num_trainable(model::adapted_linears(job.config, job.spec.lora));
      table.add({job.spec.name, job.config.name, std::to_string(job.data.num_rows),
                 cat(job.data.longest_tokens, " tokens"),
                 std::to_string(predictor::total_steps(job.spec, job.data.num_rows)),
                 format("%llu (%.2f %% of the model)", static_cast<unsigned long long>(trained),
                        100.0 * static_cast<double>(trained) /
                            static_cast<double>(job.config.num_parameters()))});
    }
    streams.out << table.text();
    for (const PreparedJob& job : run.jobs) {
      for (const std::string& note : job.notes)
        streams.out << job.spec.name << ": " << note << "\n";
    }
  }
  return run.bad_jobs.empty() ? 0 : reason_traits(Reason::kJobFailed).exit_code;
}

int command_plan(const PlanOptions& options, const Environment& environment, Streams streams) {
  const PreparedRun run = check_only(options.job_file, options.skip_bad_jobs, environment);
  print_bad_jobs(run, streams);
  const placement::Cluster cluster = cluster_for(options.cluster_file);
  const placement::Forecast forecast =
      placement::forecast(*placement::policy_best_fit(), cluster, queue_of(run));
  if (options.form == OutputForm::kJson) {
    Json jobs = Json::array(), refused = Json::array();
    for (const placement::ScheduledJob& job : forecast.jobs) {
      Json entry = placement::to_json(job.assignment, cluster);
      entry.set("start", job.start).set("end", job.end);
      jobs.push(entry);
    }
    for (const placement::Refusal& refusal : forecast.refused) {
      Json entry = Json::object();
      entry.set("job", refusal.job).set("reason", refusal.reason);
      refused.push(entry);
    }
    Json out = Json::object();
    out.set("cluster", placement::to_json(cluster)).set("jobs", jobs).set("refused", refused);
    streams.out << out.dump_pretty();
  } else {
    streams.out << head_line(cluster, run.jobs.size()) << "\n\n";
    Table table({"job", "model", "needs (peak per GPU)", "runs on", "speed", "starts", "done in"});
    for (const placement::ScheduledJob& job : forecast.jobs) {
      const placement::Assignment& assignment = job.assignment;
      const predictor::Prediction& prediction = assignment.candidate.prediction;
      const placement::GpuIndex gpu = assignment.gpus.front();
      table.add({assignment.job, config_of(run, assignment.job).name,
                 placement::need_text(prediction), placement::runs_on_text(cluster, assignment),
                 speed_text(prediction, cluster.gpus[static_cast<size_t>(gpu)].type),
                 job.start == 0 ? "now" : "after " + format_duration(job.start),
                 format_duration(job.end)});
    }
    for (const placement::Refusal& refusal : forecast.refused) {
      table.add({refusal.job, config_of(run, refusal.job).name, "-", "refused", "-", "never", "-"});
    }
    streams.out << table.text();
    for (const placement::ScheduledJob& job : forecast.jobs) {
      if (const std::string group = placement::group_text(job.assignment); !group.empty()) {
        streams.out << job.assignment.job << ": " << group << "\n  " << job.assignment.explanation
                    << "\n";
      }
      const std::string& note = job.assignment.candidate.shape.precision_note;
      if (!note.empty()) streams.out << job.assignment.job << ": " << note << "\n";
    }
    for (const placement::Refusal& refusal : forecast.refused) {
      streams.out << refusal.job << " is refused: " << refusal.reason << "\n";
    }
  }
  return plan_exit_code(forecast.jobs.size(), forecast.refused.size(), run.bad_jobs.size());
}

int command_predict(const PredictOptions& options, const Environment& environment,
                    Streams streams) {
  std::vector<PreparedJob> jobs;
  if (options.job_file.empty()) {
    jobs.push_back(job_of_model(options));
  } else {
    jobs = check_only(options.job_file, false, environment).jobs;
  }
  Json all = Json::array();
  // --model says nothing about the number of rows, so nothing about the time.
  const bool timed = !options.job_file.empty();
  std::vector<std::string> header = {"job",         "GPU type",  "memory",  "peak", "verdict",
                                     "micro batch", "recompute", "weights", "speed"};
  if (timed) header.emplace_back("time");
  Table table(header);
  for (const PreparedJob& job : jobs) {
    for (const placement::Gpu& gpu : types_for(options)) {
      const predictor::Candidate best = candidate_on(job, gpu);
      const model::ParallelLayout& layout = best.shape.layout;
      const int workers = layout.num_workers();
      all.push(prediction_json(job.spec.name, gpu, best));
      std::vector<std::string> cells = {
          job.spec.name,
          workers == 1 ? gpu.type.name
                       : cat(workers, " x ", gpu.type.name, " (", model::to_text(layout), ")"),
          format_bytes(static_cast<double>(gpu.type.memory_bytes)),
          placement::need_text(best.prediction),
          best.prediction.fits ? "fits" : "does not fit",
          cat(best.shape.micro_batch_tokens, " tokens"),
          best.shape.recompute_blocks ? "block" : "none",
          best.shape.weight_dtype == DType::kBf16 ? "bf16" : "f32",
          best.prediction.fits ? speed_text(best.prediction, gpu.type) : "-"};
      if (timed)
        cells.push_back(best.prediction.fits ? format_duration(best.prediction.seconds) : "-");
      table.add(cells);
    }
  }
  if (options.form == OutputForm::kJson) {
    Json out = Json::object();
    out.set("predictions", all);
    streams.out << out.dump_pretty();
  } else {
    streams.out << table.text();
  }
  return 0;
}

int command_config(const ConfigOptions& options, const Environment& environment, Streams streams) {
  const JobFile file = read_job_file(options.job_file, environment);
  if (options.form == OutputForm::kJson) {
    streams.out << to_json(file).dump_pretty();
  } else {
    streams.out << resolved_toml(file, options.origin ? Origins::kShown : Origins::kHidden);
  }
  return 0;
}

}  // namespace galley::launcher
