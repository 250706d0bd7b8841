// AdapterShards: the trainable set as one worker of a group holds it, and its way to and from the
// whole one that files hold.
//
// Layout by choose_adapter_layout(): of a column-parallel linear A is replicated and B's rows are
// divided, of a row-parallel one A's columns are divided and B is replicated. A replicated tensor's
// gradient on one worker is a summand of the whole one. Pure values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model/layout.h"
#include "engine/model/lora.h"

namespace galley::model {

/// A or B of one adapted linear on one worker: rows x columns of the whole tensor.
struct ShardTensor {
  std::string name;           // PEFT name
  uint64_t offset = 0;        // elements into the worker's flat vector
  IndexRange rows, columns;   // of the whole tensor; row-major in both
  uint64_t whole_offset = 0;  // elements into the flat vector of model::trainable_tensors
  int64_t whole_columns = 0;
  bool replicated = false;  // on all tensor-parallel workers
  uint64_t num_elements() const {
    return static_cast<uint64_t>(rows.size()) * static_cast<uint64_t>(columns.size());
  }
};

/// Elements of the worker's flat vector and where their sum over the workers is made.
struct SharedRun {
  uint64_t offset = 0;         // into the worker's flat vector
  uint64_t shared_offset = 0;  // into the vector that is summed
  uint64_t count = 0;
};

struct AdapterShards {
  /// Adapted linears of this worker's layers; `in` and `out` are this worker's widths, `layer` that
  /// of the whole model.
  std::vector<AdaptedLinear> linears;
  /// A then B of each linear, in the order of `linears`.
  std::vector<ShardTensor> tensors;
  uint64_t num_elements = 0;  // of the flat vector
  uint64_t num_whole = 0;     // of the whole adapter's flat vector
  /// The first elements of the flat vector hold all replicated tensors, the same on every
  /// tensor-parallel worker of a stage: their gradients are summed as they lie. 0 without tensor
  /// parallelism.
  uint64_t num_replicated = 0;
  /// Rows of B of k_proj and v_proj whose head lives on several workers: copied into a vector of
  /// `num_shared` elements (equal on all tensor-parallel workers, zero where a worker has nothing),
  /// summed, and copied back. Empty when no head is shared.
  std::vector<SharedRun> shared;
  uint64_t num_shared = 0;
  /// Ranges of the flat vector that this worker counts in a sum over all elements of the whole
  /// adapter (norms): every element is counted by exactly one worker of a replica.
  std::vector<IndexRange> counted;
};

/// `linears` are those of the whole model.
AdapterShards adapter_shards(const ModelConfig& config, const std::vector<AdaptedLinear>& linears,
                             const WorkerPlace& place);
/// The same flat order as model::trainable_tensors for a worker alone.
/// Copies this worker's part out of the whole flat vector (sizes as in `shards`).
void take_shard(const AdapterShards& shards, std::span<const float> whole, std::span<float> flat);
/// Writes this worker's part into the whole flat vector.
void put_shard(const AdapterShards& shards, std::span<const float> flat, std::span<float> whole);

}  // namespace galley::model
