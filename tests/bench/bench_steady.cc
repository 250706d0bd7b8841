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
#include "tests/bench/bench_program.h"
#include "tests/trainer/network_bench.h"
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
  const auto tokens = text::TokenFile::open(job.assignment.token_file);
  trainer::DataOrder order({{tokens.summary().num_rows, 1}}, kGlobalBatch, 7);
  trainer::MicroBatcher batcher(tokens, kTokens, kGlobalBatch);
  const std::string& folder = job.assignment.spec.model;
  const auto linears =
      model::adapted_linears(model::read_model_config(folder), job.assignment.spec.lora);
  trainer::testing::NetworkBench bench(
      folder, linears, model::initial_adapter(linears, model::LoraInit::kDefault, 1), kTokens,
      device::KernelSet::kAuto, DType::kF32, threads);
  std::vector<double> medians;
  std::vector<trainer::BatchRow> rows;
  int64_t step = 0;
  for (int hundred = -1; hundred < kHundreds; ++hundred) {  // the first one warms up
    std::vector<double> seconds;
    for (int i = 0; i < 100; ++i) {
      const double begin = device::bench_seconds(clock, threads);
      const trainer::DataPosition position = order.position(++step);
      rows.clear();
      for (const uint32_t row : order.batch(position)) {
        rows.push_back({row, static_cast<uint32_t>(rows.size())});
      }
      trainer::train_step(*bench.network, *bench.ops.optimizer, batcher.cut(rows, position), {},
                          step, 1e-5, [](size_t) {});
      seconds.push_back(device::bench_seconds(clock, threads) - begin);
    }
    if (hundred >= 0) medians.push_back(device::spread_of(seconds).median);
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
  const double noise = 2 * device::spread_of(jumps).median;
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
