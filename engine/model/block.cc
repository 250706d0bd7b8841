#include "engine/model/block.h"

#include <algorithm>
#include <string>

#include "engine/core/error.h"

namespace galley::model {
namespace {

constexpr std::array<std::string_view, kNumSlots> kSlotNames = {"input",
                                                                "attention_norm",
                                                                "attention_rstd",
                                                                "q_raw",
                                                                "k_raw",
                                                                "q_rstd",
                                                                "k_rstd",
                                                                "q",
                                                                "k",
                                                                "v",
                                                                "attention",
                                                                "lse",
                                                                "middle",
                                                                "mlp_norm",
                                                                "mlp_rstd",
                                                                "gate",
                                                                "up",
                                                                "product",
                                                                "output",
                                                                "q_proj_low_rank",
                                                                "k_proj_low_rank",
                                                                "v_proj_low_rank",
                                                                "o_proj_low_rank",
                                                                "gate_proj_low_rank",
                                                                "up_proj_low_rank",
                                                                "down_proj_low_rank"};

size_t at(Slot slot) { return static_cast<size_t>(slot); }

BlockOperation norm(Slot x, Slot y, Slot rstd) {
  return {.op = BlockOp::kNorm, .inputs = {x}, .output = y, .statistic = rstd};
}
BlockOperation linear(Projection projection, Slot x, Slot y) {
  return {.op = BlockOp::kLinear, .projection = projection, .inputs = {x}, .output = y};
}
BlockOperation head_norm(Slot x, Slot y, Slot rstd) {
  return {.op = BlockOp::kHeadNorm, .inputs = {x}, .output = y, .statistic = rstd};
}
BlockOperation linear_on_residual(Projection projection, Slot x, Slot residual, Slot y) {
  BlockOperation operation = linear(projection, x, y);
  operation.has_residual = true;
  operation.residual = residual;
  return operation;
}

std::vector<BlockOperation> list_operations(const BlockKind& kind) {
  std::vector<BlockOperation> list = {
      norm(Slot::kInput, Slot::kAttentionNorm, Slot::kAttentionRstd)};
  const auto add = [&](const BlockOperation& operation) { list.push_back(operation); };
  add(linear(Projection::kQ, Slot::kAttentionNorm, kind.qk_norm ? Slot::kQRaw : Slot::kQ));
  add(linear(Projection::kK, Slot::kAttentionNorm, kind.qk_norm ? Slot::kKRaw : Slot::kK));
  add(linear(Projection::kV, Slot::kAttentionNorm, Slot::kV));
  if (kind.qk_norm) {
    // Queries and keys are rotated apart: backward may make one of them again and keep the other.
    add(head_norm(Slot::kQRaw, Slot::kQ, Slot::kQRstd));
    add({.op = BlockOp::kRotate, .inputs = {Slot::kQ}, .output = Slot::kQ});
    add(head_norm(Slot::kKRaw, Slot::kK, Slot::kKRstd));
    add({.op = BlockOp::kRotate, .inputs = {Slot::kK}, .output = Slot::kK});
  } else {
    add({.op = BlockOp::kRotate, .inputs = {Slot::kQ, Slot::kK}, .output = Slot::kQ});
  }
  add({.op = BlockOp::kAttention,
       .inputs = {Slot::kQ, Slot::kK, Slot::kV},
       .output = Slot::kAttention,
       .statistic = Slot::kLse});
  add(linear_on_residual(Projection::kO, Slot::kAttention, Slot::kInput, Slot::kMiddle));
  add(norm(Slot::kMiddle, Slot::kMlpNorm, Slot::kMlpRstd));
  add(linear(Projection::kGate, Slot::kMlpNorm, Slot::kGate));
  add(linear(Projection::kUp, Slot::kMlpNorm, Slot::kUp));
  add({.op = BlockOp::kSwiglu, .inputs = {Slot::kGate, Slot::kUp}, .output = Slot::kProduct});
  add(linear_on_residual(Projection::kDown, Slot::kProduct, Slot::kMiddle, Slot::kOutput));
  return list;
}

bool is_adapted(const BlockOperation& operation, const LayerRanks& ranks) {
  return operation.op == BlockOp::kLinear && ranks[static_cast<size_t>(operation.projection)] > 0;
}

bool inputs_need_gradient(const BlockOperation& operation, const BlockBackward& backward) {
  return std::any_of(operation.inputs.begin(), operation.inputs.end(),
                     [&](Slot slot) { return backward.needs_gradient[at(slot)]; });
}

/// Forward tensors that the backward of one operation reads (methods: reserve set of the pruning).
std::vector<Slot> backward_reads(const BlockOperation& operation, const LayerRanks& ranks,
                                 const BlockBackward& backward) {
  const bool flows = inputs_need_gradient(operation, backward);
  switch (operation.op) {
    case BlockOp::kNorm:
    case BlockOp::kHeadNorm:
      if (flows) return {operation.inputs[0], operation.statistic};
      return {};
    case BlockOp::kLinear:
      if (is_adapted(operation, ranks)) {
        return {operation.inputs[0], low_rank_slot(operation.projection)};
      }
      return {};
    case BlockOp::kRotate:
      return {};
    case BlockOp::kAttention:
      if (flows) return {Slot::kQ, Slot::kK, Slot::kV, operation.output, operation.statistic};
      return {};
    case BlockOp::kSwiglu:
      if (flows) return operation.inputs;
      return {};
  }
  return {};
}

void propagate_needs(const BlockKind& kind, const LayerRanks& ranks, BlockBackward* backward) {
  for (const BlockOperation& operation : block_operations(kind)) {
    const bool adapted = is_adapted(operation, ranks);
    const bool residual =
        operation.has_residual && backward->needs_gradient[at(operation.residual)];
    if (adapted || residual || inputs_need_gradient(operation, *backward)) {
      backward->active = true;
      if (operation.op != BlockOp::kRotate) backward->needs_gradient[at(operation.output)] = true;
    }
  }
}

/// Drops kept tensors that a cheap operation makes again from tensors that are kept anyway. Of
/// normed heads that is the raw query or key [T, width], which the norm's backward reads: the
/// rotated one, as wide, and the norm's statistic are made again, by the norm and its rotation.
/// Where the norm has no backward only the rotated one is kept.
void rematerialize(const BlockKind& kind, BlockBackward* backward) {
  const auto& operations = block_operations(kind);
  auto& keep = backward->keep;
  for (size_t i = 0; i < operations.size(); ++i) {
    const BlockOperation& operation = operations[i];
    const bool heads = operation.op == BlockOp::kHeadNorm;
    const bool cheap = heads || operation.op == BlockOp::kNorm || operation.op == BlockOp::kSwiglu;
    if (!cheap || keep[at(operation.output)] != Keep::kKeep) continue;
    const bool inputs_kept = std::all_of(operation.inputs.begin(), operation.inputs.end(),
                                         [&](Slot slot) { return keep[at(slot)] == Keep::kKeep; });
    if (!inputs_kept) continue;
    keep[at(operation.output)] = Keep::kRecompute;
    backward->rerun[i] = Rerun::kWhole;
    if (!heads) continue;
    keep[at(operation.statistic)] = Keep::kRecompute;
    GALLEY_CHECK(operations[i + 1].op == BlockOp::kRotate);
    backward->rerun[i + 1] = Rerun::kWhole;
  }
}

/// Keeps the block's input only; every operation on the way to a tensor that is read runs again.
void recompute_whole(const BlockKind& kind, const LayerRanks& ranks, BlockBackward* backward) {
  const auto& operations = block_operations(kind);
  for (Keep& keep : backward->keep) {
    if (keep == Keep::kKeep) keep = Keep::kRecompute;
  }
  auto& keep = backward->keep;
  const auto mark = [&](Slot slot) { keep[at(slot)] = Keep::kRecompute; };
  for (size_t i = operations.size(); i-- > 0;) {
    const BlockOperation& operation = operations[i];
    bool whole = backward->reads(operation.output);
    if (operation.op == BlockOp::kNorm || operation.op == BlockOp::kHeadNorm) {
      whole |= backward->reads(operation.statistic);
    }
    const bool adapted = is_adapted(operation, ranks);
    if (!whole && adapted && backward->reads(low_rank_slot(operation.projection))) {
      backward->rerun[i] = Rerun::kLowRank;
      mark(operation.inputs[0]);
    }
    if (!whole) continue;
    backward->rerun[i] = Rerun::kWhole;
    mark(operation.output);
    for (const Slot slot : operation.inputs) mark(slot);
    if (operation.has_residual) mark(operation.residual);
    if (operation.statistic != Slot::kInput) mark(operation.statistic);
    if (adapted) mark(low_rank_slot(operation.projection));
  }
  keep[at(Slot::kInput)] = Keep::kKeep;
}

}  // namespace

std::string_view slot_name(Slot slot) { return kSlotNames[at(slot)]; }

int64_t slot_width(const WorkerShape& shape, Slot slot, int64_t rank) {
  switch (slot) {
    case Slot::kInput:
    case Slot::kAttentionNorm:
    case Slot::kMiddle:
    case Slot::kMlpNorm:
    case Slot::kOutput:
      return shape.hidden;
    case Slot::kAttentionRstd:
    case Slot::kMlpRstd:
      return 1;
    case Slot::kQRaw:
      return shape.qk_norm ? shape.q_width() : 0;
    case Slot::kKRaw:
      return shape.qk_norm ? shape.kv_width() : 0;
    case Slot::kQRstd:
      return shape.qk_norm ? shape.num_heads : 0;
    case Slot::kKRstd:
      return shape.qk_norm ? shape.num_kv_heads : 0;
    case Slot::kQ:
    case Slot::kAttention:
      return shape.q_width();
    case Slot::kK:
    case Slot::kV:
      return shape.kv_width();
    case Slot::kLse:
      return shape.num_heads;
    case Slot::kGate:
    case Slot::kUp:
    case Slot::kProduct:
      return shape.intermediate;
    default:
      return rank;
  }
}

const std::vector<BlockOperation>& block_operations(const BlockKind& kind) {
  static const std::vector<BlockOperation> plain = list_operations({});
  static const std::vector<BlockOperation> normed = list_operations({.qk_norm = true});
  return kind.qk_norm ? normed : plain;
}

LayerRanks layer_ranks(std::span<const AdaptedLinear> linears, int layer) {
  LayerRanks ranks{};
  for (const AdaptedLinear& adapted : linears) {
    if (adapted.layer == layer) ranks[static_cast<size_t>(adapted.projection)] = adapted.rank;
  }
  return ranks;
}

int first_adapted_layer(std::span<const AdaptedLinear> linears) {
  int first = -1;
  for (const AdaptedLinear& adapted : linears) {
    if (first < 0 || adapted.layer < first) first = adapted.layer;
  }
  return first;
}

BlockBackward block_backward(const BlockKind& kind, const LayerRanks& ranks,
                             bool input_needs_gradient, bool recompute_block) {
  BlockBackward backward;
  backward.rerun.assign(block_operations(kind).size(), Rerun::kNo);
  backward.needs_gradient[at(Slot::kInput)] = input_needs_gradient;
  propagate_needs(kind, ranks, &backward);
  if (!backward.active) return backward;
  for (const BlockOperation& operation : block_operations(kind)) {
    for (const Slot slot : backward_reads(operation, ranks, backward)) {
      backward.keep[at(slot)] = Keep::kKeep;
    }
  }
  if (recompute_block) {
    recompute_whole(kind, ranks, &backward);
  } else {
    rematerialize(kind, &backward);
  }
  return backward;
}

}  // namespace galley::model
