// Speed of a whole LoRA step: tokens/s, GF/s and the fraction of the peak of the instruction that
// the products run on, read before and after each step. The last line has the fractions that must
// hold at sequence 512; exit 1 below the floor, 4 when an aim is missed.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "tests/bench/bench_program.h"
#include "trainer/step_bench.h"

namespace galley::bench {
namespace {

using device::Instruction;
using device::KernelSet;

constexpr const char* kHelp =
    "bench_step [FLAG...]: a LoRA step (rank 16, all linears, one row of random tokens), measured\n"
    "  --filter TEXT        only cases whose name has TEXT, e.g. \"sequence 512\" or \"1.1B\"\n"
    "  --threads N[,N]      default: 1 and all cores\n"
    "  --kernels NAME[,..]  only these (\"all\": every set that this processor has)\n"
    "  --full               every sequence with each number of threads, three steps of each\n"
    "  --no-aims            figures only: exit 0 however fast\n"
    "  --json               JSON lines\n"
    "  --cpu-time           processor time instead of wall time (hides waiting)\n"
    "Names end in the weights' dtype; kernels that round inputs run with bf16 weights only.\n";

constexpr double kFloorF32 = 0.50, kAimF32 = 0.65;
constexpr double kFloorDot = 0.40, kAimDot = 0.50;
constexpr int64_t kAcceptedSequence = 512;
constexpr double kSecondsOfACase = 8;

struct Case {
  std::string name;
  trainer::StepBenchOptions options;
  bool accepted = false;  // its fraction is in the last line
};

/// Weights and kernels: f32, bf16 widened, and bf16 through the dot product.
struct Mode {
  DType dtype;
  KernelSet kernels;
};

std::vector<Mode> modes(const BenchArguments& arguments) {
  std::vector<KernelSet> sets = arguments.kernels;
  if (sets.empty()) {
    sets = {device::best_kernel_set()};
    if (device::kernel_set_usable(KernelSet::kAvx512Bf16)) sets.push_back(KernelSet::kAvx512Bf16);
  }
  std::vector<Mode> all;
  for (const KernelSet kernels : sets) {
    if (!device::kernel_set_rounds(kernels)) all.push_back({DType::kF32, kernels});
    all.push_back({DType::kBf16, kernels});
  }
  return all;
}

std::vector<Case> cases(const BenchArguments& arguments) {
  std::vector<Case> all;
  const bool full = arguments.has("--full");
  const int most = *std::max_element(arguments.threads.begin(), arguments.threads.end());
  const auto add = [&](const model::ModelConfig& config, int64_t sequence, int threads,
                       const Mode& mode, int steps) {
    Case c;
    c.name = cat("step ", config.name, " sequence ", sequence, " ",
                 mode.dtype == DType::kF32 ? "f32" : "bf16");
    if (!arguments.wants(c.name)) return;
    c.options.config = config;
    c.options.sequence = sequence;
    c.options.threads = threads;
    c.options.weight_dtype = mode.dtype;
    c.options.kernels = mode.kernels;
    c.options.clock = arguments.clock;
    c.options.steps = full ? 3 : steps;
    c.options.max_seconds = full ? 0 : kSecondsOfACase;
    const bool dot = mode.kernels == KernelSet::kAvx512Bf16;
    c.accepted =
        config.hidden == 576 && sequence == kAcceptedSequence && (mode.dtype == DType::kF32 || dot);
    all.push_back(c);
  };
  for (const int64_t sequence : {512, 128, 1024, 2048}) {
    for (const int threads : arguments.threads) {
      // Long rows on one core take half a minute a step.
      if (!full && threads != most && sequence > kAcceptedSequence) continue;
      for (const Mode& mode : modes(arguments)) {
        add(trainer::bench_shape_135m(), sequence, threads, mode, sequence <= 512 ? 3 : 1);
      }
    }
  }
  for (const int threads : arguments.threads) {
    if (!full && threads != most) continue;
    for (const Mode& mode : modes(arguments)) {
      add(trainer::bench_shape_1b(), 512, threads, mode, 1);
    }
  }
  return all;
}

/// What the last line says.
struct Acceptance {
  std::vector<std::string> figures;
  bool below_floor = false, misses_aim = false;

  void take(const trainer::StepBenchResult& result) {
    const bool dot = result.product == Instruction::kBf16Dot;
    const device::MachineRates rates = result.rates();
    if (dot && rates.product_flops <= rates.f32_flops) return;  // not the faster instruction here
    const double fraction = result.product_peak_fraction();
    below_floor |= fraction < (dot ? kFloorDot : kFloorF32);
    misses_aim |= fraction < (dot ? kAimDot : kAimF32);
    figures.push_back(format("%s, %d thread%s %.1f %% of its peak (floor %.0f, aim %.0f)",
                             device::instruction_name(result.product).c_str(), result.threads,
                             result.threads == 1 ? "" : "s", 100 * fraction,
                             100 * (dot ? kFloorDot : kFloorF32), 100 * (dot ? kAimDot : kAimF32)));
  }
  int exit_code() const { return below_floor ? 1 : misses_aim ? 4 : 0; }
};

int bench(int argc, char** argv) {
  const BenchArguments arguments = parse_arguments(argc, argv, kHelp, {"--full", "--no-aims"});
  const Reporter reporter(arguments.json);
  reporter.machine_line("LoRA step, rank 16 on all linears; fraction of the products' peak");
  Acceptance acceptance;
  size_t num_run = 0;
  bool skipped = false;
  for (const Case& c : cases(arguments)) {
    try {
      const trainer::StepBenchResult result = trainer::bench_step(c.options);
      reporter.add(trainer::step_record(c.name, result));
      if (c.accepted) acceptance.take(result);
      ++num_run;
    } catch (const Error& error) {
      if (error.reason() != Reason::kDoesNotFit) throw;
      reporter.skip(c.name, error.what());
      skipped = true;
    }
  }
  if (num_run == 0 && skipped) return reason_traits(Reason::kDoesNotFit).exit_code;
  if (num_run == 0) throw Error(Reason::kUsage, "no case was run; see --help for --filter");
  if (arguments.has("--no-aims") || acceptance.figures.empty()) return 0;
  std::fprintf(arguments.json ? stderr : stdout, "step 135M, sequence 512: %s\n",
               join(acceptance.figures, "; ").c_str());
  return acceptance.exit_code();
}

}  // namespace
}  // namespace galley::bench

int main(int argc, char** argv) {
  return galley::bench::run_program("bench_step", galley::bench::bench, argc, argv);
}
