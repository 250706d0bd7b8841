#include "trainer/step_bench.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "engine/core/clock.h"
#include "engine/core/error.h"
#include "engine/core/random.h"
#include "engine/core/strings.h"
#include "engine/device/host/host_memory.h"
#include "engine/model/weights.h"
#include "engine/nn/network.h"
#include "engine/nn/random_weights.h"
#include "trainer/train_step.h"

namespace galley::trainer {
namespace {

model::MemorySettings memory_settings(const StepBenchOptions& options) {
  model::MemorySettings settings;
  settings.linears = model::adapted_linears(options.config, {});
  settings.weight_dtype = options.weight_dtype;
  settings.micro_batch_tokens = options.sequence;
  settings.micro_batch_rows = 1;
  settings.max_position = options.sequence;
  return settings;
}

/// One row of random tokens; the last positions are targets.
MicroBatch one_row(const StepBenchOptions& options) {
  Random random(2, random_stream("bench tokens"));
  MicroBatch batch;
  batch.num_tokens = options.sequence;
  batch.step.segments.push_back({.kind = nn::SegmentKind::kTrain, .num_tokens = options.sequence});
  for (int64_t i = 0; i < options.sequence; ++i) {
    batch.step.ids.push_back(
        static_cast<int32_t>(random.below(static_cast<uint64_t>(options.config.vocab_size))));
  }
  const auto positions = static_cast<double>(options.sequence - 1);
  const auto wanted = static_cast<int64_t>(std::ceil(options.target_fraction * positions));
  batch.num_targets = std::clamp<int64_t>(wanted, 1, options.sequence - 1);
  for (int64_t i = options.sequence - batch.num_targets; i < options.sequence; ++i) {
    batch.step.target_rows.push_back(static_cast<int32_t>(i) - 1);
    batch.step.targets.push_back(batch.step.ids[static_cast<size_t>(i)]);
  }
  return batch;
}

/// Everything of one case, made in order.
class StepBench {
 public:
  StepBench(const StepBenchOptions& options, const StepBenchProgress& progress)
      : options_(options),
        progress_(progress),
        profile_([this] { return now(); }),
        batch_(one_row(options)) {
    device::HostDeviceOptions host;
    host.num_threads = options.threads;
    host.cpus = options.cpus;
    host.kernels = options.kernels;
    device_ = device::HostDevice::create(host);
    stream_ = device_->create_stream();
    ops_ = device::profiled(device_->all_ops(*stream_), options.config.vocab_size, &profile_);
    load();
    meter_.emplace(options.threads, options.cpus, options.clock);
    describe();
  }

  StepBenchResult run() {
    const double begin = seconds_of(CLOCK_MONOTONIC);
    tell("warm up");
    one_step(1);
    profile_.clear();
    for (int i = 0; i < options_.steps; ++i) {
      if (i > 0 && options_.max_seconds > 0 &&
          seconds_of(CLOCK_MONOTONIC) - begin > options_.max_seconds) {
        break;
      }
      tell(cat("step ", i + 1, " of ", options_.steps));
      const StepSample before = peaks();
      StepSample sample = before;
      sample.seconds = one_step(i + 2);
      const StepSample after = peaks();
      sample.product_peak = std::max(before.product_peak, after.product_peak);
      sample.attention_peak = std::max(before.attention_peak, after.attention_peak);
      sample.f32_peak = std::max(before.f32_peak, after.f32_peak);
      result_.samples.push_back(sample);
    }
    result_.read_bytes_per_second =
        std::max(meter_->read_bytes_per_second(), meter_->read_bytes_per_second());
    result_.profile = profile_.rows();
    return result_;
  }

 private:
  double now() const { return device::bench_seconds(options_.clock, options_.threads); }

  void tell(const std::string& what) const {
    if (progress_) progress_(what);
  }

  void load() {
    tell("load");
    if (options_.model.empty()) {
      const nn::RandomWeights random(options_.config);
      base_ = nn::BaseWeights::load(
          *device_, *stream_, *ops_.linear, options_.config,
          [&](const model::WeightId& id) { return random.get(id); }, options_.weight_dtype);
    } else {
      const auto weights = model::ModelWeights::open(options_.model, options_.config);
      base_ = nn::BaseWeights::load(*device_, *stream_, *ops_.linear, options_.config, weights,
                                    options_.weight_dtype);
    }
    const model::MemorySettings settings = memory_settings(options_);
    network_ =
        nn::TrainNetwork::create(*device_, *stream_, ops_, options_.config, *base_, settings, 0, 0);
    const std::vector<float> start =
        model::initial_adapter(settings.linears, model::LoraInit::kDefault, 1);
    device_->copy_to_device(*stream_, network_->parameters(), start.data(),
                            start.size() * sizeof(float));
    device_->synchronize(*stream_);
  }

  void describe() {
    result_.device = device_->identity().name;
    result_.threads = options_.threads;
    result_.kernels = device_->kernels();
    result_.product =
        device::product_instruction(result_.kernels, device::weight_kind(options_.weight_dtype));
    result_.attention = device::attention_instruction(
        result_.kernels, device::attention_operands(options_.weight_dtype));
    result_.f32 = device::f32_instruction(result_.kernels);
    result_.allocated_bytes = device_->allocated_bytes();
    result_.num_tokens = batch_.num_tokens;
    result_.num_targets = batch_.num_targets;
    const auto tokens = static_cast<double>(batch_.num_tokens);
    const auto flops = [&](double targets) {
      return model::training_flops(options_.config, memory_settings(options_).linears,
                                   (tokens + 1) / 2, targets / tokens, false);
    };
    result_.flops = flops(static_cast<double>(batch_.num_targets));
    result_.flops_all_targets = flops(tokens);
  }

  StepSample peaks() {
    StepSample sample;
    sample.product_peak = meter_->operations_per_second(result_.product);
    sample.f32_peak = result_.f32 == result_.product ? sample.product_peak
                                                     : meter_->operations_per_second(result_.f32);
    sample.attention_peak = result_.attention == result_.product ? sample.product_peak
                            : result_.attention == result_.f32
                                ? sample.f32_peak
                                : meter_->operations_per_second(result_.attention);
    return sample;
  }

  double one_step(int64_t step) {
    const double begin = now();
    const StepOutcome outcome =
        train_step(*network_, *ops_.optimizer, {&batch_, 1}, {}, step, 1e-4, [](size_t) {});
    device_->synchronize(*stream_);
    const double seconds = now() - begin;
    if (step == 2) {
      result_.loss = outcome.loss;
      result_.gradient_norm = outcome.gradient_norm;
    }
    return seconds;
  }

  const StepBenchOptions& options_;
  const StepBenchProgress& progress_;
  device::Profile profile_;
  const MicroBatch batch_;
  // In the order of their making: each needs those before it.
  std::unique_ptr<device::HostDevice> device_;
  std::unique_ptr<device::Stream> stream_;
  device::OpSet ops_;
  std::unique_ptr<nn::BaseWeights> base_;
  std::unique_ptr<nn::TrainNetwork> network_;
  std::optional<device::PeakMeter> meter_;
  StepBenchResult result_;
};

double median_over(const std::vector<StepSample>& samples,
                   const std::function<double(const StepSample&)>& value) {
  std::vector<double> values;
  for (const StepSample& sample : samples) values.push_back(value(sample));
  return device::spread_of(values).median;
}

}  // namespace

model::ModelConfig bench_shape_135m() {
  model::ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.name = "135M shape";
  config.vocab_size = 49152;
  config.hidden = 576;
  config.intermediate = 1536;
  config.num_layers = 30;
  config.num_heads = 9;
  config.num_kv_heads = 3;
  config.head_dim = 64;
  config.max_position = 8192;
  config.rms_eps = 1e-5;
  config.rope.theta = 100000;
  config.tied_embeddings = true;
  return config;
}

model::ModelConfig bench_shape_1b() {
  model::ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.name = "1.1B shape";
  config.vocab_size = 32000;
  config.hidden = 2048;
  config.intermediate = 5632;
  config.num_layers = 22;
  config.num_heads = 32;
  config.num_kv_heads = 4;
  config.head_dim = 64;
  config.max_position = 2048;
  config.rms_eps = 1e-5;
  return config;
}

uint64_t step_bench_bytes(const StepBenchOptions& options) {
  device::HostDeviceOptions host;
  host.num_threads = options.threads;
  return model::memory_plan(options.config, {}, {}, memory_settings(options),
                            device::host_device_traits(host))
      .total_bytes();
}

void require_bench_memory(const StepBenchOptions& options) {
  const uint64_t source = options.model.empty() ? nn::RandomWeights::bytes(options.config) : 0;
  const uint64_t needed = step_bench_bytes(options) + source;
  const uint64_t free = device::host_memory_free_bytes();
  if (needed <= free) return;
  throw Error(
      Reason::kDoesNotFit,
      cat("a step of ", options.config.name, " with ", options.sequence, " tokens and ",
          dtype_name(options.weight_dtype), " weights needs ",
          format_bytes(static_cast<double>(needed)), ", ", format_bytes(static_cast<double>(free)),
          " are free; a shorter sequence or bf16 weights need less"));
}

device::OpWork StepBenchResult::work() const {
  const auto tokens = static_cast<double>(num_tokens);
  return {tokens * (flops.base_forward + flops.base_backward + flops.head),
          tokens * flops.attention, tokens * flops.lora, 0};
}

device::Spread StepBenchResult::seconds() const {
  std::vector<double> values;
  for (const StepSample& sample : samples) values.push_back(sample.seconds);
  return device::spread_of(values);
}

device::Spread StepBenchResult::tokens_per_second() const {
  const device::Spread s = seconds();
  const auto tokens = static_cast<double>(num_tokens);
  return {tokens / s.median, tokens / s.highest, tokens / s.lowest};
}

double StepBenchResult::flops_per_second() const { return work().flops() / seconds().median; }

double StepBenchResult::peak_fraction() const {
  return median_over(samples, [&](const StepSample& s) {
    return device::limit_of(s.seconds, work(), {s.product_peak, s.attention_peak, s.f32_peak, 0})
        .peak_fraction;
  });
}

double StepBenchResult::product_peak_fraction() const {
  return median_over(
      samples, [&](const StepSample& s) { return work().flops() / s.product_peak / s.seconds; });
}

device::MachineRates StepBenchResult::rates() const {
  return {median_over(samples, [](const StepSample& s) { return s.product_peak; }),
          median_over(samples, [](const StepSample& s) { return s.attention_peak; }),
          median_over(samples, [](const StepSample& s) { return s.f32_peak; }),
          read_bytes_per_second};
}

StepBenchResult bench_step(const StepBenchOptions& options, const StepBenchProgress& progress) {
  GALLEY_CHECK(options.sequence >= 2 && options.steps >= 1);
  require_bench_memory(options);
  return StepBench(options, progress).run();
}

device::BenchRecord step_record(const std::string& name, const StepBenchResult& result) {
  device::BenchRecord record;
  record.name = name;
  record.unit = "tokens/s";
  record.value = result.tokens_per_second();
  record.fraction = result.product_peak_fraction();
  record.limit = device::instruction_name(result.product);
  record.rate = 1e-9 * result.flops_per_second();
  record.rate_unit = "GF/s";
  record.loss = result.loss;
  record.gradient_norm = result.gradient_norm;
  record.kernels = device::kernel_set_name(result.kernels);
  record.threads = result.threads;
  return record;
}

std::vector<device::BenchRecord> profile_records(const std::string& name,
                                                 const StepBenchResult& result) {
  const auto steps = static_cast<double>(result.samples.size());
  std::vector<device::BenchRecord> records;
  double rest = 0;
  for (const StepSample& sample : result.samples) rest += sample.seconds;
  const auto add = [&](const std::string& operation, double seconds) -> device::BenchRecord& {
    device::BenchRecord record;
    record.name = cat(name, " / ", operation);
    record.unit = "ms/step";
    const double each = 1e3 * seconds / steps;
    record.value = {each, each, each};
    record.kernels = device::kernel_set_name(result.kernels);
    record.threads = result.threads;
    return records.emplace_back(std::move(record));
  };
  for (const device::ProfileRow& row : result.profile) {
    rest -= row.seconds;
    device::BenchRecord& record = add(row.name, row.seconds);
    const device::LimitVerdict verdict = device::limit_of(row.seconds, row.work, result.rates());
    const bool bytes = verdict.bandwidth_fraction > verdict.peak_fraction;
    const double amount = bytes ? row.work.bytes : row.work.flops();
    record.fraction = bytes ? verdict.bandwidth_fraction : verdict.peak_fraction;
    record.limit = device::limit_name(verdict.limit);
    record.rate = 1e-9 * amount / row.seconds;
    record.rate_unit = bytes ? "GB/s" : "GF/s";
  }
  add("rest", std::max(rest, 0.0));
  return records;
}

}  // namespace galley::trainer
