#include "predictor/predictor.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "predictor/figures.h"
#include "predictor/precision.h"

namespace galley::predictor {
namespace {

// A core of the host device without a measurement: f32 operations per second.
constexpr double kHostCoreFlops = 6e10;
// Share of a real card's memory that is left to galley after the driver's own needs.
constexpr double kUsableShare = 0.97;
// The error bar: at least this share of the predicted peak, as measured peaks scatter on one GPU
// type, and at least this much for the worker process itself.
constexpr double kErrorShare = 0.02;
constexpr uint64_t kErrorFloorBytes = 10ull << 20;
// Heap and stacks of a worker process on the host device, beside its arenas (measured).
constexpr uint64_t kHostProcessBytes = 10ull << 20;
// Copies of the adapter's values that writing a checkpoint holds at once (values and two moments).
constexpr uint64_t kCheckpointCopies = 3;
// Largest micro batches tried, in multiples of the longest row.
constexpr int64_t kMicroBatchRows[] = {16, 8, 4, 2, 1};
// Tokens of a micro batch that keep any device busy.
constexpr int64_t kMostUsefulTokens = 4096;

/// The cheapest change that would make a job fit, for the refusal's text.
std::string remedy(const model::ModelConfig& config, const model::TrainSpec& spec,
                   const DataShape& data, const PlanShape& shape, const GpuType& gpu) {
  std::vector<std::string> options;
  const auto try_spec = [&](const std::string& what, const model::TrainSpec& changed,
                            PlanShape smaller) {
    const int64_t row = longest_row(changed, data);
    smaller.micro_batch_tokens = std::min(smaller.micro_batch_tokens, row);
    smaller.recompute_blocks = true;
    const Prediction prediction = predict(config, changed, data, smaller, gpu);
    if (prediction.fits) {
      options.push_back(
          cat(what, " (", format_bytes(static_cast<double>(prediction.high_bytes)), ")"));
    }
  };
  for (int64_t sequence = longest_row(spec, data) / 2; sequence >= 64 && options.empty();
       sequence /= 2) {
    model::TrainSpec changed = spec;
    changed.sequence = sequence;
    try_spec(cat("batch.sequence = ", sequence), changed, shape);
  }
  const DType narrow = resolve_precision(config, model::Precision::kBf16, gpu).weight_dtype;
  if (narrow != shape.weight_dtype) {
    PlanShape smaller = shape;
    smaller.weight_dtype = narrow;
    model::TrainSpec changed = spec;
    changed.precision = model::Precision::kBf16;
    try_spec("precision = \"bf16\"", changed, smaller);
  }
  for (int64_t rank = spec.lora.rank / 2; rank >= 1; rank /= 2) {
    model::TrainSpec changed = spec;
    changed.lora.rank = rank;
    const size_t before = options.size();
    try_spec(cat("adapter.rank = ", rank), changed, shape);
    if (options.size() > before) break;
  }
  if (options.empty()) return "no smaller setting of this job fits either; it needs a larger GPU";
  return "what would fit: " + join(options, ", or ");
}

void add_speed(const model::ModelConfig& config, const model::TrainSpec& spec,
               const DataShape& data, const PlanShape& shape, const GpuType& gpu,
               const std::vector<model::AdaptedLinear>& linears, Prediction* prediction) {
  const model::TokenFlops flops = model::training_flops(
      config, linears, mean_tokens(spec, data) / 2, data.target_fraction, shape.recompute_blocks);
  prediction->tokens_per_second =
      device_flops(gpu, shape.threads, shape.may_round_inputs) * kStepEfficiency / flops.total();
  add_duration(spec, data, prediction);
}

}  // namespace

int64_t longest_row(const model::TrainSpec& spec, const DataShape& data) {
  const int64_t longest = data.longest_tokens > 0 ? data.longest_tokens : spec.sequence;
  return std::min(longest, spec.sequence);
}

double mean_tokens(const model::TrainSpec& spec, const DataShape& data) {
  return data.mean_tokens > 0 ? data.mean_tokens
                              : static_cast<double>(longest_row(spec, data)) * 0.6;
}

double device_flops(const GpuType& gpu, int threads, bool may_round_inputs) {
  if (runs_on_host(gpu)) return kHostCoreFlops * threads / gpu.slowdown;
  return may_round_inputs ? gpu.peak_bf16_flops : gpu.peak_f32_flops;
}

std::vector<int64_t> micro_batch_choices(int64_t longest_row, int64_t enough) {
  std::vector<int64_t> choices;
  for (const int64_t rows : kMicroBatchRows) {
    const int64_t tokens = std::min(
        rows * longest_row, std::max<int64_t>(longest_row, std::min(enough, kMostUsefulTokens)));
    if (choices.empty() || tokens < choices.back()) choices.push_back(tokens);
  }
  return choices;
}

uint64_t process_bytes(const GpuType& gpu, const model::MemorySettings& settings) {
  const uint64_t checkpoint_copies = kCheckpointCopies * 4 * model::num_trainable(settings.linears);
  return (runs_on_host(gpu) ? kHostProcessBytes : 0) + checkpoint_copies;
}

uint64_t usable_bytes(const GpuType& gpu) {
  if (runs_on_host(gpu)) return gpu.memory_bytes;
  return static_cast<uint64_t>(kUsableShare * static_cast<double>(gpu.memory_bytes));
}

uint64_t error_bytes(uint64_t predicted_bytes) {
  return std::max(static_cast<uint64_t>(kErrorShare * static_cast<double>(predicted_bytes)),
                  kErrorFloorBytes);
}

void add_duration(const model::TrainSpec& spec, const DataShape& data, Prediction* prediction) {
  prediction->steps = total_steps(spec, data.num_rows);
  const double rows = spec.max_steps >= 0 ? static_cast<double>(spec.max_steps * spec.global_batch)
                                          : spec.epochs * static_cast<double>(data.num_rows);
  prediction->seconds = rows * mean_tokens(spec, data) / prediction->tokens_per_second;
}

bool runs_on_host(const GpuType& gpu) { return gpu.emulated || gpu.name == kHostTypeName; }

DeviceTraits traits_for(const GpuType& gpu, int threads) {
  if (runs_on_host(gpu)) {
    return host_traits(gpu.memory_bytes, static_cast<uint32_t>(std::max(1, threads)));
  }
  // A card: row-major weights, cuBLASLt's recommended workspace.
  DeviceTraits traits;
  traits.capacity_bytes = gpu.memory_bytes;
  traits.alignment_bytes = 256;
  traits.panel_outputs = 1;
  traits.gemm_workspace_bytes = 32u << 20;
  return traits;
}

int64_t total_steps(const model::TrainSpec& spec, int64_t num_rows) {
  if (spec.max_steps >= 0) return spec.max_steps;
  if (num_rows <= 0) return 0;
  const int64_t per_epoch = (num_rows + spec.global_batch - 1) / spec.global_batch;
  return std::max<int64_t>(1, std::llround(spec.epochs * static_cast<double>(per_epoch)));
}

model::MemorySettings memory_settings(const model::ModelConfig& config,
                                      const model::TrainSpec& spec, const DataShape& data,
                                      const PlanShape& shape) {
  const std::vector<model::AdaptedLinear> linears = model::adapted_linears(config, spec.lora);
  return memory_settings(JobView{config, spec, data, linears}, shape);
}

model::MemorySettings memory_settings(const JobView& job, const PlanShape& shape) {
  const model::TrainSpec& spec = job.spec;
  model::MemorySettings settings;
  settings.linears = job.linears;
  settings.weight_dtype = shape.weight_dtype;
  settings.micro_batch_tokens = shape.micro_batch_tokens;
  // A micro batch never holds more rows than a global batch or than its tokens.
  settings.micro_batch_rows = std::min(spec.global_batch, shape.micro_batch_tokens);
  settings.max_position = longest_row(spec, job.data);
  settings.recompute_blocks = shape.recompute_blocks;
  settings.dropout = spec.lora.dropout > 0;
  return settings;
}

Prediction predict(const model::ModelConfig& config, const model::TrainSpec& spec,
                   const DataShape& data, const PlanShape& shape, const GpuType& gpu) {
  const DeviceTraits traits = traits_for(gpu, shape.threads);
  const model::MemorySettings settings = memory_settings(config, spec, data, shape);
  const model::MemoryPlan plan = model::memory_plan(config, shape.layout, {}, settings, traits);

  Prediction prediction;
  prediction.planned_bytes = plan.total_bytes();
  const uint64_t overhead =
      (runs_on_host(gpu) ? 0 : gpu.context_bytes) + process_bytes(gpu, settings);
  prediction.parts = {{"weights", plan.weights_bytes},
                      {"adapter and optimizer", plan.trainable_bytes},
                      {"activations", plan.activations_bytes},
                      {"workspace", plan.workspace_bytes},
                      {runs_on_host(gpu) ? "process" : "context", overhead}};
  prediction.predicted_bytes = prediction.planned_bytes + overhead;
  const uint64_t error = error_bytes(prediction.predicted_bytes);
  prediction.low_bytes = prediction.predicted_bytes - std::min(error, prediction.predicted_bytes);
  prediction.high_bytes = prediction.predicted_bytes + error;
  prediction.usable_bytes = usable_bytes(gpu);
  prediction.workers = {{prediction.planned_bytes, prediction.predicted_bytes, prediction.low_bytes,
                         prediction.high_bytes, prediction.usable_bytes, 0}};
  prediction.moment =
      plan.moments.empty() ? "" : plan.moments[static_cast<size_t>(plan.peak_moment)].name;
  prediction.fits = prediction.high_bytes <= prediction.usable_bytes;
  if (!prediction.fits) {
    prediction.reason =
        cat("needs ", format_bytes(static_cast<double>(prediction.high_bytes)), ", ", gpu.name,
            " has ", format_bytes(static_cast<double>(prediction.usable_bytes)));
  }
  add_speed(config, spec, data, shape, gpu, settings.linears, &prediction);
  return prediction;
}

std::vector<Candidate> candidates(const model::ModelConfig& config, const model::TrainSpec& spec,
                                  const DataShape& data, const GpuType& gpu, int threads) {
  const int64_t row = longest_row(spec, data);
  const ResolvedPrecision precision = resolve_precision(config, spec.precision, gpu);
  PlanShape shape;
  shape.weight_dtype = precision.weight_dtype;
  shape.may_round_inputs = precision.may_round_inputs;
  shape.precision_note = precision.note;
  shape.threads =
      spec.threads > 0 ? static_cast<int>(std::min<int64_t>(spec.threads, threads)) : threads;

  std::vector<int64_t> budgets;
  if (spec.micro_batch_tokens > 0) {
    budgets = {std::max(spec.micro_batch_tokens, row)};
  } else {
    // More tokens than a global batch holds, or than keep a device busy, gain nothing.
    const auto enough = static_cast<int64_t>(
        std::ceil(mean_tokens(spec, data) * static_cast<double>(spec.global_batch)));
    budgets = micro_batch_choices(row, enough);
  }
  std::vector<bool> recompute = {false, true};
  if (spec.recompute == model::Recompute::kNone) recompute = {false};
  if (spec.recompute == model::Recompute::kBlock) recompute = {true};

  std::vector<Candidate> all;
  for (const bool blocks : recompute) {
    for (const int64_t tokens : budgets) {
      shape.recompute_blocks = blocks;
      shape.micro_batch_tokens = tokens;
      all.push_back({shape, predict(config, spec, data, shape, gpu)});
    }
  }
  Candidate& smallest = all.back();
  if (!smallest.prediction.fits) {
    smallest.prediction.reason += "; " + remedy(config, spec, data, smallest.shape, gpu);
  }
  return all;
}

}  // namespace galley::predictor
