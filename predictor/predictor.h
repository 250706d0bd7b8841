// Predictor: bytes and speed of a job on a GPU type, as pure functions of values.
//
// Bytes come from model::memory_plan (exact for galley's own engine) plus the GPU type's overheads;
// the error bar says how far a measured peak may lie from the prediction.
#pragma once

#include <functional>
#include <span>
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

/// A GPU that a job would get, and what its worker has there.
struct GroupGpu {
  GpuType type;
  int threads = 1;  // host device
  int node = 0;     // GPUs with the same number share a node
};

/// How a job would run: on one GPU, or on a group of them, also of unlike types.
struct PlanShape {
  model::ParallelLayout layout;
  int64_t micro_batch_tokens = 0;  // of the replica with the largest
  // Data parallel over unlike GPUs, by dp rank; empty: all alike.
  std::vector<int64_t> replica_tokens;  // tokens of a micro batch
  std::vector<double> replica_shares;   // of the tokens of a global batch; sum 1
  std::vector<int> worker_threads;      // by group rank; empty: `threads` everywhere
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

/// Bytes of one worker of a group, as in Prediction.
struct WorkerNeed {
  uint64_t planned_bytes = 0, predicted_bytes = 0, low_bytes = 0, high_bytes = 0;
  uint64_t usable_bytes = 0;
  uint64_t communication_bytes = 0;  // shared memory of its node's rings; inside predicted_bytes
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
  std::vector<WorkerNeed> workers;         // by group rank; the figures above are of the one with
                                           // the least room left
  double idle_share = 0;           // of the group's time, waiting for each other (pipeline bubble)
  double communication_share = 0;  // of the time of a step
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
/// The same for a group: `gpus` by group rank, shape.layout.num_workers() of them. Speed from the
/// pipeline's list of operations with each stage's own time, the slowest tensor-parallel worker of
/// a stage, the slowest replica, and what they send each other; 0 where the group does not fit.
Prediction predict(const model::ModelConfig& config, const model::TrainSpec& spec,
                   const DataShape& data, const PlanShape& shape, std::span<const GroupGpu> gpus);

/// The largest message between workers of a group: the residual stream of a micro batch, f32
/// [micro_batch_tokens, hidden]. Rings of the host device are made for it (group_ring_bytes).
uint64_t group_message_bytes(const model::ModelConfig& config, const PlanShape& shape);

/// Layers of each stage such that the slowest stage is as fast as can be and every stage fits its
/// GPU, among those with the least total time, then the most even: `layer_s` and `extra_s`
/// (embedding, head) of each stage's GPU for one micro batch, and whether `fits(stage, first layer,
/// layers)`. Empty when no split fits. Exact (dynamic programming over stages and layers).
struct StageCost {
  double layer_s = 0, extra_s = 0;
};
std::vector<int> balance_stages(int num_layers, std::span<const StageCost> stages,
                                const std::function<bool(int, int, int)>& fits);

/// All shapes worth considering for a GPU type, best speed first; never empty: the last one is the
/// smallest, whether it fits or not. Honours the spec's pins.
struct Candidate {
  PlanShape shape;
  Prediction prediction;
};
std::vector<Candidate> candidates(const model::ModelConfig& config, const model::TrainSpec& spec,
                                  const DataShape& data, const GpuType& gpu, int threads);

/// The shape that a job takes on a group of GPUs under a layout (`gpus` by group rank): the first
/// in the usual order (nothing recomputed before blocks recomputed, large micro batches before
/// small ones, but enough of them to keep a pipeline's bubble small) that fits, else the smallest.
/// Layers of stages are balanced over the GPUs unless the layout gives them; unlike replicas get
/// shares of the batch by speed and micro batches by memory; all workers use the same numbers.
Candidate group_candidate(const model::ModelConfig& config, const model::TrainSpec& spec,
                          const DataShape& data, const model::ParallelLayout& layout,
                          std::span<const GroupGpu> gpus);

/// Optimizer steps of a job: ceil(rows / global batch) per epoch, or max_steps.
int64_t total_steps(const model::TrainSpec& spec, int64_t num_rows);

}  // namespace galley::predictor
