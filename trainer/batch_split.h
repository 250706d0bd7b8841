// BatchSplit: which rows of a global batch each replica of a data-parallel group takes.
//
// By tokens, in proportion to the replicas' shares (their speeds): the longest row goes first, to
// the replica that has the least for its share, so no replica waits long for another. The gradient
// does not depend on it: every loss counts once, whoever computes it. One owner; allocates nothing
// for batches of `max_rows` rows or fewer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace galley::trainer {

/// A row of the token file and its place in the global batch, which is part of its tokens'
/// identities.
struct BatchRow {
  uint32_t row = 0;
  uint32_t place = 0;
  bool operator==(const BatchRow&) const = default;
};

class BatchSplit {
 public:
  /// `shares`: of the tokens, by replica, above 0; empty: equal ones.
  BatchSplit(int num_replicas, std::vector<double> shares, int64_t max_rows);
  /// Rows of `replica` in the order of their places, perhaps none; `lengths` in tokens. Valid until
  /// the next call. Every row is of exactly one replica.
  std::span<const BatchRow> take(std::span<const uint32_t> rows, std::span<const uint32_t> lengths,
                                 int replica);

 private:
  std::vector<double> shares_;
  std::vector<double> loads_;  // tokens so far
  std::vector<uint32_t> order_;
  std::vector<int> owner_;  // by place
  std::vector<BatchRow> taken_;
};

}  // namespace galley::trainer
