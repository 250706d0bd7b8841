// Predictor: bytes and speed of a job on a GPU type, as pure functions of values.
//
// Bytes come from model::memory_plan (exact for galley's own engine) plus the GPU type's overheads;
// the error bar says how far a measured peak may lie from the prediction.
#pragma once

#include <string>
#include <vector>

#include "engine/model/memory_plan.h"
#include "engine/model/train_spec.h"
#include "predictor/gpu_table.h"

namespace galley::predictor {

/// What is known of a job's rows.
struct DataShape {
  int64_t num_rows = 0;
  int64_t longest_tokens = 0;  // after truncation
  double mean_tokens = 0;
  double target_fraction = 1;  // targets / tokens
  bool measured = false;       // false: assumed from the spec alone (config.json only)
};

/// How a job would run on GPUs of one type.
struct PlanShape {
  model::ParallelLayout layout;  // 1 x 1 x 1 in this version
  int64_t micro_batch_tokens = 0;
  bool recompute_blocks = false;
  DType weight_dtype = DType::kF32;
  bool may_round_inputs = false;  // of products with bf16 weights
  std::string precision_note;     // as of resolve_precision(); ""
  int threads = 1;                // host device
};

struct PredictionPart {
  std::string name;  // "weights", "adapter and optimizer", "activations", "workspace", "context"
  uint64_t bytes = 0;
};

struct Prediction {
  bool fits = false;
  std::string reason;            // why it does not fit, and the cheapest change that would
  std::string moment;            // that makes the peak
  uint64_t planned_bytes = 0;    // what the device will hand out: memory_plan().total_bytes()
  uint64_t predicted_bytes = 0;  // peak of the worker on this GPU: planned + overheads
  uint64_t low_bytes = 0, high_bytes = 0;  // error bar of the measured peak
  uint64_t usable_bytes = 0;               // of the GPU
  std::vector<PredictionPart> parts;       // sum to predicted_bytes
  double tokens_per_second = 0;
  int64_t steps = 0;   // optimizer steps of the whole job
  double seconds = 0;  // of the whole job
};

/// True for emulated types and for the host device itself.
bool runs_on_host(const GpuType& gpu);
/// Planned traits of the device that a GPU type stands for (emulated and host: the host device's).
DeviceTraits traits_for(const GpuType& gpu, int threads);
/// Settings for model::memory_plan that the trainer will use for this job and shape.
model::MemorySettings memory_settings(const model::ModelConfig& config,
                                      const model::TrainSpec& spec, const DataShape& data,
                                      const PlanShape& shape);

Prediction predict(const model::ModelConfig& config, const model::TrainSpec& spec,
                   const DataShape& data, const PlanShape& shape, const GpuType& gpu);

/// All shapes worth considering for a GPU type, best speed first; never empty: the last one is the
/// smallest, whether it fits or not. Honours the spec's pins.
struct Candidate {
  PlanShape shape;
  Prediction prediction;
};
std::vector<Candidate> candidates(const model::ModelConfig& config, const model::TrainSpec& spec,
                                  const DataShape& data, const GpuType& gpu, int threads);

/// Optimizer steps of a job: ceil(rows / global batch) per epoch, or max_steps.
int64_t total_steps(const model::TrainSpec& spec, int64_t num_rows);

}  // namespace galley::predictor
