#include "trainer/data_order.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/random.h"
#include "engine/core/strings.h"
#include "engine/text/packing.h"

namespace galley::trainer {
namespace {

int64_t whole_copies(const SourceRows& source) {
  return static_cast<int64_t>(std::floor(source.weight));
}
/// Rows that come once more than the whole copies.
uint64_t extra_rows(const SourceRows& source) {
  const double share = source.weight - std::floor(source.weight);
  return static_cast<uint64_t>(std::llround(share * static_cast<double>(source.num_rows)));
}

}  // namespace

DataOrder::DataOrder(std::vector<SourceRows> sources, int64_t global_batch, uint64_t seed)
    : sources_(std::move(sources)), global_batch_(global_batch), seed_(seed) {
  GALLEY_CHECK(global_batch_ > 0);
  for (const SourceRows& source : sources_) {
    samples_per_epoch_ += whole_copies(source) * static_cast<int64_t>(source.num_rows) +
                          static_cast<int64_t>(extra_rows(source));
  }
  if (samples_per_epoch_ <= 0 || samples_per_epoch_ >= int64_t{1} << 32) {
    throw Error(Reason::kBadData, cat("an epoch has ", samples_per_epoch_,
                                      " samples; it needs at "
                                      "least one and fewer than 2^32"));
  }
}

int64_t DataOrder::steps_per_epoch() const {
  return (samples_per_epoch_ + global_batch_ - 1) / global_batch_;
}

int64_t DataOrder::total_steps(double epochs, int64_t max_steps) const {
  if (max_steps >= 0) return max_steps;
  return std::max<int64_t>(1, std::llround(epochs * static_cast<double>(steps_per_epoch())));
}

DataPosition DataOrder::position(int64_t step) const {
  GALLEY_CHECK(step >= 1);
  return {.epoch = (step - 1) / steps_per_epoch(),
          .index = (step - 1) % steps_per_epoch() * global_batch_};
}

std::vector<uint32_t> DataOrder::epoch_order(int64_t epoch) const {
  const auto e = static_cast<uint64_t>(epoch);
  std::vector<uint32_t> samples;
  samples.reserve(static_cast<size_t>(samples_per_epoch_));
  uint32_t first = 0;
  for (size_t k = 0; k < sources_.size(); ++k) {
    const auto count = static_cast<uint32_t>(sources_[k].num_rows);
    for (int64_t copy = 0; copy < whole_copies(sources_[k]); ++copy) {
      for (uint32_t row = 0; row < count; ++row) samples.push_back(first + row);
    }
    if (const uint64_t extra = extra_rows(sources_[k]); extra > 0) {
      const auto chosen = random_permutation(seed_, random_stream("data_share", {e, k}), count);
      for (uint64_t i = 0; i < extra; ++i) samples.push_back(first + chosen[i]);
    }
    first += count;
  }
  const auto order = random_permutation(seed_, random_stream("data_order", {e}),
                                        static_cast<uint32_t>(samples.size()));
  std::vector<uint32_t> rows(samples.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = samples[order[i]];
  return rows;
}

std::vector<uint32_t> DataOrder::batch(const DataPosition& position) {
  if (cached_epoch_ != position.epoch) {
    cached_order_ = epoch_order(position.epoch);
    cached_epoch_ = position.epoch;
  }
  const int64_t end = std::min(position.index + global_batch_, samples_per_epoch_);
  GALLEY_CHECK(position.index >= 0 && position.index < end);
  return {cached_order_.begin() + position.index, cached_order_.begin() + end};
}

namespace {

void add_row(const text::TokenRowView& row, uint64_t identity, MicroBatch* batch) {
  nn::StepPlan& step = batch->step;
  const auto first = static_cast<int32_t>(step.ids.size());
  nn::Segment segment;
  segment.row = first;
  segment.num_tokens = static_cast<int64_t>(row.ids.size());
  step.segments.push_back(segment);
  for (size_t t = 0; t < row.ids.size(); ++t) {
    step.ids.push_back(row.ids[t]);
    step.row_ids.push_back(identity + t);
    // What comes at t is predicted from t - 1; the first token of a row has no such place.
    if (t == 0 || row.targets[t] == 0) continue;
    step.target_rows.push_back(first + static_cast<int32_t>(t) - 1);
    step.targets.push_back(row.ids[t]);
  }
  batch->num_tokens = static_cast<int64_t>(step.ids.size());
  batch->num_targets = static_cast<int64_t>(step.targets.size());
}

}  // namespace

std::vector<MicroBatch> micro_batches(const text::TokenFile& tokens, std::span<const uint32_t> rows,
                                      const DataPosition& position, int64_t token_budget) {
  std::vector<uint32_t> lengths;
  for (const uint32_t row : rows) {
    lengths.push_back(tokens.row_length(row));
    if (static_cast<int64_t>(lengths.back()) > token_budget) {
      throw Error(Reason::kInternal, cat("row ", row, " has ", lengths.back(),
                                         " tokens, the plan's micro batches hold ", token_budget));
    }
  }
  std::vector<MicroBatch> batches;
  for (const std::vector<uint32_t>& pack :
       text::pack_rows(lengths, static_cast<uint64_t>(token_budget))) {
    MicroBatch& batch = batches.emplace_back();
    for (const uint32_t i : pack) {
      const uint64_t place = static_cast<uint64_t>(position.index) + i;
      const uint64_t identity =
          random_stream("token_identity", {static_cast<uint64_t>(position.epoch), place});
      add_row(tokens.row(rows[i]), identity, &batch);
    }
  }
  return batches;
}

}  // namespace galley::trainer
