#include <vector>

#include "engine/model/adapter_shards.h"
#include "engine/model/block.h"
#include "engine/model/memory_plan.h"

namespace galley::model {
namespace {

constexpr double kF32Bytes = 4;

/// Operations of one token, forward and backward apart.
struct PartFlops {
  double base_forward = 0, base_backward = 0;
  double lora_forward = 0, lora_backward = 0;
  double attention_forward = 0, attention_backward = 0;
};

/// Adds what one linear costs: forward, backward of what flows, and reruns. `shape` has the widths
/// of a worker: of a column-parallel linear it holds all of A and its rows of B, of a row-parallel
/// one its columns of A and all of B.
void add_linear(const WorkerShape& shape, const BlockOperation& operation, int64_t rank,
                const BlockBackward& backward, Rerun rerun, PartFlops* flops) {
  const auto out = static_cast<double>(shape.projection_out(operation.projection));
  const auto in = static_cast<double>(shape.projection_in(operation.projection));
  const auto r = static_cast<double>(rank);
  const bool input_flows = backward.needs_gradient[static_cast<size_t>(operation.inputs[0])];
  flops->base_forward += 2 * in * out;
  flops->lora_forward += 2 * r * (in + out);
  if (input_flows) flops->base_backward += 2 * in * out;
  if (rank > 0) flops->lora_backward += 2 * r * (2 * out + in) + (input_flows ? 2 * r * in : 0);
  if (rerun == Rerun::kWhole) {
    flops->base_backward += 2 * in * out;
    flops->lora_backward += 2 * r * (in + out);
  }
  if (rerun == Rerun::kLowRank) flops->lora_backward += 2 * r * in;
}

/// A worker's blocks.
PartFlops block_flops(const WorkerShape& shape, const std::vector<AdaptedLinear>& linears,
                      double mean_context, bool recompute_blocks) {
  const int first = first_adapted_layer(linears);
  const double product = 2.0 * static_cast<double>(shape.q_width()) * mean_context;
  const BlockKind kind{.qk_norm = shape.qk_norm};
  const auto& operations = block_operations(kind);
  PartFlops flops;
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    const auto layer = static_cast<int>(shape.first_layer + i);
    const LayerRanks ranks = layer_ranks(linears, layer);
    const BlockBackward backward =
        block_backward(kind, ranks, first >= 0 && first < layer, recompute_blocks);
    for (size_t k = 0; k < operations.size(); ++k) {
      const BlockOperation& operation = operations[k];
      if (operation.op == BlockOp::kLinear) {
        const int64_t rank = ranks[static_cast<size_t>(operation.projection)];
        add_linear(shape, operation, rank, backward, backward.rerun[k], &flops);
      } else if (operation.op == BlockOp::kAttention) {
        flops.attention_forward += 2 * product;  // scores and weighted sum
        if (backward.reads(Slot::kLse)) flops.attention_backward += 5 * product;
        if (backward.rerun[k] == Rerun::kWhole) flops.attention_backward += 2 * product;
      }
    }
  }
  return flops;
}

double head_flops(const WorkerShape& shape) {
  if (!shape.has_head) return 0;
  return 2.0 * static_cast<double>(shape.vocab_size) * static_cast<double>(shape.hidden);
}

/// Sums over the tensor-parallel workers that a worker's blocks make for one micro batch.
int block_sums(const WorkerShape& shape, const std::vector<AdaptedLinear>& linears,
               bool recompute_blocks) {
  const int first = first_adapted_layer(linears);
  const BlockKind kind{.qk_norm = shape.qk_norm};
  const auto& operations = block_operations(kind);
  int sums = 0;
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    const auto layer = static_cast<int>(shape.first_layer + i);
    const BlockBackward backward = block_backward(kind, layer_ranks(linears, layer),
                                                  first >= 0 && first < layer, recompute_blocks);
    for (size_t k = 0; k < operations.size(); ++k) {
      const BlockOperation& operation = operations[k];
      // Outputs of row-parallel linears, also when they run again.
      if (operation.op == BlockOp::kLinear && operation.has_residual) {
        sums += backward.rerun[k] == Rerun::kWhole ? 2 : 1;
      }
      // Gradients of what column-parallel linears read.
      const bool flows = backward.needs_gradient[static_cast<size_t>(operation.inputs[0])];
      if (operation.op == BlockOp::kNorm && flows) ++sums;
    }
  }
  return sums;
}

/// What each of `size` workers sends to sum `bytes`.
double sum_bytes(int size, double bytes) { return 2.0 * (size - 1) / size * bytes; }

}  // namespace

TokenFlops training_flops(const ModelConfig& config, const std::vector<AdaptedLinear>& linears,
                          double mean_context, double target_fraction, bool recompute_blocks) {
  const WorkerShape shape = worker_shape(config, WorkerPlace{});
  const PartFlops parts = block_flops(shape, linears, mean_context, recompute_blocks);
  return {.base_forward = parts.base_forward,
          .base_backward = parts.base_backward,
          .head = target_fraction * head_flops(shape) * (linears.empty() ? 1 : 2),
          .lora = parts.lora_forward + parts.lora_backward,
          .attention = parts.attention_forward + parts.attention_backward};
}

WorkerFlops worker_flops(const ModelConfig& config, const std::vector<AdaptedLinear>& linears,
                         const WorkerPlace& place, double mean_context, double target_fraction,
                         bool recompute_blocks) {
  const WorkerShape shape = worker_shape(config, place);
  const PartFlops parts = block_flops(shape, linears, mean_context, recompute_blocks);
  // The loss and its head belong to backward: a stage's forward ends with its last layer.
  const double head = target_fraction * head_flops(shape) * (linears.empty() ? 1 : 2);
  return {.forward = parts.base_forward + parts.lora_forward + parts.attention_forward,
          .backward = parts.base_backward + parts.lora_backward + parts.attention_backward + head};
}

WorkerTraffic worker_traffic(const ModelConfig& config, const std::vector<AdaptedLinear>& linears,
                             const WorkerPlace& place, bool recompute_blocks) {
  const ParallelLayout& layout = place.layout;
  const WorkerShape shape = worker_shape(config, place);
  const double row_bytes = static_cast<double>(shape.hidden) * kF32Bytes;
  const int first = first_adapted_layer(linears);
  WorkerTraffic traffic;
  if (layout.tp_size > 1) {
    int sums = block_sums(shape, linears, recompute_blocks) + (shape.has_embedding ? 1 : 0);
    if (shape.has_head && first >= 0) ++sums;  // of the gradient of the final norm's output
    traffic.tensor_calls_per_micro_batch = sums;
    traffic.tensor_bytes_per_token = sum_bytes(layout.tp_size, row_bytes * sums);
  }
  if (!shape.has_head) traffic.stage_bytes_per_token += row_bytes;
  if (!shape.has_embedding && first >= 0 && first < shape.first_layer) {
    traffic.stage_bytes_per_token += row_bytes;
  }
  const AdapterShards shards = adapter_shards(config, linears, place);
  const auto bytes = [](uint64_t elements) { return kF32Bytes * static_cast<double>(elements); };
  if (layout.tp_size > 1) {
    traffic.step_bytes +=
        sum_bytes(layout.tp_size, bytes(shards.num_replicated + shards.num_shared));
  }
  if (layout.dp_size > 1) {
    traffic.step_bytes += sum_bytes(layout.dp_size, bytes(shards.num_elements));
  }
  return traffic;
}

}  // namespace galley::model
