// bench: how fast this node trains, and where the time goes.
#include <algorithm>
#include <ostream>

#include "engine/core/error.h"
#include "engine/core/json.h"
#include "engine/core/processors.h"
#include "engine/core/strings.h"
#include "engine/model/model_config.h"
#include "engine/model/weights.h"
#include "launcher/commands.h"
#include "launcher/table.h"
#include "predictor/precision.h"
#include "trainer/kernels.h"
#include "trainer/step_bench.h"

namespace galley::launcher {
namespace {

using device::BenchRecord;
using device::Instruction;

constexpr int kLimitReadings = 3;

/// What the options come to.
struct Setup {
  trainer::StepBenchOptions step;
  std::string weights;  // for people: "random weights", or the folder
  std::string note;     // of the precision
  std::string why;      // these kernels; empty: they were named
};

/// As a training worker chooses them: pinned, or timed on products like those of the step.
void choose_kernels(const std::string& name, device::InputRounding rounding, Setup* setup) {
  trainer::StepBenchOptions& step = setup->step;
  const device::KernelSet pinned = device::kernel_set_from_name(name);
  if (pinned == device::KernelSet::kAuto) {
    const device::KernelWork work = trainer::training_work(step.config, step.weight_dtype,
                                                           step.sequence, step.threads, step.cpus);
    const auto measured = device::measure_kernels(device::kernel_candidates(rounding), work);
    step.kernels = device::choose_kernels(measured, std::nullopt);
    setup->why = device::compare_kernels(step.kernels, measured);
    return;
  }
  if (device::kernel_set_rounds(pinned) && rounding == device::InputRounding::kNever) {
    throw Error(Reason::kUsage, cat("--kernels ", name,
                                    " rounds inputs to bf16, which this precision forbids; add "
                                    "--precision bf16, or name other kernels"));
  }
  step.kernels = pinned;
}

/// More threads than processors would take turns, and every figure would be wrong.
int threads_of(const BenchOptions& options) {
  if (options.threads == 0) return useful_threads_here();
  const size_t allowed = allowed_cpus().size();
  if (static_cast<size_t>(options.threads) > allowed) {
    throw Error(Reason::kUsage,
                cat("--threads ", options.threads, " is more than the ", allowed,
                    allowed == 1 ? " processor" : " processors", " that this process may use"));
  }
  return options.threads;
}

Setup setup_of(const BenchOptions& options) {
  Setup setup;
  if (!(options.target_percent > 0 && options.target_percent <= 100)) {
    throw Error(Reason::kUsage,
                cat("--targets ", options.target_percent, " is not above 0 and at most 100"));
  }
  trainer::StepBenchOptions& step = setup.step;
  step.model = options.model;
  if (options.model.empty()) {
    step.config = trainer::bench_shape_135m();
    setup.weights = "random weights";
  } else {
    step.config = model::read_model_config(options.model);
    const auto weights = model::ModelWeights::open(options.model, step.config);
    step.config.stored_dtype = predictor::stored_matrix_dtype(weights, step.config);
    setup.weights = cat("weights of ", options.model);
  }
  if (options.sequence > step.config.max_position) {
    throw Error(Reason::kUsage, cat("--sequence ", options.sequence, " is beyond the ",
                                    step.config.max_position, " positions of ", step.config.name));
  }
  step.sequence = options.sequence;
  step.steps = options.steps;
  step.target_fraction = options.target_percent / 100;
  step.threads = threads_of(options);
  const predictor::ResolvedPrecision precision =
      predictor::resolve_precision(step.config, model::precision_from_name(options.precision),
                                   predictor::PrecisionUse::kTraining);
  step.weight_dtype = precision.weight_dtype;
  setup.note = precision.note;
  choose_kernels(
      options.kernels,
      precision.may_round_inputs ? device::InputRounding::kAllowed : device::InputRounding::kNever,
      &setup);
  return setup;
}

BenchRecord limit_record(const std::string& name, const std::string& unit, int threads,
                         const std::function<double()>& reading) {
  std::vector<double> readings;
  for (int i = 0; i < kLimitReadings; ++i) readings.push_back(1e-9 * reading());
  BenchRecord record;
  record.name = "limit " + name;
  record.unit = unit;
  record.value = device::spread_of(readings);
  record.threads = threads;
  return record;
}

std::vector<BenchRecord> limits(int threads) {
  device::PeakMeter meter(threads, {});
  std::vector<BenchRecord> records;
  for (const Instruction instruction : device::kAllInstructions) {
    if (!device::instruction_usable(instruction)) continue;
    records.push_back(limit_record(device::instruction_name(instruction), "GF/s", threads,
                                   [&] { return meter.operations_per_second(instruction); }));
  }
  records.push_back(
      limit_record("memory read", "GB/s", threads, [&] { return meter.read_bytes_per_second(); }));
  records.push_back(
      limit_record("memory copy", "GB/s", threads, [&] { return meter.copy_bytes_per_second(); }));
  // Without memory for the meter's buffer there is no reading.
  std::erase_if(records, [](const BenchRecord& record) { return record.value.median <= 0; });
  return records;
}

std::string step_name(const trainer::StepBenchOptions& step) {
  return cat("step ", step.config.name, " sequence ", step.sequence, " ",
             step.weight_dtype == DType::kBf16 ? "bf16" : "f32");
}

std::string limits_text(const std::vector<BenchRecord>& records) {
  Table table({"limit", "", "lowest", "highest"});
  for (const BenchRecord& record : records) {
    table.add({record.name.substr(sizeof "limit"),
               format("%.1f %s", record.value.median, record.unit.c_str()),
               format("%.1f", record.value.lowest), format("%.1f", record.value.highest)});
  }
  return table.text();
}

std::string flops_text(const model::TokenFlops& flops) {
  return format("%.0f MF/token: linears %.0f + %.0f, head %.0f, adapter %.0f, attention %.0f",
                1e-6 * flops.total(), 1e-6 * flops.base_forward, 1e-6 * flops.base_backward,
                1e-6 * flops.head, 1e-6 * flops.lora, 1e-6 * flops.attention);
}

std::string step_text(const trainer::StepBenchResult& result) {
  const device::Spread seconds = result.seconds();
  const std::string product = device::instruction_name(result.product);
  std::string text =
      format("step      %s (%s - %s), %zu after one to warm up\n",
             format_duration(seconds.median).c_str(), format_duration(seconds.lowest).c_str(),
             format_duration(seconds.highest).c_str(), result.samples.size());
  text += format("speed     %.1f tokens/s, %.1f GF/s\n", result.tokens_per_second().median,
                 1e-9 * result.flops_per_second());
  text += format("of peak   %.1f %% of %s, read before and after each step (the larger counts)\n",
                 100 * result.product_peak_fraction(), product.c_str());
  if (result.product != result.f32) {
    text += format("          %.1f %% when every part counts against its own instruction\n",
                   100 * result.peak_fraction());
  }
  text += cat("work      ", flops_text(result.flops), "\n");
  const double saved = result.flops_all_targets.total() - result.flops.total();
  if (result.num_targets + 1 < result.num_tokens) {
    text += format(
        "          %.0f MF/token less than with a target at every position: the head "
        "runs at %lld of %lld\n",
        1e-6 * saved, static_cast<long long>(result.num_targets),
        static_cast<long long>(result.num_tokens));
  }
  return text;
}

std::string profile_text(const trainer::StepBenchResult& result) {
  Table table(
      {"operation", "ms/step", "share", "calls", "GF/s", "GB/s", "of peak", "of memory", "limit"});
  const auto steps = static_cast<double>(result.samples.size());
  const device::MachineRates rates = result.rates();
  double total = 0;
  for (const trainer::StepSample& sample : result.samples) total += sample.seconds;
  double rest = total;
  const auto row_of = [&](const std::string& name, double seconds) {
    return std::vector<std::string>{name, format("%.2f", 1e3 * seconds / steps),
                                    format("%.1f %%", 100 * seconds / total)};
  };
  for (const device::ProfileRow& row : result.profile) {
    rest -= row.seconds;
    const device::LimitVerdict verdict = device::limit_of(row.seconds, row.work, rates);
    std::vector<std::string> cells = row_of(row.name, row.seconds);
    cells.push_back(format("%.0f", static_cast<double>(row.calls) / steps));
    cells.push_back(format("%.1f", 1e-9 * row.work.flops() / row.seconds));
    cells.push_back(format("%.1f", 1e-9 * row.work.bytes / row.seconds));
    cells.push_back(format("%.1f %%", 100 * verdict.peak_fraction));
    cells.push_back(format("%.1f %%", 100 * verdict.bandwidth_fraction));
    cells.emplace_back(device::limit_name(verdict.limit));
    table.add(std::move(cells));
  }
  table.add(row_of("rest (copies, fills)", std::max(rest, 0.0)));
  return cat(
      "\n", table.text(),
      "Each operand counts once; more than 100 % of memory came from caches. Latency: below ",
      format("%.0f", 100 * device::kLatencyFraction), " % of both.\n");
}

}  // namespace

int command_bench(const BenchOptions& options, Streams streams) {
  const Setup setup = setup_of(options);
  trainer::require_bench_memory(setup.step);
  if (!setup.note.empty()) streams.err << "galley: " << setup.note << "\n";
  const std::vector<BenchRecord> limit_records = limits(setup.step.threads);
  if (options.form == OutputForm::kTable) {
    streams.out << "machine   " << device::processor_name() << ", " << setup.step.threads
                << (setup.step.threads == 1 ? " thread, " : " threads, ")
                << device::kernel_set_name(setup.step.kernels) << " kernels"
                << (setup.why.empty() ? "" : cat(" (", setup.why, ")")) << "\n"
                << limits_text(limit_records) << "model     " << setup.step.config.name << ", "
                << setup.weights << ", "
                << (setup.step.weight_dtype == DType::kBf16 ? "bf16" : "f32") << "; sequence "
                << setup.step.sequence << ", LoRA rank 16 on all linears" << std::endl;
  }
  const trainer::StepBenchResult result = trainer::bench_step(setup.step);
  if (options.form == OutputForm::kTable) {
    streams.out << "memory    " << format_bytes(static_cast<double>(result.allocated_bytes)) << "\n"
                << step_text(result);
    if (options.profile) streams.out << profile_text(result);
    return 0;
  }
  std::vector<BenchRecord> records = limit_records;
  const std::string name = step_name(setup.step);
  records.push_back(trainer::step_record(name, result));
  if (options.profile) {
    for (BenchRecord& record : trainer::profile_records(name, result)) {
      records.push_back(std::move(record));
    }
  }
  for (const BenchRecord& record : records) {
    streams.out << device::to_json(record, device::processor_name()).dump() << "\n";
  }
  return 0;
}

}  // namespace galley::launcher
