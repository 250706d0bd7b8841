// MemoryPlan: every tensor a training worker holds, with its lifetime, place and bytes.
//
// The one truth about bytes: the trainer allocates these arenas and nothing else on the hot path,
// the predictor reports their sums. Pure arithmetic on values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/device_traits.h"
#include "engine/model/layout.h"
#include "engine/model/lora.h"
#include "engine/model/model_config.h"

namespace galley::model {

/// What of a job decides its bytes.
struct MemorySettings {
  std::vector<AdaptedLinear> linears;  // of the whole model; a worker holds its shards
  DType weight_dtype = DType::kF32;    // of packed linear weights: kF32 or kBf16
  int64_t micro_batch_tokens = 0;      // most tokens of a micro batch
  int64_t micro_batch_rows = 0;        // most rows (segments) of a micro batch
  int64_t micro_batch_targets = 0;     // most target positions; 0: micro_batch_tokens
  int64_t max_position = 0;            // rows of the rotary tables
  bool recompute_blocks = false;       // keep only each block's input
  bool dropout = false;
  int64_t logits_chunk_rows = 0;  // 0: chosen by the plan
};

/// Moments of a step in order: "load", "forward 0" .. "forward L-1", "loss", "backward L-1" ..
/// "backward 0", "optimizer". A tensor lives from its first to its last moment, both included.
/// Layers are those of the worker; stages without the head have "hand over" instead of "loss".
enum class ArenaKind : uint8_t { kWeights, kTrainable, kActivations };

struct PlannedTensor {
  std::string name;  // "layers.3.q_proj.weight", "acts.3.gate", ...
  ArenaKind arena = ArenaKind::kActivations;
  uint64_t offset = 0, bytes = 0;
  int first_moment = 0, last_moment = 0;  // indices into MemoryPlan::moments
};
struct Moment {
  std::string name;         // "load", "forward 3", "loss", "backward 3", "optimizer"
  uint64_t live_bytes = 0;  // of all arenas, tensors alive then
};

struct MemoryPlan {
  std::vector<PlannedTensor> tensors;
  std::vector<Moment> moments;
  uint64_t weights_bytes = 0, trainable_bytes = 0, activations_bytes = 0;  // arena sizes
  uint64_t workspace_bytes = 0;  // the device's fixed scratch (from its traits)
  int64_t logits_chunk_rows = 0;
  /// What the device will hand out: the three arenas (and workspaces).
  uint64_t total_bytes() const {
    return weights_bytes + trainable_bytes + activations_bytes + workspace_bytes;
  }
  int peak_moment = 0;
  /// Error(kInternal) when missing.
  const PlannedTensor& tensor(const std::string& name) const;
};

/// Everything that one training worker holds. Tensors by name:
/// weights: "embedding", "head" (untied), "final_norm", "layers.L.attention_norm",
/// "layers.L.q_proj.weight", "layers.L.q_proj.bias", ...; trainable: "parameters", "gradients",
/// "first_moments", "second_moments"; activations: step inputs, "rotary.cos", "rotary.sin",
/// "acts.L.SLOT" for what backward of layer L reads, "forward.SLOT" and "backward.SLOT" for what is
/// used within one layer only, "stream" and "d_stream" (residual stream and its gradient),
/// "loss.*". A stage of a pipeline keeps pipeline_slots() micro batches for backward: what of them
/// is kept lives through the whole step, and is named "slot1.acts.L.SLOT" from the second one on; a
/// stage's input is its first layer's "acts.L.input" or, where that is not kept, "stream". Layers
/// have their numbers of the whole model, also in moments. "ids" is on the first stage, "loss.*" on
/// the last one, "d_stream" where a gradient flows. "shared_gradients" (trainable) is the vector of
/// AdapterShards::num_shared. Divided vocabulary: "loss.parts" [tp_size][chunk rows][3] and
/// "loss.log_sum_exp" [chunk rows], f64; chunks have the same rows on all tensor-parallel workers.
/// Sequence parallelism: the stream slots, "stream", "d_stream" and the statistics of their norms
/// have ceil(tokens / tp_size) rows, all else all tokens; "forward.partial" and "backward.partial"
/// [tokens, hidden] take outputs of row-parallel linears before their reduce-scatter and the
/// gathered gradient of the stream.
/// Error as require_layout().
MemoryPlan memory_plan(const ModelConfig& config, const ParallelLayout& layout,
                       const WorkerPosition& position, const MemorySettings& settings,
                       const DeviceTraits& traits);

/// The weights arena alone (one moment): what BaseWeights allocates, and the first part of
/// memory_plan. Norms and biases are f32, the tied head shares the embedding.
MemoryPlan weights_memory_plan(const ModelConfig& config, const ParallelLayout& layout,
                               const WorkerPosition& position, DType weight_dtype,
                               const DeviceTraits& traits);

/// What of an inference worker decides its bytes.
struct InferenceMemorySettings {
  DType weight_dtype = DType::kF32;
  int64_t max_tokens = 0;       // of one step
  int64_t num_slots = 0;        // sequences at once
  int64_t max_positions = 0;    // of a sequence
  int64_t max_logit_rows = 0;   // logits rows at once
  int64_t max_rank = 0;         // of any adapter; 0: no adapters
  uint64_t adapter_values = 0;  // f32 values of all adapters together
};
/// Everything that one inference worker holds, alive all the time: weights, "adapters", step
/// inputs, "cache.L.k" and "cache.L.v" [num_slots * max_positions, kv_width], "forward.SLOT", ...
MemoryPlan inference_memory_plan(const ModelConfig& config, const InferenceMemorySettings& settings,
                                 const DeviceTraits& traits);

/// Distance of rows, in elements, of an activation with `cols` columns: strides that are a multiple
/// of 4096 bytes put all rows into the same cache sets, so those get 64 bytes more.
constexpr int64_t row_stride(int64_t cols) { return cols % 1024 == 0 ? cols + 16 : cols; }

/// Floating-point operations of one training token (forward + backward, LoRA, attention at the
/// given mean context), and of its parts; for the speed model and for fractions of peak.
/// `mean_context`: mean number of keys that a query sees ((S + 1) / 2 for rows of S tokens).
/// `target_fraction`: targets / tokens; only those rows reach the head. Only what runs is counted:
/// nothing below the first adapted linear is differentiated, recomputed operations count again.
struct TokenFlops {
  double base_forward = 0, base_backward = 0, head = 0, lora = 0, attention = 0;
  double total() const { return base_forward + base_backward + head + lora + attention; }
};
TokenFlops training_flops(const ModelConfig& config, const std::vector<AdaptedLinear>& linears,
                          double mean_context, double target_fraction, bool recompute_blocks);
/// Of one worker of a group, forward and backward apart: its slice of the layers of its stage, the
/// head on the last one. The sum over a replica is more than training_flops() by what several
/// workers do alike: of a column-parallel linear x A^T and its gradients, of a row-parallel one the
/// product with B and its gradients, and key/value heads that live on several workers.
struct WorkerFlops {
  double forward = 0, backward = 0;
};
WorkerFlops worker_flops(const ModelConfig& config, const std::vector<AdaptedLinear>& linears,
                         const WorkerPlace& place, double mean_context, double target_fraction,
                         bool recompute_blocks);
/// Bytes that one worker sends for one token of a training step (activations and their gradients
/// between stages and tensor-parallel workers), and once per optimizer step (the adapter's
/// gradients). Of f32 values, every token a target; all-reduces count 2 (n - 1) / n times their
/// size, with sequence parallelism reduce-scatters and gathers (n - 1) / n times.
struct WorkerTraffic {
  double tensor_bytes_per_token = 0, stage_bytes_per_token = 0, step_bytes = 0;
  int tensor_calls_per_micro_batch = 0;  // all-reduces; the others are half of one
};
WorkerTraffic worker_traffic(const ModelConfig& config, const std::vector<AdaptedLinear>& linears,
                             const WorkerPlace& place, bool recompute_blocks);

}  // namespace galley::model
