// Layout: how the workers of a group divide a model among themselves, and what one of them holds.
//
// Tensor parallel: query heads, features and vocabulary in contiguous, nearly even ranges; a worker
// holds the key/value heads that its query heads use, so one of those may live on several workers.
// Ranges of features and vocabulary begin at multiples of 32 where that keeps them within 3 % of
// even.
// Pipeline parallel: contiguous ranges of layers, even or as given. Data parallel: whole copies.
// Pure values; the one place that knows shares of a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/json.h"
#include "engine/model/model_config.h"

namespace galley::model {

/// Indices begin .. end - 1.
struct IndexRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const IndexRange&) const = default;
};
/// The part of `count` things that the `index`-th of `parts` holds: contiguous, in order, the first
/// count % parts have one more.
IndexRange shard_range(int64_t count, int parts, int index);

enum class SequenceParallel : uint8_t {
  kNo,
  kYes,  // the residual stream and its norms are divided over the tensor-parallel workers by tokens
};

struct ParallelLayout {
  int tp_size = 1, pp_size = 1, dp_size = 1;
  std::vector<int> stage_layers = {};  // layers of each stage; empty: nearly even
  SequenceParallel sequence_parallel = SequenceParallel::kNo;
  int num_workers() const { return tp_size * pp_size * dp_size; }
  bool operator==(const ParallelLayout&) const = default;
};
/// "1 GPU", "tp 2", "tp 2 x pp 3 (layers 10 + 10 + 4) x dp 2".
std::string to_text(const ParallelLayout& layout);
Json to_json(const ParallelLayout& layout);
ParallelLayout layout_from_json(const Json& json);

/// Where a worker is in its group.
struct WorkerPosition {
  int tp_rank = 0, pp_rank = 0, dp_rank = 0;
  bool operator==(const WorkerPosition&) const = default;
};
/// Group ranks: tensor-parallel neighbours first, then stages, then replicas:
/// rank = (dp_rank * pp_size + pp_rank) * tp_size + tp_rank.
WorkerPosition worker_position(const ParallelLayout& layout, int group_rank);
int group_rank(const ParallelLayout& layout, const WorkerPosition& position);

/// A worker's place: the layout of its group and its position there.
struct WorkerPlace {
  ParallelLayout layout;
  WorkerPosition position;
  static WorkerPlace of(const ParallelLayout& layout, int group_rank) {
    return {layout, worker_position(layout, group_rank)};
  }
};

/// Error(kBadConfig) naming what the model cannot be divided into: more tensor-parallel workers
/// than query heads, features or tokens of the vocabulary; more stages than layers; stage_layers
/// that do not add up or hold an empty stage. Needs config.json only.
void require_layout(const ModelConfig& config, const ParallelLayout& layout);
/// Layers of each stage, nearly even when the layout does not say.
std::vector<int> stage_layers(const ModelConfig& config, const ParallelLayout& layout);

/// Widths of what one worker holds: the whole model for one worker, a slice of heads, features and
/// vocabulary under tensor parallelism, a range of layers under pipeline parallelism.
struct WorkerShape {
  int64_t first_layer = 0, num_layers = 0;
  int64_t hidden = 0, intermediate = 0, vocab_size = 0;  // hidden is never divided
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  // Where the slices begin in the whole model.
  int64_t first_head = 0, first_kv_head = 0, first_feature = 0, first_token = 0;
  int64_t heads_per_kv = 1;      // of the whole model
  int64_t whole_vocab_size = 0;  // of the whole model
  bool has_embedding = true, has_head = true;
  bool qk_norm = false;  // see ModelConfig
  int tp_size = 1, tp_rank = 0;
  SequenceParallel sequence_parallel = SequenceParallel::kNo;
  int64_t q_width() const { return num_heads * head_dim; }
  int64_t kv_width() const { return num_kv_heads * head_dim; }
  ProjectionWidths widths() const { return {hidden, intermediate, q_width(), kv_width()}; }
  int64_t projection_out(Projection projection) const { return widths().out(projection); }
  int64_t projection_in(Projection projection) const { return widths().in(projection); }
  /// Rows (outputs) and columns (inputs) of the whole weight [out, in] that this worker holds.
  IndexRange rows_of(Projection projection) const;
  IndexRange columns_of(Projection projection) const;
  /// Query head `h` of this worker uses its key/value head (first_in_group() + h) / heads_per_kv.
  int64_t first_in_group() const { return first_head - first_kv_head * heads_per_kv; }
  /// Tokens of a micro batch whose residual stream this worker holds: all, or its share of them
  /// with sequence parallelism.
  IndexRange stream_tokens(int64_t num_tokens) const;
};
/// Error as require_layout().
WorkerShape worker_shape(const ModelConfig& config, const ParallelLayout& layout,
                         const WorkerPosition& position);
WorkerShape worker_shape(const ModelConfig& config, const WorkerPlace& place);

/// A linear whose outputs are divided (q, k, v, gate, up, head) or whose inputs are (o, down).
enum class LinearSplit : uint8_t { kColumn, kRow };
constexpr LinearSplit linear_split(Projection projection) {
  return projection == Projection::kO || projection == Projection::kDown ? LinearSplit::kRow
                                                                         : LinearSplit::kColumn;
}

}  // namespace galley::model
