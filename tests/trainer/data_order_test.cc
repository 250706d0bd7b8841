#include "trainer/data_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/core/error.h"
#include "tests/trainer/toy_job.h"

namespace galley::trainer {
namespace {

TEST(DataOrder, pain_P030_each_sample_once_an_epoch_whatever_the_stops) {
  DataOrder order({{64, 1}}, 6, 5);
  EXPECT_EQ(order.steps_per_epoch(), 11);
  const int64_t total = order.total_steps(3, -1);
  EXPECT_EQ(total, 33);
  std::map<uint32_t, int> seen;
  for (int64_t step = 1; step <= total; ++step) {
    // A fresh object for each step: a stop and a resume before every one of them.
    DataOrder fresh({{64, 1}}, 6, 5);
    const auto rows = fresh.batch(fresh.position(step));
    EXPECT_EQ(rows.size(), step % 11 == 0 ? 4u : 6u);  // the last batch of an epoch is short
    for (const uint32_t row : rows) ++seen[row];
  }
  ASSERT_EQ(seen.size(), 64u);
  for (const auto& [row, times] : seen) EXPECT_EQ(times, 3) << row;
}

TEST(DataOrder, pain_P032_permutation_is_a_function_of_seed_and_epoch) {
  const DataOrder a({{40, 1}}, 4, 1), b({{40, 1}}, 8, 1), c({{40, 1}}, 4, 2);
  EXPECT_EQ(a.epoch_order(1), b.epoch_order(1));
  EXPECT_NE(a.epoch_order(0), a.epoch_order(1));
  EXPECT_NE(a.epoch_order(0), c.epoch_order(0));
}

TEST(DataOrder, pain_P034_later_epochs_have_full_length) {
  DataOrder order({{10, 1}}, 4, 9);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::multiset<uint32_t> rows;
    for (int64_t step = 1; step <= 3; ++step) {
      const DataPosition position = order.position(epoch * 3 + step);
      EXPECT_EQ(position, (DataPosition{epoch, (step - 1) * 4}));
      for (const uint32_t row : order.batch(position)) rows.insert(row);
    }
    EXPECT_EQ(rows.size(), 10u);
    EXPECT_EQ(std::set<uint32_t>(rows.begin(), rows.end()).size(), 10u);
  }
}

TEST(DataOrder, weights_repeat_rows) {
  DataOrder order({{10, 2}, {20, 1}, {10, 0.5}}, 4, 3);
  EXPECT_EQ(order.samples_per_epoch(), 45);
  std::map<uint32_t, int> count;
  for (const uint32_t row : order.epoch_order(0)) ++count[row];
  int extra = 0;
  for (uint32_t row = 0; row < 40; ++row) {
    if (row < 10)
      EXPECT_EQ(count[row], 2);
    else if (row < 30)
      EXPECT_EQ(count[row], 1);
    else
      extra += count[row];
  }
  EXPECT_EQ(extra, 5);
  EXPECT_THROW(DataOrder({{10, 0}}, 4, 3), Error);
}

TEST(DataOrder, total_steps) {
  const DataOrder order({{33, 1}}, 16, 0);
  EXPECT_EQ(order.steps_per_epoch(), 3);
  EXPECT_EQ(order.total_steps(3, -1), 9);
  EXPECT_EQ(order.total_steps(0.01, -1), 1);
  EXPECT_EQ(order.total_steps(3, 7), 7);
}

TEST(MicroBatches, rows_stay_whole_and_targets_are_shifted) {
  const std::string path = galley::testing::scratch_directory("order") + "/t.bin";
  const auto rows = testing::toy_rows(12, 100, 4);
  testing::write_token_file(path, {rows}, testing::toy_inputs());
  const text::TokenFile tokens = text::TokenFile::open(path);
  std::vector<uint32_t> chosen = {3, 0, 7, 11, 5};
  const auto batches = micro_batches(tokens, chosen, {2, 6}, 40);
  std::multiset<std::vector<int32_t>> expected, found;
  for (const uint32_t row : chosen) expected.insert(rows[row].ids);
  std::set<uint64_t> identities;
  int64_t targets = 0, expected_targets = 0;
  for (const uint32_t row : chosen) {
    expected_targets += std::count(rows[row].mask.begin(), rows[row].mask.end(), 1);
  }
  for (const MicroBatch& batch : batches) {
    EXPECT_LE(batch.num_tokens, 40);
    EXPECT_EQ(batch.step.ids.size(), batch.step.row_ids.size());
    for (const nn::Segment& segment : batch.step.segments) {
      const auto begin = batch.step.ids.begin() + segment.row;
      found.insert(std::vector<int32_t>(begin, begin + segment.num_tokens));
    }
    for (size_t i = 0; i < batch.step.targets.size(); ++i) {
      EXPECT_EQ(batch.step.ids[static_cast<size_t>(batch.step.target_rows[i]) + 1],
                batch.step.targets[i]);
    }
    identities.insert(batch.step.row_ids.begin(), batch.step.row_ids.end());
    targets += batch.num_targets;
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(targets, expected_targets);
  int64_t tokens_total = 0;
  for (const MicroBatch& batch : batches) tokens_total += batch.num_tokens;
  EXPECT_EQ(static_cast<int64_t>(identities.size()), tokens_total);
  EXPECT_THROW(micro_batches(tokens, chosen, {0, 0}, 2), Error);
}

}  // namespace
}  // namespace galley::trainer
