// Block: one decoder layer as data. The list of its operations, and what backward must keep of
// them.
//
// Shapes of a worker's share, the operations over named activations, and the pruning that derives,
// from the set of adapted linears, which activations a LoRA backward reads, which of them are cheap
// to make again and which gradients must flow. The memory plan, the FLOP count and the network all
// read this one list. Pure values.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/model/layout.h"
#include "engine/model/lora.h"
#include "engine/model/memory_plan.h"
#include "engine/model/model_config.h"

namespace galley::model {

/// Activations of a block. T tokens, h hidden, f intermediate, r rank.
enum class Slot : uint8_t {
  kInput,          // [T, h] residual stream that enters
  kAttentionNorm,  // [T, h]
  kAttentionRstd,  // [T]
  kQRaw,           // [T, q_width] before its norm; models with qk_norm only
  kKRaw,           // [T, kv_width]
  kQRstd,          // [T, num_heads]
  kKRstd,          // [T, num_kv_heads]
  kQ,              // [T, q_width] after rotation
  kK,              // [T, kv_width] after rotation
  kV,              // [T, kv_width]
  kAttention,      // [T, q_width]
  kLse,            // [T, num_heads]
  kMiddle,         // [T, h] residual stream after attention
  kMlpNorm,        // [T, h]
  kMlpRstd,        // [T]
  kGate,           // [T, f]
  kUp,             // [T, f]
  kProduct,        // [T, f] silu(gate) * up
  kOutput,         // [T, h] residual stream that leaves
  kLowRank,        // first of seven, one per projection: x A^T [T, r]
};
constexpr int kNumSlots = static_cast<int>(Slot::kLowRank) + kNumProjections;
constexpr int slot_index(Slot slot) { return static_cast<int>(slot); }
constexpr Slot low_rank_slot(Projection projection) {
  return static_cast<Slot>(slot_index(Slot::kLowRank) + static_cast<int>(projection));
}
/// "q", "attention_norm", "q_proj_low_rank", ...
std::string_view slot_name(Slot slot);
/// Columns of a slot; `rank` is used by low-rank slots only.
int64_t slot_width(const WorkerShape& shape, Slot slot, int64_t rank);

enum class BlockOp : uint8_t { kNorm, kLinear, kHeadNorm, kRotate, kAttention, kSwiglu };

/// One operation. A linear with a residual gives output = residual + x W^T, the others output =
/// f(x).
struct BlockOperation {
  BlockOp op = BlockOp::kNorm;
  Projection projection = Projection::kQ;  // of a linear
  std::vector<Slot> inputs;
  Slot output = Slot::kInput;
  Slot statistic = Slot::kInput;  // of norms (rstd) and attention (lse); else kInput
  bool has_residual = false;
  Slot residual = Slot::kInput;
};
/// What decides the list beside widths. (More fields as families need them.)
struct BlockKind {
  bool qk_norm = false;
  bool operator==(const BlockKind&) const = default;
};
/// The operations of a block, in forward order.
const std::vector<BlockOperation>& block_operations(const BlockKind& kind);

/// Which linears of one layer are adapted: rank per projection, 0 = not adapted.
using LayerRanks = std::array<int64_t, kNumProjections>;
LayerRanks layer_ranks(std::span<const AdaptedLinear> linears, int layer);
/// The lowest layer with an adapted linear; -1 when there is none.
int first_adapted_layer(std::span<const AdaptedLinear> linears);

enum class Keep : uint8_t {
  kDrop,       // backward does not read it
  kKeep,       // read by backward, lives from forward to backward
  kRecompute,  // read by backward, made again there
};

enum class Rerun : uint8_t {
  kNo,
  kLowRank,  // of an adapted linear: its low-rank activation only, not the product
  kWhole,
};

/// What backward of one layer needs.
struct BlockBackward {
  bool active = false;  // anything of this layer is differentiated
  std::array<bool, kNumSlots> needs_gradient{};
  std::array<Keep, kNumSlots> keep{};
  /// Operations that backward runs again first, in forward order: whole blocks' recomputation, or
  /// the cheap ones (norms, swiglu) whose inputs are kept anyway.
  std::vector<Rerun> rerun;  // by index of block_operations(kind)
  bool reads(Slot slot) const { return keep[static_cast<size_t>(slot)] != Keep::kDrop; }
};
/// `input_needs_gradient`: an adapted linear lies in a lower layer.
BlockBackward block_backward(const BlockKind& kind, const LayerRanks& ranks,
                             bool input_needs_gradient, bool recompute_block);

}  // namespace galley::model
