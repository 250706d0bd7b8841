// DataOrder: which rows a step trains on. A position is (epoch, index); everything is a pure
// function of the seed and the position, so a restart needs no replay and no skipping.
//
// Rows are the rows of a token file, data set after data set. A data set with weight w has each of
// its rows floor(w) times an epoch, and a random share w - floor(w) of them once more.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/nn/network.h"
#include "engine/text/packing.h"
#include "engine/text/token_file.h"
#include "trainer/batch_split.h"

namespace galley::trainer {

struct DataPosition {
  int64_t epoch = 0;
  int64_t index = 0;  // samples of this epoch that earlier steps used
  bool operator==(const DataPosition&) const = default;
};

struct SourceRows {
  uint64_t num_rows = 0;
  double weight = 1;
};

class DataOrder {
 public:
  /// Error(kBadData) when no sample is left.
  DataOrder(std::vector<SourceRows> sources, int64_t global_batch, uint64_t seed);

  int64_t samples_per_epoch() const { return samples_per_epoch_; }
  /// ceil(samples / global batch): the last batch of an epoch may be short.
  int64_t steps_per_epoch() const;
  /// max_steps when given, else round(epochs * steps_per_epoch), at least 1.
  int64_t total_steps(double epochs, int64_t max_steps) const;
  /// Where optimizer step `step` (from 1) begins.
  DataPosition position(int64_t step) const;
  /// Rows of the global batch that begins at `position`, in order; valid until a batch of another
  /// epoch is asked for. Allocates nothing after the first.
  std::span<const uint32_t> batch(const DataPosition& position);
  /// All samples of an epoch in their order.
  std::vector<uint32_t> epoch_order(int64_t epoch) const;

 private:
  struct EpochOrder {
    std::vector<uint32_t> rows, samples, permutation, chosen;  // all but rows: scratch
  };
  void fill_epoch_order(int64_t epoch, EpochOrder* order) const;

  std::vector<SourceRows> sources_;
  int64_t global_batch_;
  uint64_t seed_;
  int64_t samples_per_epoch_ = 0;
  int64_t cached_epoch_ = -1;
  EpochOrder cached_order_;
};

/// One micro batch and what it holds.
struct MicroBatch {
  nn::StepPlan step;
  int64_t num_tokens = 0, num_targets = 0;
};

/// Cuts global batches into micro batches of at most `token_budget` tokens, rows never split, into
/// storage that is used again: no step of `max_rows` rows or fewer allocates anything. Keeps the
/// reference. One owner.
class MicroBatcher {
 public:
  MicroBatcher(const text::TokenFile& tokens, int64_t token_budget, int64_t max_rows);
  /// `rows` of the global batch that begins at `position`: all, or those of a replica. Valid until
  /// the next call. Error(kInternal) for a row beyond the budget: the planner must not choose such
  /// a budget. Token identities for dropout are functions of (epoch, place in the epoch, token).
  std::span<const MicroBatch> cut(std::span<const BatchRow> rows, const DataPosition& position);

  /// Micro batches of a step at most.
  size_t most_batches() const { return batches_.size(); }

 private:
  const text::TokenFile& tokens_;
  const int64_t token_budget_;
  std::vector<uint32_t> lengths_;
  text::RowPacker packer_;
  std::vector<MicroBatch> batches_;  // those beyond a step's number keep their storage
};

/// MicroBatcher::cut() for all rows of one batch.
std::vector<MicroBatch> micro_batches(const text::TokenFile& tokens, std::span<const uint32_t> rows,
                                      const DataPosition& position, int64_t token_budget);

}  // namespace galley::trainer
