#include "engine/model/memory_plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "engine/core/error.h"
#include "engine/model/adapter_shards.h"
#include "engine/model/block.h"
#include "engine/model/memory_plan_packing.h"
#include "engine/model/pipeline.h"

namespace galley::model {
namespace {

constexpr uint64_t kF32Bytes = 4;
constexpr uint64_t kLogitsChunkBytes = uint64_t{64} << 20;

std::string layer_name(const char* prefix, int64_t layer, std::string_view what) {
  return std::string(prefix) + std::to_string(layer) + "." + std::string(what);
}

uint64_t matrix_bytes(int64_t rows, int64_t cols) {
  return static_cast<uint64_t>(rows) * static_cast<uint64_t>(row_stride(cols)) * kF32Bytes;
}
/// Statistics (one or a few values per token) are dense.
uint64_t slot_bytes(const WorkerShape& shape, Slot slot, int64_t rank, int64_t tokens) {
  const int64_t width = slot_width(shape, slot, rank);
  const bool dense = slot == Slot::kAttentionRstd || slot == Slot::kMlpRstd || slot == Slot::kLse ||
                     slot == Slot::kQRstd || slot == Slot::kKRstd;
  if (dense) return static_cast<uint64_t>(tokens * width) * kF32Bytes;
  return matrix_bytes(tokens, width);
}

/// Adds tensors to a plan.
class Lister {
 public:
  explicit Lister(MemoryPlan* plan) : plan_(plan) {}
  void add(std::string name, ArenaKind arena, uint64_t bytes, int first, int last) {
    if (bytes == 0) return;
    plan_->tensors.push_back({std::move(name), arena, 0, bytes, first, last});
  }

 private:
  MemoryPlan* plan_;
};

void list_weights(Lister* list, const ModelConfig& config, const WorkerShape& shape,
                  DType weight_dtype, const DeviceTraits& traits, int last_moment) {
  const auto packed = [&](std::string name, int64_t out, int64_t in) {
    list->add(std::move(name), ArenaKind::kWeights,
              packed_weight_bytes(traits, weight_dtype, static_cast<uint64_t>(out),
                                  static_cast<uint64_t>(in)),
              0, last_moment);
  };
  const auto vector = [&](std::string name, int64_t count) {
    list->add(std::move(name), ArenaKind::kWeights, static_cast<uint64_t>(count) * kF32Bytes, 0,
              last_moment);
  };
  const bool tied = config.tied_embeddings;
  if (shape.has_embedding || (tied && shape.has_head))
    packed("embedding", shape.vocab_size, shape.hidden);
  for (int64_t layer = shape.first_layer; layer < shape.first_layer + shape.num_layers; ++layer) {
    vector(layer_name("layers.", layer, "attention_norm"), shape.hidden);
    vector(layer_name("layers.", layer, "mlp_norm"), shape.hidden);
    if (shape.qk_norm) {
      vector(layer_name("layers.", layer, "q_norm"), shape.head_dim);
      vector(layer_name("layers.", layer, "k_norm"), shape.head_dim);
    }
    for (int p = 0; p < kNumProjections; ++p) {
      const auto projection = static_cast<Projection>(p);
      const std::string name = layer_name("layers.", layer, projection_name(projection));
      packed(name + ".weight", shape.projection_out(projection), shape.projection_in(projection));
      // Summands of a row-parallel output meet one bias.
      const bool adds_bias = linear_split(projection) == LinearSplit::kColumn || shape.tp_rank == 0;
      if (config.projection_has_bias(projection) && adds_bias) {
        vector(name + ".bias", shape.projection_out(projection));
      }
    }
  }
  if (shape.has_head) vector("final_norm", shape.hidden);
  if (shape.has_head && !tied) packed("head", shape.vocab_size, shape.hidden);
}

int64_t choose_chunk_rows(int64_t wanted, int64_t most_targets, int64_t vocab) {
  if (wanted > 0) return std::min(wanted, std::max<int64_t>(most_targets, 1));
  const auto row_bytes = static_cast<int64_t>(matrix_bytes(1, vocab));
  const int64_t fit =
      std::clamp<int64_t>(static_cast<int64_t>(kLogitsChunkBytes) / row_bytes, 32, 1024);
  const int64_t chunks = std::max<int64_t>((most_targets + fit - 1) / fit, 1);
  return std::max<int64_t>((most_targets + chunks - 1) / chunks, 1);
}

/// Scratch that several layers use in turn: the largest use decides bytes, all uses the lifetime.
class Scratch {
 public:
  void use(const std::string& name, uint64_t bytes, int moment) {
    const auto [it, fresh] = uses_.try_emplace(name, Use{bytes, moment, moment});
    if (fresh) {
      order_.push_back(name);
      return;
    }
    it->second.bytes = std::max(it->second.bytes, bytes);
    it->second.first = std::min(it->second.first, moment);
    it->second.last = std::max(it->second.last, moment);
  }
  void list(Lister* list) const {
    for (const std::string& name : order_) {
      const Use& use = uses_.at(name);
      list->add(name, ArenaKind::kActivations, use.bytes, use.first, use.last);
    }
  }

 private:
  struct Use {
    uint64_t bytes;
    int first, last;
  };
  std::map<std::string, Use> uses_;
  std::vector<std::string> order_;
};

/// Lists the activations of a training worker.
class TrainActivations {
 public:
  /// `most_tokens`: the vocabulary of the fullest worker: chunks of logits are the same on all.
  TrainActivations(const WorkerShape& shape, int num_slots, int64_t most_tokens,
                   const MemorySettings& settings, MemoryPlan* plan)
      : shape_(shape), settings_(settings), most_tokens_(most_tokens), list_(plan), plan_(plan) {
    tokens_ = settings.micro_batch_tokens;
    // All workers alike: the first of them have the most.
    stream_tokens_ = divides_tokens() ? shard_range(tokens_, shape.tp_size, 0).size() : tokens_;
    num_slots_ = num_slots;
    first_layer_ = static_cast<int>(shape.first_layer);
    end_layer_ = first_layer_ + static_cast<int>(shape.num_layers);
    first_adapted_ = first_adapted_layer(settings.linears);
  }

  void list() {
    list_inputs();
    // A stage's output is on its way to the next one while other micro batches run.
    list_.add("stream", ArenaKind::kActivations, matrix_bytes(stream_tokens_, shape_.hidden),
              forward(first_layer_), shape_.has_head ? turn() : step_end());
    for (int layer = first_layer_; layer < end_layer_; ++layer) list_layer(layer);
    if (shape_.has_head) list_loss();
    if (is_trained()) list_stream_gradient();
    scratch_.list(&list_);
  }

 private:
  int forward(int layer) const { return 1 + layer - first_layer_; }
  /// Between forward and backward: the loss, or the hand-over to the next stage.
  int turn() const { return 1 + end_layer_ - first_layer_; }
  int backward(int layer) const { return turn() + end_layer_ - layer; }
  bool is_trained() const { return first_adapted_ >= 0 && first_adapted_ < end_layer_; }
  /// The last moment in which anything of a step is alive.
  int step_end() const {
    return is_trained() ? backward(std::max(first_adapted_, first_layer_)) : turn();
  }
  bool divides_tokens() const { return shape_.sequence_parallel == SequenceParallel::kYes; }

  void list_inputs() {
    const auto tokens = static_cast<uint64_t>(tokens_);
    const int optimizer = static_cast<int>(plan_->moments.size()) - 1;
    const uint64_t table = static_cast<uint64_t>(settings_.max_position) *
                           static_cast<uint64_t>(shape_.head_dim / 2) * kF32Bytes;
    const auto add = [&](const char* name, uint64_t bytes, int first, int last) {
      list_.add(name, ArenaKind::kActivations, bytes, first, last);
    };
    const int start = forward(first_layer_);
    add("rotary.cos", table, 0, optimizer);
    add("rotary.sin", table, 0, optimizer);
    if (shape_.has_embedding) add("ids", tokens * sizeof(int32_t), start, start);
    add("positions", tokens * sizeof(int32_t), start, step_end());
    if (settings_.dropout) add("row_ids", tokens * sizeof(uint64_t), start, step_end());
  }

  void list_layer(int layer) {
    const LayerRanks ranks = layer_ranks(settings_.linears, layer);
    const bool below = first_adapted_ >= 0 && first_adapted_ < layer;
    const BlockBackward back =
        block_backward({.qk_norm = shape_.qk_norm}, ranks, below, settings_.recompute_blocks);
    for (int i = 0; i < kNumSlots; ++i) {
      const auto slot = static_cast<Slot>(i);
      const int64_t rank = i < slot_index(Slot::kLowRank)
                               ? 0
                               : ranks[static_cast<size_t>(i - slot_index(Slot::kLowRank))];
      list_slot(layer, slot, rank, back.keep[static_cast<size_t>(i)]);
    }
    if (divides_tokens()) {
      scratch_.use("forward.partial", matrix_bytes(tokens_, shape_.hidden), forward(layer));
    }
    if (settings_.dropout) list_dropout(layer, ranks);
    if (back.active) list_gradients(layer, ranks, back);
  }

  static bool in_stream(Slot slot) {
    return slot == Slot::kInput || slot == Slot::kMiddle || slot == Slot::kOutput;
  }
  int64_t tokens_of(Slot slot) const {
    const bool share = in_stream(slot) || slot == Slot::kAttentionRstd || slot == Slot::kMlpRstd;
    return share ? stream_tokens_ : tokens_;
  }

  void list_slot(int layer, Slot slot, int64_t rank, Keep keep) {
    const uint64_t bytes = slot_bytes(shape_, slot, rank, tokens_of(slot));
    if (bytes == 0) return;
    const std::string name(slot_name(slot));
    if (keep == Keep::kKeep) {
      list_kept(layer, slot, bytes);
      return;
    }
    const bool low_rank = slot >= Slot::kLowRank;
    if (!in_stream(slot)) {
      scratch_.use(low_rank ? "forward.low_rank" : "forward." + name, bytes, forward(layer));
    }
    if (keep == Keep::kRecompute) scratch_.use("backward." + name, bytes, backward(layer));
  }

  void list_kept(int layer, Slot slot, uint64_t bytes) {
    const std::string name = layer_name("acts.", layer, slot_name(slot));
    if (num_slots_ == 1) {
      // The input is written by the layer below (the embedding or the stage before for the first).
      const int writer = slot == Slot::kInput ? std::max(layer - 1, first_layer_) : layer;
      list_.add(name, ArenaKind::kActivations, bytes, forward(writer), backward(layer));
      return;
    }
    for (int i = 0; i < num_slots_; ++i) {
      list_.add(i == 0 ? name : layer_name("slot", i, name), ArenaKind::kActivations, bytes,
                forward(first_layer_), step_end());
    }
  }

  void list_dropout(int layer, const LayerRanks& ranks) {
    for (int p = 0; p < kNumProjections; ++p) {
      if (ranks[static_cast<size_t>(p)] == 0) continue;
      const uint64_t bytes =
          matrix_bytes(tokens_, shape_.projection_in(static_cast<Projection>(p)));
      scratch_.use("forward.dropped", bytes, forward(layer));
      scratch_.use("backward.dropped", bytes, backward(layer));
      scratch_.use("backward.d_dropped", bytes, backward(layer));
    }
  }

  void list_gradients(int layer, const LayerRanks& ranks, const BlockBackward& back) {
    const auto needs = [&](Slot slot) { return back.needs_gradient[static_cast<size_t>(slot)]; };
    const auto use = [&](const char* name, int64_t width) {
      scratch_.use(std::string("backward.") + name, matrix_bytes(tokens_, width), backward(layer));
    };
    for (const int64_t rank : ranks) {
      if (rank > 0) use("d_low_rank", rank);
    }
    if (needs(Slot::kAttentionNorm) || needs(Slot::kMlpNorm)) use("d_norm", shape_.hidden);
    if (needs(Slot::kProduct)) use("product", shape_.intermediate);
    if (needs(Slot::kAttention)) {
      use("d_attention", shape_.q_width());
      use("d_q", shape_.q_width());
      use("d_k", shape_.kv_width());
      use("d_v", shape_.kv_width());
    }
    if (divides_tokens()) use("partial", shape_.hidden);
    // d_gate and d_up take the memory of gate and up.
  }

  void list_loss() {
    const int64_t most = settings_.micro_batch_targets > 0 ? settings_.micro_batch_targets
                                                           : settings_.micro_batch_tokens;
    const int64_t rows = choose_chunk_rows(settings_.logits_chunk_rows, most, most_tokens_);
    plan_->logits_chunk_rows = rows;
    const auto add = [&](const char* name, uint64_t bytes) {
      list_.add(name, ArenaKind::kActivations, bytes, turn(), turn());
    };
    const auto count = static_cast<uint64_t>(rows);
    add("loss.targets", count * sizeof(int32_t));
    add("loss.hidden", matrix_bytes(rows, shape_.hidden));
    add("loss.norm", matrix_bytes(rows, shape_.hidden));
    add("loss.rstd", count * kF32Bytes);
    add("loss.logits", matrix_bytes(rows, shape_.vocab_size));
    add("loss.values", count * sizeof(double));
    if (shape_.tp_size > 1) {
      add("loss.parts", static_cast<uint64_t>(shape_.tp_size) * count * 3 * sizeof(double));
      add("loss.log_sum_exp", count * sizeof(double));
    }
    if (first_adapted_ >= 0) add("loss.d_norm", matrix_bytes(rows, shape_.hidden));
  }

  /// It is received from the stage behind, or sent to the one before while others run.
  void list_stream_gradient() {
    const bool sent = !shape_.has_embedding && first_adapted_ < first_layer_;
    list_.add("d_stream", ArenaKind::kActivations, matrix_bytes(stream_tokens_, shape_.hidden),
              sent ? forward(first_layer_) : turn(), step_end());
  }

  const WorkerShape& shape_;
  const MemorySettings& settings_;
  const int64_t most_tokens_;
  Lister list_;
  MemoryPlan* plan_;
  Scratch scratch_;
  int64_t tokens_ = 0, stream_tokens_ = 0;
  int num_slots_ = 1, first_layer_ = 0, end_layer_ = 0, first_adapted_ = -1;
};

void name_moments(MemoryPlan* plan, const WorkerShape& shape) {
  const int64_t first = shape.first_layer, end = first + shape.num_layers;
  const auto add = [&](std::string name) { plan->moments.push_back({std::move(name), 0}); };
  add("load");
  for (int64_t i = first; i < end; ++i) add("forward " + std::to_string(i));
  add(shape.has_head ? "loss" : "hand over");
  for (int64_t i = end; i-- > first;) add("backward " + std::to_string(i));
  add("optimizer");
}

void finish(MemoryPlan* plan, const DeviceTraits& traits) {
  const uint32_t alignment = traits.alignment_bytes;
  plan->weights_bytes = pack_arena(&plan->tensors, ArenaKind::kWeights, alignment);
  plan->trainable_bytes = pack_arena(&plan->tensors, ArenaKind::kTrainable, alignment);
  plan->activations_bytes = pack_arena(&plan->tensors, ArenaKind::kActivations, alignment);
  fill_moments(plan);
}

void list_inference(Lister* list, const WorkerShape& shape,
                    const InferenceMemorySettings& settings) {
  const auto add = [&](std::string name, uint64_t bytes) {
    list->add(std::move(name), ArenaKind::kActivations, bytes, 0, 0);
  };
  const auto tokens = static_cast<uint64_t>(settings.max_tokens);
  const uint64_t table = static_cast<uint64_t>(settings.max_positions) *
                         static_cast<uint64_t>(shape.head_dim / 2) * kF32Bytes;
  add("rotary.cos", table);
  add("rotary.sin", table);
  add("ids", tokens * sizeof(int32_t));
  add("positions", tokens * sizeof(int32_t));
  add("adapters", settings.adapter_values * kF32Bytes);
  const int64_t cache_rows = settings.num_slots * settings.max_positions;
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    add(layer_name("cache.", layer, "k"), matrix_bytes(cache_rows, shape.kv_width()));
    add(layer_name("cache.", layer, "v"), matrix_bytes(cache_rows, shape.kv_width()));
  }
  add("stream", matrix_bytes(settings.max_tokens, shape.hidden));
  for (int i = 0; i < slot_index(Slot::kLowRank); ++i) {
    const auto slot = static_cast<Slot>(i);
    const bool in_stream = slot == Slot::kInput || slot == Slot::kMiddle || slot == Slot::kOutput;
    if (in_stream || slot == Slot::kLse) continue;
    add("forward." + std::string(slot_name(slot)), slot_bytes(shape, slot, 0, settings.max_tokens));
  }
  if (settings.max_rank > 0) {
    // Lower ranks may have a longer stride than the highest one.
    add("forward.low_rank", matrix_bytes(settings.max_tokens, settings.max_rank + 16));
  }
  add("loss.hidden", matrix_bytes(settings.max_logit_rows, shape.hidden));
  add("loss.norm", matrix_bytes(settings.max_logit_rows, shape.hidden));
  add("loss.rstd", static_cast<uint64_t>(settings.max_logit_rows) * kF32Bytes);
  add("loss.logits", matrix_bytes(settings.max_logit_rows, shape.vocab_size));
}

}  // namespace

const PlannedTensor& MemoryPlan::tensor(const std::string& name) const {
  for (const PlannedTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  throw Error(Reason::kInternal, "the memory plan has no tensor \"" + name + "\"");
}

MemoryPlan memory_plan(const ModelConfig& config, const ParallelLayout& layout,
                       const WorkerPosition& position, const MemorySettings& settings,
                       const DeviceTraits& traits) {
  const WorkerPlace place{layout, position};
  const WorkerShape shape = worker_shape(config, place);
  const int64_t most_tokens = worker_shape(config, layout, {}).vocab_size;
  MemoryPlan plan;
  name_moments(&plan, shape);
  const int last = static_cast<int>(plan.moments.size()) - 1;
  Lister list(&plan);
  list_weights(&list, config, shape, settings.weight_dtype, traits, last);
  const AdapterShards shards = adapter_shards(config, settings.linears, place);
  for (const char* name : {"parameters", "gradients", "first_moments", "second_moments"}) {
    list.add(name, ArenaKind::kTrainable, shards.num_elements * kF32Bytes, 0, last);
  }
  list.add("shared_gradients", ArenaKind::kTrainable, shards.num_shared * kF32Bytes, 0, last);
  const int num_slots = pipeline_slots(layout.pp_size, position.pp_rank);
  TrainActivations(shape, num_slots, most_tokens, settings, &plan).list();
  plan.workspace_bytes = traits.gemm_workspace_bytes + traits.attention_workspace_bytes;
  finish(&plan, traits);
  return plan;
}

MemoryPlan weights_memory_plan(const ModelConfig& config, const ParallelLayout& layout,
                               const WorkerPosition& position, DType weight_dtype,
                               const DeviceTraits& traits) {
  MemoryPlan plan;
  plan.moments.push_back({"load", 0});
  Lister list(&plan);
  list_weights(&list, config, worker_shape(config, layout, position), weight_dtype, traits, 0);
  finish(&plan, traits);
  return plan;
}

MemoryPlan inference_memory_plan(const ModelConfig& config, const InferenceMemorySettings& settings,
                                 const DeviceTraits& traits) {
  const WorkerShape shape = worker_shape(config, {}, {});
  MemoryPlan plan;
  plan.moments.push_back({"serve", 0});
  Lister list(&plan);
  list_weights(&list, config, shape, settings.weight_dtype, traits, 0);
  list_inference(&list, shape, settings);
  plan.workspace_bytes = traits.gemm_workspace_bytes + traits.attention_workspace_bytes;
  finish(&plan, traits);
  return plan;
}

}  // namespace galley::model
