// Speed of a whole LoRA step of the 135M shape (30 layers, hidden 576, vocabulary 49152): tokens/s,
// achieved GF/s and the fraction of the f32 multiply-add peak measured beside each step, then a
// table of where the time goes. Rank 16 on all seven projections, one row of `sequence` tokens,
// every position but the first a target, AdamW included. Weights are random (their values do not
// change the speed). Usage: bench_step [--cpu-time] [sequence [steps [threads ...]]]
// --cpu-time counts the process's processor time per thread instead of wall time: for a machine
// that others load; it hides waiting.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "engine/core/random.h"
#include "engine/device/host/host_device.h"
#include "engine/device/host/thread_pool.h"
#include "engine/nn/network.h"
#include "tests/bench/fma_peak.h"
#include "tests/bench/profiled_ops.h"
#include "tests/bench/timing.h"

namespace galley::bench {
namespace {

using namespace galley::device;  // NOLINT

struct Options {
  bool cpu_time = false;
  int64_t sequence = 512;
  int steps = 3;
  std::vector<int> threads = {1, 2};
};

model::ModelConfig shape_135m() {
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

/// The same random numbers for every matrix; ones for the norms.
nn::BaseWeights::Source random_weights(const model::ModelConfig& config,
                                       std::vector<float>* values) {
  values->resize(static_cast<size_t>(config.vocab_size * config.hidden));
  Random random(1, random_stream("weights"));
  for (float& value : *values) value = 0.08f * (random.uniform_f32() - 0.5f);
  return [&config, values](const model::WeightId& id) {
    static const std::vector<float> ones(4096, 1.0f);
    model::StoredTensor tensor;
    tensor.dtype = DType::kF32;
    tensor.bytes = reinterpret_cast<const std::byte*>(values->data());
    if (id.role == model::WeightRole::kProjection) {
      tensor.shape = {config.projection_out(id.projection), config.projection_in(id.projection)};
    } else if (id.role == model::WeightRole::kEmbedding) {
      tensor.shape = {config.vocab_size, config.hidden};
    } else {
      tensor.shape = {config.hidden};
      tensor.bytes = reinterpret_cast<const std::byte*>(ones.data());
    }
    tensor.num_bytes = sizeof(float);
    for (const int64_t size : tensor.shape) tensor.num_bytes *= static_cast<uint64_t>(size);
    return tensor;
  };
}

nn::StepPlan one_row(int64_t sequence, int64_t vocab) {
  Random random(2, random_stream("ids"));
  nn::StepPlan step;
  step.segments.push_back({.kind = nn::SegmentKind::kTrain, .num_tokens = sequence});
  for (int64_t i = 0; i < sequence; ++i) {
    step.ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab))));
    if (i == 0) continue;
    step.target_rows.push_back(static_cast<int32_t>(i) - 1);
    step.targets.push_back(step.ids.back());
  }
  return step;
}

/// Multiply-adds per second of all threads, one short run.
double peak(ThreadPool& pool, int threads, bool wide, const Clock& clock) {
  double flops = 0;
  const double begin = clock();
  pool.run([&](int thread) {
    const double done = wide ? run_fma_avx512(200000) : run_fma_avx2(400000);
    if (thread == 0) flops = done;
  });
  return flops * threads / (clock() - begin);
}

void bench_case(const Options& options, int threads, DType dtype) {
  const Clock clock = [&] {
    return options.cpu_time ? seconds_of(CLOCK_PROCESS_CPUTIME_ID) / threads
                            : seconds_of(CLOCK_MONOTONIC);
  };
  Profile profile(clock);
  HostDeviceOptions device_options;
  device_options.num_threads = threads;
  const auto device = HostDevice::create(device_options);
  const auto stream = device->create_stream();
  const model::ModelConfig config = shape_135m();
  OpSet ops = profiled(device->all_ops(*stream), config.vocab_size, &profile);
  std::vector<float> values;
  const auto weights = nn::BaseWeights::load(*device, *stream, *ops.linear, config,
                                             random_weights(config, &values), dtype);
  const nn::StepPlan step = one_row(options.sequence, config.vocab_size);
  model::MemorySettings settings;
  settings.linears = model::adapted_linears(config, {});
  settings.weight_dtype = dtype;
  settings.micro_batch_tokens = options.sequence;
  settings.micro_batch_rows = 1;
  settings.max_position = options.sequence;
  const auto network =
      nn::TrainNetwork::create(*device, *stream, ops, config, *weights, settings, 0, 0);
  const auto start = model::initial_adapter(settings.linears, model::LoraInit::kDefault, 1);
  std::copy(start.begin(), start.end(), network->parameters());
  const auto count = static_cast<int64_t>(network->num_trainable());
  ThreadPool pool(threads, {});
  std::vector<double> times, fractions, peaks;
  const double flops =
      static_cast<double>(options.sequence) *
      model::training_flops(
          config, settings.linears, static_cast<double>(options.sequence + 1) / 2,
          static_cast<double>(options.sequence - 1) / static_cast<double>(options.sequence), false)
          .total();
  for (int i = 0; i <= options.steps; ++i) {
    if (i == 1) profile.clear();  // the first step warms up
    const double before = peak(pool, threads, device->kernels() == KernelSet::kAvx512, clock);
    const double begin = clock();
    network->zero_gradients();
    network->forward_backward(step, 1.0 / static_cast<double>(step.targets.size()));
    AdamWStep adamw;
    adamw.learning_rate = 1e-4;
    adamw.step = i + 1;
    ops.optimizer->adamw(network->parameters(), network->gradients(), network->first_moments(),
                         network->second_moments(), count, adamw);
    const double seconds = clock() - begin;
    if (i == 0) continue;
    const double after = peak(pool, threads, device->kernels() == KernelSet::kAvx512, clock);
    times.push_back(seconds);
    peaks.push_back((before + after) / 2);
    fractions.push_back(flops / seconds / peaks.back());
  }
  const double seconds = median(times);
  double mean = 0;
  for (const double time : times) mean += time / options.steps;
  std::printf(
      "%s, %s weights, sequence %lld: %.1f tokens/s, %.1f GF/s, %.1f %% of the FMA peak (%.1f "
      "GF/s)\n",
      device->identity().name.c_str(), dtype == DType::kF32 ? "f32" : "bf16",
      static_cast<long long>(options.sequence), static_cast<double>(options.sequence) / seconds,
      1e-9 * flops / seconds, 100 * median(fractions), 1e-9 * median(peaks));
  profile.print(options.steps, mean, median(peaks));
  std::fflush(stdout);
}

}  // namespace
}  // namespace galley::bench

int main(int argc, char** argv) {
  galley::bench::Options options;
  std::vector<std::string> words(argv + 1, argv + argc);
  options.cpu_time = !words.empty() && words[0] == "--cpu-time";
  if (options.cpu_time) words.erase(words.begin());
  if (!words.empty()) options.sequence = std::stoll(words[0]);
  if (words.size() > 1) options.steps = std::stoi(words[1]);
  if (words.size() > 2) options.threads.clear();
  for (size_t i = 2; i < words.size(); ++i) options.threads.push_back(std::stoi(words[i]));
  for (const int threads : options.threads) {
    for (const galley::DType dtype : {galley::DType::kF32, galley::DType::kBf16}) {
      galley::bench::bench_case(options, threads, dtype);
    }
  }
  return 0;
}
