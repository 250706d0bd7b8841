#include "trainer/data_order.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/random.h"
#include "engine/core/strings.h"

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
  EpochOrder order;
  fill_epoch_order(epoch, &order);
  return std::move(order.rows);
}

void DataOrder::fill_epoch_order(int64_t epoch, EpochOrder* order) const {
  const auto e = static_cast<uint64_t>(epoch);
  std::vector<uint32_t>& samples = order->samples;
  samples.clear();
  samples.reserve(static_cast<size_t>(samples_per_epoch_));
  uint32_t first = 0;
  for (size_t k = 0; k < sources_.size(); ++k) {
    const auto count = static_cast<uint32_t>(sources_[k].num_rows);
    for (int64_t copy = 0; copy < whole_copies(sources_[k]); ++copy) {
      for (uint32_t row = 0; row < count; ++row) samples.push_back(first + row);
    }
    if (const uint64_t extra = extra_rows(sources_[k]); extra > 0) {
      random_permutation(seed_, random_stream("data_share", {e, k}), count, &order->chosen);
      for (uint64_t i = 0; i < extra; ++i) samples.push_back(first + order->chosen[i]);
    }
    first += count;
  }
  random_permutation(seed_, random_stream("data_order", {e}), static_cast<uint32_t>(samples.size()),
                     &order->permutation);
  order->rows.resize(samples.size());
  for (size_t i = 0; i < samples.size(); ++i) order->rows[i] = samples[order->permutation[i]];
}

std::span<const uint32_t> DataOrder::batch(const DataPosition& position) {
  if (cached_epoch_ != position.epoch) {
    fill_epoch_order(position.epoch, &cached_order_);
    cached_epoch_ = position.epoch;
  }
  const int64_t end = std::min(position.index + global_batch_, samples_per_epoch_);
  GALLEY_CHECK(position.index >= 0 && position.index < end);
  return std::span(cached_order_.rows)
      .subspan(static_cast<size_t>(position.index), static_cast<size_t>(end - position.index));
}

namespace {

/// Keeps the storage.
void clear(MicroBatch* batch) {
  batch->step.ids.clear();
  batch->step.segments.clear();
  batch->step.row_ids.clear();
  batch->step.target_rows.clear();
  batch->step.targets.clear();
  batch->num_tokens = batch->num_targets = 0;
}

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

MicroBatcher::MicroBatcher(const text::TokenFile& tokens, int64_t token_budget, int64_t max_rows)
    : tokens_(tokens), token_budget_(token_budget), packer_(static_cast<size_t>(max_rows)) {
  GALLEY_CHECK(token_budget > 0 && max_rows >= 0);
  lengths_.reserve(static_cast<size_t>(max_rows));
  // Of best-fit micro batches at most one is half empty.
  const int64_t most_tokens = max_rows * static_cast<int64_t>(tokens.summary().longest);
  const int64_t most_batches = std::min(max_rows, 2 * most_tokens / token_budget + 1);
  batches_.resize(static_cast<size_t>(most_batches));
  const auto places = static_cast<size_t>(std::min(token_budget, most_tokens));
  for (MicroBatch& batch : batches_) {
    batch.step.segments.reserve(static_cast<size_t>(std::min(max_rows, token_budget)));
    batch.step.ids.reserve(places);
    batch.step.row_ids.reserve(places);
    batch.step.target_rows.reserve(places);
    batch.step.targets.reserve(places);
  }
}

std::span<const MicroBatch> MicroBatcher::cut(std::span<const BatchRow> rows,
                                              const DataPosition& position) {
  lengths_.clear();
  for (const BatchRow& row : rows) {
    lengths_.push_back(tokens_.row_length(row.row));
    if (static_cast<int64_t>(lengths_.back()) > token_budget_) {
      throw Error(Reason::kInternal, cat("row ", row.row, " has ", lengths_.back(),
                                         " tokens, the plan's micro batches hold ", token_budget_));
    }
  }
  packer_.pack(lengths_, static_cast<uint64_t>(token_budget_));
  if (packer_.num_packs() > batches_.size()) batches_.resize(packer_.num_packs());
  for (size_t pack = 0; pack < packer_.num_packs(); ++pack) {
    MicroBatch& batch = batches_[pack];
    clear(&batch);
    for (const uint32_t i : packer_.rows(pack)) {
      const uint64_t place = static_cast<uint64_t>(position.index) + rows[i].place;
      const uint64_t identity =
          random_stream("token_identity", {static_cast<uint64_t>(position.epoch), place});
      add_row(tokens_.row(rows[i].row), identity, &batch);
    }
  }
  return std::span(batches_).first(packer_.num_packs());
}

std::vector<MicroBatch> micro_batches(const text::TokenFile& tokens, std::span<const uint32_t> rows,
                                      const DataPosition& position, int64_t token_budget) {
  MicroBatcher batcher(tokens, token_budget, static_cast<int64_t>(rows.size()));
  std::vector<BatchRow> placed;
  for (const uint32_t row : rows) placed.push_back({row, static_cast<uint32_t>(placed.size())});
  const std::span<const MicroBatch> batches = batcher.cut(placed, position);
  return {batches.begin(), batches.end()};
}

}  // namespace galley::trainer
