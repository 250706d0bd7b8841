// Figures that predictions of one GPU and of groups share. Internal to predictor; pure functions of
// values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "predictor/predictor.h"

namespace galley::predictor {

/// Fraction of a device's peak that a LoRA step reaches; corrected by measured runs later.
inline constexpr double kStepEfficiency = 0.45;

/// Longest row of a job in tokens, and their mean.
int64_t longest_row(const model::TrainSpec& spec, const DataShape& data);
double mean_tokens(const model::TrainSpec& spec, const DataShape& data);

/// Tokens of a micro batch worth trying, the largest first: no more than `enough`, at least the
/// longest row.
std::vector<int64_t> micro_batch_choices(int64_t longest_row, int64_t enough);

/// Operations per second of a worker with so many threads (host device) on a GPU.
double device_flops(const GpuType& gpu, int threads, bool may_round_inputs);

/// Bytes of a worker process beside its device memory: code and heap, and the copies of the adapter
/// and its optimizer state while a checkpoint is written (by the leader of a group).
uint64_t process_bytes(const GpuType& gpu, const model::MemorySettings& settings);
/// Bytes of a GPU that galley may use.
uint64_t usable_bytes(const GpuType& gpu);
/// How far a measured peak may lie from a prediction.
uint64_t error_bytes(uint64_t predicted_bytes);

/// A job's values that predictions take; all must outlive the calls.
struct JobView {
  const model::ModelConfig& config;
  const model::TrainSpec& spec;
  const DataShape& data;
  const std::vector<model::AdaptedLinear>& linears;  // adapted_linears(config, spec.lora)
};
/// As memory_settings(), of linears that are known.
model::MemorySettings memory_settings(const JobView& job, const PlanShape& shape);
/// As predict() of a group.
Prediction predict_group(const JobView& job, const PlanShape& shape,
                         std::span<const GroupGpu> gpus);
/// Whether every worker of a stage fits its GPU, in all replicas.
bool stage_fits(const JobView& job, const PlanShape& shape, std::span<const GroupGpu> gpus,
                int stage);

/// Steps and seconds of the whole job at prediction->tokens_per_second.
void add_duration(const model::TrainSpec& spec, const DataShape& data, Prediction* prediction);

}  // namespace galley::predictor
