// MemoryPlan: every tensor a training worker holds, with its lifetime, place and bytes.
//
// The one truth about bytes: the trainer allocates these arenas and nothing else on the hot path,
// the predictor reports their sums. Pure arithmetic on values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/device_traits.h"
#include "engine/model/lora.h"
#include "engine/model/model_config.h"

namespace galley::model {

struct ParallelLayout {
  int tp_size = 1, pp_size = 1, dp_size = 1;
};
struct WorkerPosition {
  int tp_rank = 0, pp_rank = 0, dp_rank = 0;
};

/// What of a job decides its bytes.
struct MemorySettings {
  std::vector<AdaptedLinear> linears;
  DType weight_dtype = DType::kF32;      // of packed linear weights: kF32 or kBf16
  int64_t micro_batch_tokens = 0;        // most tokens of a micro batch
  int64_t micro_batch_rows = 0;          // most rows (segments) of a micro batch
  int64_t micro_batch_targets = 0;       // most target positions; 0: micro_batch_tokens
  int64_t max_position = 0;              // rows of the rotary tables
  bool recompute_blocks = false;         // keep only each block's input
  bool dropout = false;
  int64_t logits_chunk_rows = 0;         // 0: chosen by the plan
};

/// Moments of a step in order; a tensor lives from its first to its last moment.
enum class ArenaKind : uint8_t { kWeights, kTrainable, kActivations };

struct PlannedTensor {
  std::string name;                      // "layers.3.q_proj.weight", "acts.3.gate", ...
  ArenaKind arena = ArenaKind::kActivations;
  uint64_t offset = 0, bytes = 0;
  int first_moment = 0, last_moment = 0; // indices into MemoryPlan::moments
};
struct Moment {
  std::string name;                      // "load", "forward 3", "loss", "backward 3", "optimizer"
  uint64_t live_bytes = 0;               // of all arenas, tensors alive then
};

struct MemoryPlan {
  std::vector<PlannedTensor> tensors;
  std::vector<Moment> moments;
  uint64_t weights_bytes = 0, trainable_bytes = 0, activations_bytes = 0;   // arena sizes
  uint64_t workspace_bytes = 0;          // the device's fixed scratch (from its traits)
  int64_t logits_chunk_rows = 0;
  /// What the device will hand out: the three arenas (and workspaces).
  uint64_t total_bytes() const {
    return weights_bytes + trainable_bytes + activations_bytes + workspace_bytes;
  }
  int peak_moment = 0;
  /// Error(kInternal) when missing.
  const PlannedTensor& tensor(const std::string& name) const;
};

MemoryPlan memory_plan(const ModelConfig& config, const ParallelLayout& layout,
                       const WorkerPosition& position, const MemorySettings& settings,
                       const DeviceTraits& traits);

/// Floating-point operations of one training token (forward + backward, LoRA, attention at the
/// given mean context), and of its parts; for the speed model and for fractions of peak.
struct TokenFlops {
  double base_forward = 0, base_backward = 0, head = 0, lora = 0, attention = 0;
  double total() const { return base_forward + base_backward + head + lora + attention; }
};
TokenFlops training_flops(const ModelConfig& config, const std::vector<AdaptedLinear>& linears,
                          double mean_context, double target_fraction, bool recompute_blocks);

}  // namespace galley::model
