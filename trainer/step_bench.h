// step_bench: one LoRA step of a model, measured beside the limits of the machine.
//
// The trainer's own step (train_step: forward, backward, gradient norm, AdamW) on one packed row of
// random tokens, LoRA of rank 16 on all linears. Peaks are read before and after each step, on the
// same number of threads. Single-threaded apart from the device's pool and the meter's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/device/bench_record.h"
#include "engine/device/host/peak.h"
#include "engine/device/profiled_ops.h"
#include "engine/model/memory_plan.h"
#include "engine/model/model_config.h"

namespace galley::trainer {

/// The shapes that benchmarks speak of: SmolLM2-135M (30 layers, hidden 576, tied head), and
/// TinyLlama's 1.1B (22 layers, hidden 2048).
model::ModelConfig bench_shape_135m();
model::ModelConfig bench_shape_1b();

struct StepBenchOptions {
  model::ModelConfig config;
  std::string
      model;  // folder with the weights; empty: random ones (values do not change the speed)
  int64_t sequence = 512;
  double target_fraction = 1;  // of the positions after the first, from the end of the row
  int steps = 3;               // after one to warm up
  double max_seconds = 0;      // begin no further step after this; 0: none
  int threads = 1;
  std::vector<int> cpus;  // as in HostDeviceOptions
  DType weight_dtype = DType::kF32;
  device::KernelSet kernels = device::KernelSet::kAuto;
  device::BenchClock clock = device::BenchClock::kWall;
};

/// Bytes that the device will hand out for it.
uint64_t step_bench_bytes(const StepBenchOptions& options);
/// Error(kDoesNotFit) when the memory that is free does not hold it, saying what would.
void require_bench_memory(const StepBenchOptions& options);

struct StepSample {
  double seconds = 0;
  // Operations per second of the instructions that the step's parts run on: the larger of the
  // readings before and after it.
  double product_peak = 0;    // products with weights
  double attention_peak = 0;  // products of attention
  double f32_peak = 0;        // the rest
};

struct StepBenchResult {
  std::string device;  // name of the device: processor, threads, kernels
  int threads = 1;
  device::KernelSet kernels = device::KernelSet::kPortable;
  device::Instruction product = device::Instruction::kMulAddSse2;
  device::Instruction attention = device::Instruction::kMulAddSse2;
  device::Instruction f32 = device::Instruction::kMulAddSse2;
  std::vector<StepSample> samples;  // at least one
  double read_bytes_per_second = 0;
  uint64_t allocated_bytes = 0;
  // Of the second step, the first in which every gradient is there: two builds must agree on them.
  double loss = 0, gradient_norm = 0;
  int64_t num_tokens = 0, num_targets = 0;
  model::TokenFlops flops;                  // per token, the head at target positions only
  model::TokenFlops flops_all_targets;      // had every position a target
  std::vector<device::ProfileRow> profile;  // sums over the samples, the longest first

  /// What a step demands of each instruction: products of frozen linears and head; those of
  /// attention; those of adapters.
  device::OpWork work() const;
  device::Spread seconds() const;
  device::Spread tokens_per_second() const;
  double flops_per_second() const;
  /// Time that the arithmetic needs at the peaks of its own instructions / time of a step, median.
  double peak_fraction() const;
  /// All floating-point operations at the products' peak / time of a step, median: the stricter one
  /// where products run on a faster instruction than the rest.
  double product_peak_fraction() const;
  device::MachineRates rates() const;  // medians
};

/// Called when weights are being loaded ("load") and before each step ("step 2 of 3").
using StepBenchProgress = std::function<void(const std::string& what)>;

/// Errors of require_bench_memory and of the model's files; kUsage for kernels that this processor
/// lacks.
StepBenchResult bench_step(const StepBenchOptions& options, const StepBenchProgress& progress = {});

/// The record of a step: tokens/s, and its fraction of the products' peak.
device::BenchRecord step_record(const std::string& name, const StepBenchResult& result);
/// One record per operation, the longest first: ms per step, and its fraction of what limits it.
/// The last one is what no operation took.
std::vector<device::BenchRecord> profile_records(const std::string& name,
                                                 const StepBenchResult& result);

}  // namespace galley::trainer
