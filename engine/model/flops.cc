#include "engine/model/block.h"
#include "engine/model/memory_plan.h"

namespace galley::model {
namespace {

/// Adds what the linears of one layer cost: forward, backward of what flows, and reruns.
void add_linear(const WorkerShape& shape, const BlockOperation& operation, int64_t rank,
                const BlockBackward& backward, Rerun rerun, TokenFlops* flops) {
  const auto out = static_cast<double>(shape.projection_out(operation.projection));
  const auto in = static_cast<double>(shape.projection_in(operation.projection));
  const auto r = static_cast<double>(rank);
  const bool input_flows = backward.needs_gradient[static_cast<size_t>(operation.inputs[0])];
  flops->base_forward += 2 * in * out;
  flops->lora += 2 * r * (in + out);
  if (input_flows) flops->base_backward += 2 * in * out;
  if (rank > 0) flops->lora += 2 * r * (2 * out + in) + (input_flows ? 2 * r * in : 0);
  if (rerun == Rerun::kWhole) {
    flops->base_backward += 2 * in * out;
    flops->lora += 2 * r * (in + out);
  }
  if (rerun == Rerun::kLowRank) flops->lora += 2 * r * in;
}

}  // namespace

TokenFlops training_flops(const ModelConfig& config, const std::vector<AdaptedLinear>& linears,
                          double mean_context, double target_fraction, bool recompute_blocks) {
  const WorkerShape shape = worker_shape(config, {}, {});
  const BlockKind kind{.qk_norm = shape.qk_norm};
  const int first = first_adapted_layer(linears);
  const double product = 2.0 * static_cast<double>(shape.q_width()) * mean_context;
  TokenFlops flops;
  for (int layer = 0; layer < static_cast<int>(shape.num_layers); ++layer) {
    const LayerRanks ranks = layer_ranks(linears, layer);
    const BlockBackward backward =
        block_backward(kind, ranks, first >= 0 && first < layer, recompute_blocks);
    const auto& operations = block_operations(kind);
    for (size_t i = 0; i < operations.size(); ++i) {
      const BlockOperation& operation = operations[i];
      if (operation.op == BlockOp::kLinear) {
        const int64_t rank = ranks[static_cast<size_t>(operation.projection)];
        add_linear(shape, operation, rank, backward, backward.rerun[i], &flops);
      } else if (operation.op == BlockOp::kAttention) {
        flops.attention += 2 * product;  // scores and weighted sum
        if (backward.reads(Slot::kLse)) flops.attention += 5 * product;
        if (backward.rerun[i] == Rerun::kWhole) flops.attention += 2 * product;
      }
    }
  }
  const double head =
      2.0 * static_cast<double>(shape.vocab_size) * static_cast<double>(shape.hidden);
  flops.head = target_fraction * head * (first >= 0 ? 2 : 1);
  return flops;
}

}  // namespace galley::model
