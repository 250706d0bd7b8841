// Does a step's time grow over a run? 1,000 steps of a toy model, batches made as in a job; medians
// of every hundred. Usage: bench_steady [--cpu-time] [--threads N]
// The last line has the ratio of the last hundred to the first; exit 1 when it is above 1.05 by
// more than the hundreds between scatter. --cpu-time counts the process's processor time: for a
// machine that others load.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "engine/core/strings.h"
#include "engine/model/adapter_file.h"
#include "engine/model/weights.h"
#include "tests/bench/bench_program.h"
#include "tests/bench/timing.h"
#include "tests/trainer/toy_job.h"
#include "trainer/train_step.h"

namespace galley::bench {
namespace {

constexpr const char* kHelp =
    "bench_steady [--cpu-time] [--threads N]: 1,000 steps of a toy model; does a step's time "
    "grow?\n";
constexpr int kHundreds = 10;
constexpr double kAllowedGrowth = 0.05;
constexpr int64_t kGlobalBatch = 16, kTokens = 96;

/// Medians of the seconds of every hundred steps.
std::vector<double> hundreds(int threads, device::BenchClock clock) {
  const trainer::testing::ToyJob job = trainer::testing::make_toy_job("bench_steady");
  const model::ModelConfig config = model::read_model_config(job.assignment.spec.model);
  const auto weights = model::ModelWeights::open(job.assignment.spec.model, config);
  const auto tokens = text::TokenFile::open(job.assignment.token_file);
  trainer::DataOrder order({{tokens.summary().num_rows, 1}}, kGlobalBatch, 7);
  trainer::MicroBatcher batcher(tokens, kTokens, kGlobalBatch);
  const auto device =
      device::HostDevice::create({.capacity_bytes = uint64_t{256} << 20, .num_threads = threads});
  const auto stream = device->create_stream();
  device::OpSet ops = device->all_ops(*stream);
  const auto base =
      nn::BaseWeights::load(*device, *stream, *ops.linear, config, weights, DType::kF32);
  model::MemorySettings settings;
  settings.linears = model::adapted_linears(config, job.assignment.spec.lora);
  settings.micro_batch_tokens = settings.micro_batch_rows = settings.max_position = kTokens;
  const auto network =
      nn::TrainNetwork::create(*device, *stream, ops, config, *base, settings, 0, 0);
  const auto start = model::initial_adapter(settings.linears, model::LoraInit::kDefault, 1);
  device->copy_to_device(*stream, network->parameters(), start.data(), 4 * start.size());
  const clockid_t id =
      clock == device::BenchClock::kProcessor ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
  std::vector<double> medians;
  int64_t step = 0;
  for (int hundred = -1; hundred < kHundreds; ++hundred) {  // the first one warms up
    std::vector<double> seconds;
    for (int i = 0; i < 100; ++i) {
      const double begin = seconds_of(id);
      const trainer::DataPosition position = order.position(++step);
      trainer::train_step(*network, *ops.optimizer, batcher.cut(order.batch(position), position),
                          {}, step, 1e-5, [](size_t) {});
      seconds.push_back(seconds_of(id) - begin);
    }
    if (hundred >= 0) medians.push_back(median(seconds));
  }
  return medians;
}

int run(int argc, char** argv) {
  const BenchArguments arguments = parse_arguments(argc, argv, kHelp, {});
  const int threads = arguments.threads.empty() ? 1 : arguments.threads.front();
  const std::vector<double> medians = hundreds(threads, arguments.clock);
  for (size_t i = 0; i < medians.size(); ++i) {
    std::printf("steps %4zu to %4zu: median %.3f ms\n", 100 * i + 1, 100 * i + 100,
                1e3 * medians[i]);
  }
  // What neighbours scatter between two hundreds is no growth.
  std::vector<double> jumps;
  for (size_t i = 1; i < medians.size(); ++i) {
    jumps.push_back(std::abs(medians[i] / medians[i - 1] - 1));
  }
  const double noise = 2 * median(jumps);
  const double ratio = medians.back() / medians.front();
  const bool grew = ratio > 1 + kAllowedGrowth + noise;
  std::printf("%d %s: last hundred / first hundred = %.3f (at most %.2f, scatter %.3f): %s\n",
              threads, threads == 1 ? "thread" : "threads", ratio, 1 + kAllowedGrowth, noise,
              grew ? "a step's time grows" : "good");
  return grew ? 1 : 0;
}

}  // namespace
}  // namespace galley::bench

int main(int argc, char** argv) {
  return galley::bench::run_program("bench_steady", galley::bench::run, argc, argv);
}
