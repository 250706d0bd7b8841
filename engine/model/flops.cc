#include "engine/model/adapter_shards.h"
#include "engine/model/block.h"
#include "engine/model/memory_plan.h"

namespace galley::model {
namespace {

constexpr double kValueBytes = 4;

/// What one token costs on one worker, forward and backward apart.
struct PassFlops {
  TokenFlops forward, backward;
};

/// Adds one linear: forward, what flows back, and reruns (which count as backward).
void add_linear(const WorkerShape& shape, const BlockOperation& operation, int64_t rank,
                const BlockBackward& backward, Rerun rerun, PassFlops* flops) {
  const auto out = static_cast<double>(shape.projection_out(operation.projection));
  const auto in = static_cast<double>(shape.projection_in(operation.projection));
  const auto r = static_cast<double>(rank);
  const bool input_flows = backward.needs_gradient[static_cast<size_t>(operation.inputs[0])];
  flops->forward.base_forward += 2 * in * out;
  flops->forward.lora += 2 * r * (in + out);
  if (input_flows) flops->backward.base_backward += 2 * in * out;
  if (rank > 0) flops->backward.lora += 2 * r * (2 * out + in) + (input_flows ? 2 * r * in : 0);
  if (rerun == Rerun::kWhole) {
    flops->backward.base_backward += 2 * in * out;
    flops->backward.lora += 2 * r * (in + out);
  }
  if (rerun == Rerun::kLowRank) flops->backward.lora += 2 * r * in;
}

BlockBackward backward_of(const WorkerShape& shape, const std::vector<AdaptedLinear>& linears,
                          int layer, bool recompute_blocks) {
  const int first = first_adapted_layer(linears);
  return block_backward({.qk_norm = shape.qk_norm}, layer_ranks(linears, layer),
                        first >= 0 && first < layer, recompute_blocks);
}

PassFlops pass_flops(const WorkerShape& shape, const std::vector<AdaptedLinear>& linears,
                     double mean_context, double target_fraction, bool recompute_blocks) {
  const auto& operations = block_operations({.qk_norm = shape.qk_norm});
  const double product = 2.0 * static_cast<double>(shape.q_width()) * mean_context;
  PassFlops flops;
  const auto begin = static_cast<int>(shape.first_layer);
  for (int layer = begin; layer < begin + static_cast<int>(shape.num_layers); ++layer) {
    const LayerRanks ranks = layer_ranks(linears, layer);
    const BlockBackward backward = backward_of(shape, linears, layer, recompute_blocks);
    for (size_t i = 0; i < operations.size(); ++i) {
      const BlockOperation& operation = operations[i];
      if (operation.op == BlockOp::kLinear) {
        const int64_t rank = ranks[static_cast<size_t>(operation.projection)];
        add_linear(shape, operation, rank, backward, backward.rerun[i], &flops);
      } else if (operation.op == BlockOp::kAttention) {
        flops.forward.attention += 2 * product;  // scores and weighted sum
        if (backward.reads(Slot::kLse)) flops.backward.attention += 5 * product;
        if (backward.rerun[i] == Rerun::kWhole) flops.backward.attention += 2 * product;
      }
    }
  }
  if (!shape.has_head) return flops;
  flops.forward.head = target_fraction * 2.0 * static_cast<double>(shape.vocab_size) *
                       static_cast<double>(shape.hidden);
  if (first_adapted_layer(linears) >= 0) flops.backward.head = flops.forward.head;
  return flops;
}

/// Counts what a worker sends to its tensor-parallel neighbours for one token.
class TensorTraffic {
 public:
  explicit TensorTraffic(const WorkerShape& shape)
      : shape_(shape),
        divides_tokens_(shape.sequence_parallel == SequenceParallel::kYes),
        // Of a reduce-scatter or a gather; an all-reduce is one of each.
        part_bytes_(kValueBytes * static_cast<double>(row_stride(shape.hidden)) *
                    (shape.tp_size - 1) / shape.tp_size) {}

  void add_layer(const BlockBackward& backward) {
    const auto& operations = block_operations({.qk_norm = shape_.qk_norm});
    const auto needs = [&](Slot slot) {
      return backward.needs_gradient[static_cast<size_t>(slot)];
    };
    for (size_t i = 0; i < operations.size(); ++i) {
      const BlockOperation& operation = operations[i];
      const bool again = backward.rerun[i] == Rerun::kWhole;
      if (operation.op == BlockOp::kNorm) {
        if (divides_tokens_) add_parts(again ? 2 : 1);  // gather of its output
        if (needs(operation.inputs[0])) add_sum();      // gradient that its linears give back
      } else if (operation.has_residual) {
        add_sum();
        if (again) add_sum();
        if (divides_tokens_ && needs(operation.output)) add_parts(1);  // gather of its gradient
      }
    }
  }
  void add_embedding() { add_sum(); }
  /// Every token a target; divided or not, the hidden rows and their gradient meet all of the
  /// vocabulary's slices.
  void add_head(bool has_backward) {
    if (divides_tokens_) add_parts(2);
    if (has_backward) add_parts(2);
  }
  void finish(WorkerTraffic* traffic) const {
    traffic->tensor_bytes_per_token = parts_ * part_bytes_;
    traffic->tensor_calls_per_micro_batch = (parts_ + 1) / 2;
  }

 private:
  void add_parts(int count) { parts_ += count; }
  /// Summands of all tokens become the sum, or the own tokens of the sum.
  void add_sum() { add_parts(divides_tokens_ ? 1 : 2); }

  const WorkerShape& shape_;
  const bool divides_tokens_;
  const double part_bytes_;
  int parts_ = 0;
};

double all_reduce_bytes(uint64_t count, int workers) {
  return kValueBytes * static_cast<double>(count) * 2 * (workers - 1) / workers;
}

}  // namespace

TokenFlops training_flops(const ModelConfig& config, const std::vector<AdaptedLinear>& linears,
                          double mean_context, double target_fraction, bool recompute_blocks) {
  const PassFlops passes = pass_flops(worker_shape(config, {}, {}), linears, mean_context,
                                      target_fraction, recompute_blocks);
  return {.base_forward = passes.forward.base_forward,
          .base_backward = passes.backward.base_backward,
          .head = passes.forward.head + passes.backward.head,
          .lora = passes.forward.lora + passes.backward.lora,
          .attention = passes.forward.attention + passes.backward.attention};
}

WorkerFlops worker_flops(const ModelConfig& config, const std::vector<AdaptedLinear>& linears,
                         const WorkerPlace& place, double mean_context, double target_fraction,
                         bool recompute_blocks) {
  const PassFlops passes = pass_flops(worker_shape(config, place), linears, mean_context,
                                      target_fraction, recompute_blocks);
  return {passes.forward.total(), passes.backward.total()};
}

WorkerTraffic worker_traffic(const ModelConfig& config, const std::vector<AdaptedLinear>& linears,
                             const WorkerPlace& place, bool recompute_blocks) {
  const WorkerShape shape = worker_shape(config, place);
  const ParallelLayout& layout = place.layout;
  const int first_adapted = first_adapted_layer(linears);
  WorkerTraffic traffic;
  if (layout.tp_size > 1) {
    TensorTraffic tensor(shape);
    if (shape.has_embedding) tensor.add_embedding();
    const auto begin = static_cast<int>(shape.first_layer);
    for (int layer = begin; layer < begin + static_cast<int>(shape.num_layers); ++layer) {
      tensor.add_layer(backward_of(shape, linears, layer, recompute_blocks));
    }
    if (shape.has_head) tensor.add_head(first_adapted >= 0);
    tensor.finish(&traffic);
  }
  const double share =
      shape.sequence_parallel == SequenceParallel::kYes ? 1.0 / shape.tp_size : 1.0;
  const double row_bytes = kValueBytes * share * static_cast<double>(row_stride(shape.hidden));
  if (!shape.has_head) traffic.stage_bytes_per_token += row_bytes;
  const bool flows_on = first_adapted >= 0 && first_adapted < shape.first_layer;
  if (!shape.has_embedding && flows_on) traffic.stage_bytes_per_token += row_bytes;
  const AdapterShards shards = adapter_shards(config, linears, place);
  traffic.step_bytes = all_reduce_bytes(shards.num_replicated + shards.num_shared, layout.tp_size) +
                       all_reduce_bytes(shards.num_elements, layout.dp_size);
  return traffic;
}

}  // namespace galley::model
