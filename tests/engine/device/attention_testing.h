// What the tests of attention share: problems with their solution in double precision, and runs of
// the operations on a device.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "tests/engine/device/device_testing.h"

namespace galley::device {

using Doubles = std::vector<double>;

/// kBf16: numbers that bf16 holds, so that kernels which round their inputs find nothing to round.
enum class Inputs { kAny, kBf16 };

inline Tensor draw(Inputs inputs, int64_t rows, int64_t cols, uint64_t seed, float size,
                   int64_t gap) {
  Tensor t = Tensor::random(rows, cols, seed, size, gap);
  for (int64_t i = 0; inputs == Inputs::kBf16 && i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) t(i, j) = bf16_to_f32(f32_to_bf16(t(i, j)));
  }
  return t;
}

/// Inputs, and what double precision makes of them.
struct Problem {
  AttentionShape shape;
  std::vector<AttentionItem> items;
  Tensor q, k, v, d_o;
  Doubles o, lse, dq, dk, dv;  // dense rows

  Problem(const AttentionShape& s, std::vector<AttentionItem> the_items, int64_t rows,
          int64_t key_rows, float size = 1.0f, Inputs inputs = Inputs::kAny)
      : shape(s),
        items(std::move(the_items)),
        q(draw(inputs, rows, s.num_heads * s.head_dim, 1, size, 3)),
        k(draw(inputs, key_rows, s.num_kv_heads * s.head_dim, 2, size, 5)),
        v(draw(inputs, key_rows, s.num_kv_heads * s.head_dim, 3, 1.0f, 1)),
        d_o(draw(inputs, rows, s.num_heads * s.head_dim, 4, 1.0f, 2)),
        o(static_cast<size_t>(q.rows() * q.cols())),
        lse(static_cast<size_t>(rows * s.num_heads)),
        dq(o.size()),
        dk(static_cast<size_t>(k.rows() * k.cols())),
        dv(dk.size()) {
    for (const AttentionItem& item : items) {
      for (int64_t i = 0; i < item.num_queries; ++i) {
        for (int64_t h = 0; h < s.num_heads; ++h) solve(item, i, h);
      }
    }
  }

  void solve(const AttentionItem& item, int64_t i, int64_t h) {
    const int64_t d = shape.head_dim, row = item.query_row + i;
    const int64_t per_kv =
        shape.heads_per_kv > 0 ? shape.heads_per_kv : shape.num_heads / shape.num_kv_heads;
    const int64_t kv = (shape.first_in_group + h) / per_kv * d;
    const int64_t visible = item.num_keys - item.num_queries + i + 1;
    const int64_t hidden = shape.window > 0 ? std::max<int64_t>(0, visible - shape.window) : 0;
    Doubles p(static_cast<size_t>(visible)), dp(p.size());
    double top = -1e300;
    for (int64_t j = hidden; j < visible; ++j) {
      double score = 0, gradient = 0;
      for (int64_t e = 0; e < d; ++e) {
        score += double{q(row, h * d + e)} * k(item.key_row + j, kv + e);
        gradient += double{d_o(row, h * d + e)} * v(item.key_row + j, kv + e);
      }
      p[static_cast<size_t>(j)] = score * shape.scale;
      dp[static_cast<size_t>(j)] = gradient;
      top = std::max(top, score * shape.scale);
    }
    double total = 0;
    for (int64_t j = hidden; j < visible; ++j) {
      double& value = p[static_cast<size_t>(j)];
      total += value = std::exp(value - top);
    }
    for (double& value : p) value /= total;
    lse[static_cast<size_t>(row * shape.num_heads + h)] = top + std::log(total);
    const double dot = std::inner_product(p.begin(), p.end(), dp.begin(), 0.0);
    const int64_t cols = shape.num_heads * d, kv_cols = shape.num_kv_heads * d;
    for (int64_t j = hidden; j < visible; ++j) {
      const double weight = p[static_cast<size_t>(j)];
      const double ds = weight * (dp[static_cast<size_t>(j)] - dot) * shape.scale;
      const int64_t key = item.key_row + j;
      for (int64_t e = 0; e < d; ++e) {
        o[static_cast<size_t>(row * cols + h * d + e)] += weight * v(key, kv + e);
        dq[static_cast<size_t>(row * cols + h * d + e)] += ds * k(key, kv + e);
        dk[static_cast<size_t>(key * kv_cols + kv + e)] += ds * q(row, h * d + e);
        dv[static_cast<size_t>(key * kv_cols + kv + e)] += weight * d_o(row, h * d + e);
      }
    }
  }
};

/// Largest difference, relative to the largest expected value (at least 1).
inline double distance(const Tensor& actual, const Doubles& expected) {
  double worst = 0, largest = 1;
  for (int64_t i = 0; i < actual.rows(); ++i) {
    for (int64_t j = 0; j < actual.cols(); ++j) {
      const double value = expected[static_cast<size_t>(i * actual.cols() + j)];
      largest = std::max(largest, std::abs(value));
      // A NaN must not pass.
      const double difference = std::abs(actual(i, j) - value);
      worst = difference <= worst ? worst : difference;
      if (std::isnan(difference)) return difference;
    }
  }
  return worst / largest;
}

struct Outputs {
  Tensor o, lse, dq, dk, dv;
};

inline Outputs make_outputs(const Problem& p) {
  return {Tensor::filled(p.q.rows(), p.q.cols(), 0.0f, 4),
          Tensor::filled(p.q.rows(), p.shape.num_heads, 0.0f),
          Tensor::filled(p.q.rows(), p.q.cols(), 0.0f, 1),
          Tensor::filled(p.k.rows(), p.k.cols(), 0.0f, 2),
          Tensor::filled(p.k.rows(), p.k.cols(), 0.0f, 6)};
}

inline void run_forward(TestDevice& t, const Problem& p, std::span<const AttentionItem> items,
                        Outputs* out) {
  t.ops.attention->forward(p.shape, items, p.q.view(), p.k.view(), p.v.view(), out->o.matrix(),
                           out->lse.data());
}
inline void run_backward(TestDevice& t, const Problem& p, std::span<const AttentionItem> items,
                         Outputs* out) {
  t.ops.attention->backward(p.shape, items, p.q.view(), p.k.view(), p.v.view(), out->o.view(),
                            out->lse.data(), p.d_o.view(), out->dq.matrix(), out->dk.matrix(),
                            out->dv.matrix());
}

inline bool rounds(const TestDevice& t, const Problem& p) {
  return kernel_set_rounds(t.device->kernels()) && p.shape.operands == ProductOperands::kMayRound;
}
/// Differences relative to the largest value. Kernels that round work with inputs of 8 bits.
inline double allowed(const TestDevice& t, const Problem& p) { return rounds(t, p) ? 1e-2 : 2e-5; }

inline void expect_solved(TestDevice& t, const Problem& p) {
  Outputs out = make_outputs(p);
  run_forward(t, p, p.items, &out);
  EXPECT_LT(distance(out.o, p.o), allowed(t, p));
  EXPECT_LT(distance(out.lse, p.lse), allowed(t, p));
  run_backward(t, p, p.items, &out);
  EXPECT_LT(distance(out.dq, p.dq), allowed(t, p));
  EXPECT_LT(distance(out.dk, p.dk), allowed(t, p));
  EXPECT_LT(distance(out.dv, p.dv), allowed(t, p));
  for (const Tensor* tensor : {&out.o, &out.lse, &out.dq, &out.dk, &out.dv}) {
    EXPECT_TRUE(tensor->sentinels_hold());
  }
}

/// Kernels that round do so, unless a test says otherwise.
inline AttentionShape shape_of(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  return {.num_heads = heads,
          .num_kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .operands = ProductOperands::kMayRound};
}

/// Both directions with 2 to 4 threads give the bits that one thread gives.
inline void expect_equal_for_all_threads(KernelSet set, const Problem& p) {
  Outputs alone = make_outputs(p);
  TestDevice one = make_test_device(set, 1);
  run_forward(one, p, p.items, &alone);
  run_backward(one, p, p.items, &alone);
  for (const int threads : {2, 3, 4}) {
    SCOPED_TRACE(kernel_set_name(set) + ", " + std::to_string(threads) + " threads");
    TestDevice several = make_test_device(set, threads);
    for (int run = 0; run < 2; ++run) {
      Outputs out = make_outputs(p);
      run_forward(several, p, p.items, &out);
      run_backward(several, p, p.items, &out);
      EXPECT_TRUE(out.o.same_bits(alone.o) && out.lse.same_bits(alone.lse));
      EXPECT_TRUE(out.dq.same_bits(alone.dq) && out.dk.same_bits(alone.dk) &&
                  out.dv.same_bits(alone.dv));
    }
  }
}

}  // namespace galley::device
