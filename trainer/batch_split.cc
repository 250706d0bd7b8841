#include "trainer/batch_split.h"

#include <algorithm>
#include <numeric>

#include "engine/core/error.h"

namespace galley::trainer {

BatchSplit::BatchSplit(int num_replicas, std::vector<double> shares, int64_t max_rows)
    : shares_(std::move(shares)) {
  GALLEY_CHECK(num_replicas >= 1);
  if (shares_.empty()) shares_.assign(static_cast<size_t>(num_replicas), 1.0);
  GALLEY_CHECK(shares_.size() == static_cast<size_t>(num_replicas));
  for (const double share : shares_) GALLEY_CHECK(share > 0);
  loads_.resize(shares_.size());
  order_.reserve(static_cast<size_t>(max_rows));
  owner_.reserve(static_cast<size_t>(max_rows));
  taken_.reserve(static_cast<size_t>(max_rows));
}

std::span<const BatchRow> BatchSplit::take(std::span<const uint32_t> rows,
                                           std::span<const uint32_t> lengths, int replica) {
  GALLEY_CHECK(rows.size() == lengths.size());
  std::fill(loads_.begin(), loads_.end(), 0.0);
  order_.resize(rows.size());
  owner_.resize(rows.size());
  std::iota(order_.begin(), order_.end(), 0u);
  std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
    return lengths[a] != lengths[b] ? lengths[a] > lengths[b] : a < b;
  });
  for (const uint32_t place : order_) {
    size_t best = 0;
    double best_time = 0;
    for (size_t i = 0; i < shares_.size(); ++i) {
      const double time = (loads_[i] + lengths[place]) / shares_[i];
      if (i > 0 && time >= best_time) continue;
      best = i;
      best_time = time;
    }
    loads_[best] += lengths[place];
    owner_[place] = static_cast<int>(best);
  }
  taken_.clear();
  for (uint32_t place = 0; place < rows.size(); ++place) {
    if (owner_[place] == replica) taken_.push_back({rows[place], place});
  }
  return taken_;
}

}  // namespace galley::trainer
