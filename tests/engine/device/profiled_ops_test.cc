#include "engine/device/profiled_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/device/host/host_device.h"

namespace galley::device {
namespace {

constexpr int64_t kTokens = 6, kIn = 32, kOut = 64, kRank = 4, kVocab = 96;

/// Operations of a device with a clock that advances by one second at each look.
class ProfiledOps : public ::testing::Test {
 protected:
  ProfiledOps()
      : device_(HostDevice::create({})),
        stream_(device_->create_stream()),
        profile_([this] { return now_ += 1; }),
        ops_(profiled(device_->all_ops(*stream_), kVocab, &profile_)) {}

  Matrix matrix(int64_t rows, int64_t cols) {
    buffers_.push_back(device_->allocate(static_cast<size_t>(rows * cols) * sizeof(float), "test"));
    return {buffers_.back().at<float>(0), rows, cols, cols};
  }
  WeightHandle weight(WeightKind kind, int64_t out, int64_t in) {
    const DType dtype = kind == WeightKind::kBf16 ? DType::kBf16 : DType::kF32;
    arenas_.push_back(std::make_unique<Buffer>(
        device_->allocate(packed_weight_bytes(device_->traits(), dtype, static_cast<uint64_t>(out),
                                              static_cast<uint64_t>(in)),
                          "test")));
    return {kind, arenas_.back().get(), 0, out, in, nullptr};
  }
  ProfileRow only_row() {
    const std::vector<ProfileRow> rows = profile_.rows();
    EXPECT_EQ(rows.size(), 1u);
    profile_.clear();
    return rows.empty() ? ProfileRow{} : rows[0];
  }

  double now_ = 0;
  std::unique_ptr<HostDevice> device_;
  std::unique_ptr<Stream> stream_;
  Profile profile_;
  OpSet ops_;
  std::vector<Buffer> buffers_;
  std::vector<std::unique_ptr<Buffer>> arenas_;
};

TEST_F(ProfiledOps, a_linear_counts_its_products_and_each_operand_once) {
  const Matrix x = matrix(kTokens, kIn), y = matrix(kTokens, kOut);
  ops_.linear->forward(x, weight(WeightKind::kF32, kOut, kIn), nullptr, y, Write::kSet);
  const ProfileRow forward = only_row();
  EXPECT_EQ(forward.name, "linears forward");
  EXPECT_EQ(forward.calls, 1);
  EXPECT_EQ(forward.seconds, 1);
  EXPECT_EQ(forward.work.product_flops, 2.0 * kTokens * kIn * kOut);
  EXPECT_EQ(forward.work.f32_flops, 0);
  EXPECT_EQ(forward.work.bytes, 4.0 * (kTokens * kIn + kTokens * kOut + kIn * kOut));

  ops_.linear->backward_input(y, weight(WeightKind::kBf16, kOut, kIn), nullptr, x, Write::kAdd);
  const ProfileRow backward = only_row();
  EXPECT_EQ(backward.name, "linears backward");
  EXPECT_EQ(backward.work.product_flops, 2.0 * kTokens * kIn * kOut);
  // What is added to is read and written; a bf16 weight has two bytes.
  EXPECT_EQ(backward.work.bytes, 4.0 * (kTokens * kOut + 2 * kTokens * kIn) + 2.0 * kIn * kOut);
}

TEST_F(ProfiledOps, the_head_is_told_apart) {
  const Matrix x = matrix(kTokens, kIn), y = matrix(kTokens, kVocab);
  const WeightHandle head = weight(WeightKind::kF32, kVocab, kIn);
  ops_.linear->forward(x, head, nullptr, y, Write::kSet);
  EXPECT_EQ(only_row().name, "head forward");
  ops_.linear->backward_input(y, head, nullptr, x, Write::kSet);
  EXPECT_EQ(only_row().name, "head backward");
}

TEST_F(ProfiledOps, a_low_rank_part_is_f32_work) {
  const Matrix x = matrix(kTokens, kIn), y = matrix(kTokens, kOut);
  LowRank low_rank;
  low_rank.xa = matrix(kTokens, kRank);
  low_rank.b = matrix(kOut, kRank);
  ops_.linear->forward(x, weight(WeightKind::kBf16, kOut, kIn), &low_rank, y, Write::kSet);
  const ProfileRow row = only_row();
  EXPECT_EQ(row.work.product_flops, 2.0 * kTokens * kIn * kOut);
  EXPECT_EQ(row.work.f32_flops, 2.0 * kTokens * kRank * kOut);
}

TEST_F(ProfiledOps, an_activation_that_the_call_makes_counts_too) {
  const Matrix x = matrix(kTokens, kIn), y = matrix(kTokens, kOut);
  LowRank low_rank;
  low_rank.activation = LowRank::Activation::kComputed;
  low_rank.xa = matrix(kTokens, kRank);
  low_rank.a = matrix(kRank, kIn);
  low_rank.b = matrix(kOut, kRank);
  const WeightHandle w = weight(WeightKind::kF32, kOut, kIn);
  ops_.linear->forward(x, w, &low_rank, y, Write::kSet);
  EXPECT_EQ(only_row().work.f32_flops, 2.0 * kTokens * kRank * (kIn + kOut));
  ops_.linear->backward_input(y, w, &low_rank, x, Write::kSet);
  const ProfileRow row = only_row();
  EXPECT_EQ(row.work.f32_flops, 2.0 * kTokens * kRank * (kIn + kOut));
  EXPECT_EQ(row.work.bytes,
            4.0 * (kTokens * (kIn + kOut + kRank) + kIn * kOut + kRank * (kIn + kOut)));
}

TEST_F(ProfiledOps, adapter_products_count_by_their_shapes) {
  const Matrix x = matrix(kTokens, kIn), dy = matrix(kTokens, kOut), xa = matrix(kTokens, kRank);
  ops_.linear->matmul_nt(x, matrix(kRank, kIn), 1, xa, Write::kSet);
  EXPECT_EQ(only_row().work.f32_flops, 2.0 * kTokens * kIn * kRank);
  ops_.linear->matmul_nn(dy, matrix(kOut, kRank), 1, xa, Write::kSet);
  EXPECT_EQ(only_row().work.f32_flops, 2.0 * kTokens * kOut * kRank);
  ops_.linear->matmul_tn(dy, xa, 1, matrix(kOut, kRank), Write::kAdd);
  const ProfileRow row = only_row();
  EXPECT_EQ(row.work.f32_flops, 2.0 * kTokens * kOut * kRank);
  EXPECT_EQ(row.work.product_flops, 0);
  EXPECT_EQ(row.work.bytes, 4.0 * (kTokens * kOut + kTokens * kRank + 2 * kOut * kRank));
}

TEST_F(ProfiledOps, attention_counts_visible_pairs_only) {
  constexpr int64_t kHeads = 2, kKvHeads = 1, kDim = 16;
  const AttentionShape shape = {kHeads, kKvHeads, kDim, 0.25f};
  const Matrix q = matrix(kTokens, kHeads * kDim), o = matrix(kTokens, kHeads * kDim);
  const Matrix k = matrix(kTokens, kKvHeads * kDim), v = matrix(kTokens, kKvHeads * kDim);
  // Two packed rows of three: 2 x (1 + 2 + 3) pairs, none between them.
  const std::vector<AttentionItem> items = {{0, 3, 0, 3}, {3, 3, 3, 3}};
  ops_.attention->forward(shape, items, q, k, v, o, nullptr);
  EXPECT_EQ(only_row().work.attention_flops, 2 * 2.0 * 12 * kHeads * kDim);
  const Matrix lse = matrix(kTokens, kHeads), dq = matrix(kTokens, kHeads * kDim);
  const Matrix dk = matrix(kTokens, kKvHeads * kDim), dv = matrix(kTokens, kKvHeads * kDim);
  ops_.attention->backward(shape, items, q, k, v, o, lse.data, o, dq, dk, dv);
  EXPECT_EQ(only_row().work.attention_flops, 5 * 2.0 * 12 * kHeads * kDim);
  // One query that sees five keys.
  const std::vector<AttentionItem> decode = {{0, 1, 0, 5}};
  ops_.attention->forward(shape, decode, q, k, v, o, nullptr);
  EXPECT_EQ(only_row().work.attention_flops, 2 * 2.0 * 5 * kHeads * kDim);
}

TEST_F(ProfiledOps, a_window_makes_less_work) {
  const AttentionShape shape = {
      .num_heads = 2, .num_kv_heads = 1, .head_dim = 16, .scale = 0.25f, .window = 2};
  const Matrix q = matrix(kTokens, 32), k = matrix(20, 16);
  // 4 queries that see 2 keys each, of 5 in all.
  const std::vector<AttentionItem> items = {{0, 4, 0, 20}};
  ops_.attention->forward(shape, items, q, k, k, q, nullptr);
  const ProfileRow row = only_row();
  EXPECT_EQ(row.work.attention_flops, 2 * 2.0 * 4 * 2 * 2 * 16);
  EXPECT_EQ(row.work.bytes, 4.0 * (2 * 4 * 32 + 2 * 5 * 16));
}

TEST_F(ProfiledOps, norms_of_heads_are_norms) {
  const Matrix x = matrix(kTokens, 32), rstd = matrix(kTokens, 4), weight = matrix(1, 8);
  ops_.token->head_norm_forward(x, 8, weight.data, 1e-5f, x, rstd.data);
  const ProfileRow forward = only_row();
  EXPECT_EQ(forward.name, "norms forward");
  EXPECT_EQ(forward.work.bytes, 2 * 4.0 * kTokens * 32);
  ops_.token->head_norm_backward(x, x, 8, weight.data, rstd.data, x);
  EXPECT_EQ(only_row().name, "norms backward");
}

TEST_F(ProfiledOps, a_divided_vocabulary_is_read_once_and_written_once) {
  const Matrix logits = matrix(2, 40);
  const int32_t targets[] = {3, 100};
  double parts[6], log_sum_exp[2] = {1, 2};
  ops_.loss->cross_entropy_part(logits, targets, 0, parts);
  const ProfileRow part = only_row();
  EXPECT_EQ(part.name, "cross entropy");
  EXPECT_EQ(part.work.bytes, 4.0 * 2 * 40);
  ops_.loss->cross_entropy_apply(logits, targets, 0, log_sum_exp, 1.0f);
  EXPECT_EQ(only_row().work.bytes, 2 * 4.0 * 2 * 40);
}

TEST_F(ProfiledOps, calls_add_up_and_the_longest_come_first) {
  const Matrix x = matrix(kTokens, kIn), y = matrix(kTokens, kIn);
  ops_.elementwise->add(x, y);
  ops_.elementwise->add(x, y);
  profile_.add("slow", 5, {1, 2, 3, 4});
  EXPECT_EQ(profile_.rows()[0].work.flops(), 6);
  const std::vector<ProfileRow> rows = profile_.rows();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].name, "slow");
  EXPECT_EQ(rows[1].name, "add");
  EXPECT_EQ(rows[1].calls, 2);
  EXPECT_EQ(rows[1].seconds, 2);
  EXPECT_EQ(rows[1].work.bytes, 2 * 3 * 4.0 * kTokens * kIn);
}

TEST_F(ProfiledOps, results_pass_through) {
  const Matrix x = matrix(1, 8);
  std::fill_n(x.data, 8, 2.0f);
  EXPECT_EQ(ops_.optimizer->sum_of_squares(x.data, 8), 32);
  EXPECT_TRUE(ops_.optimizer->all_finite(x.data, 8));
}

// A machine of 100 product flops, 80 of attention, 50 f32 flops and 10 bytes a second.
constexpr MachineRates kRates = {100, 80, 50, 10};

TEST(LimitOf, the_larger_share_of_the_time_decides) {
  const LimitVerdict flops = limit_of(1, {60, 8, 5, 2}, kRates);
  EXPECT_EQ(flops.limit, Limit::kFlops);
  EXPECT_DOUBLE_EQ(flops.peak_fraction, 0.8);  // 60 / 100 + 8 / 80 + 5 / 50
  EXPECT_DOUBLE_EQ(flops.bandwidth_fraction, 0.2);
  const LimitVerdict bytes = limit_of(1, {10, 0, 0, 9}, kRates);
  EXPECT_EQ(bytes.limit, Limit::kBandwidth);
  EXPECT_DOUBLE_EQ(bytes.bandwidth_fraction, 0.9);
}

TEST(LimitOf, neither_share_means_latency) {
  EXPECT_EQ(limit_of(1, {10, 0, 0, 1}, kRates).limit, Limit::kLatency);
  EXPECT_EQ(limit_of(1, {0, 0, 0, 0}, kRates).limit, Limit::kLatency);
  EXPECT_EQ(limit_of(1, {100 * kLatencyFraction, 0, 0, 0}, kRates).limit, Limit::kFlops);
}

TEST(LimitOf, caches_may_give_more_than_memory) {
  const LimitVerdict cached = limit_of(1, {50, 0, 0, 30}, kRates);
  EXPECT_EQ(cached.limit, Limit::kBandwidth);
  EXPECT_DOUBLE_EQ(cached.bandwidth_fraction, 3);
}

TEST(LimitOf, unknown_rates_and_no_time_decide_nothing) {
  EXPECT_EQ(limit_of(1, {90, 0, 0, 1000}, {100, 80, 50, 0}).limit, Limit::kFlops);
  EXPECT_EQ(limit_of(0, {90, 0, 0, 9}, kRates).limit, Limit::kLatency);
  EXPECT_EQ(limit_of(0, {90, 0, 0, 9}, kRates).peak_fraction, 0);
}

TEST(LimitOf, names) {
  EXPECT_EQ(limit_name(Limit::kFlops), "flops");
  EXPECT_EQ(limit_name(Limit::kBandwidth), "bandwidth");
  EXPECT_EQ(limit_name(Limit::kLatency), "latency");
}

}  // namespace
}  // namespace galley::device
