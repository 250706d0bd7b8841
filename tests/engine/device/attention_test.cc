#include <algorithm>
#include <numeric>

#include "engine/core/error.h"
#include "tests/engine/device/device_testing.h"

namespace galley::device {
namespace {

using Doubles = std::vector<double>;

/// kBf16: numbers that bf16 holds, so that kernels which round their inputs find nothing to round.
enum class Inputs { kAny, kBf16 };

Tensor draw(Inputs inputs, int64_t rows, int64_t cols, uint64_t seed, float size, int64_t gap) {
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
    const int64_t kv = h / (shape.num_heads / shape.num_kv_heads) * d;
    const int64_t visible = item.num_keys - item.num_queries + i + 1;
    Doubles p(static_cast<size_t>(visible)), dp(p.size());
    double top = -1e300;
    for (int64_t j = 0; j < visible; ++j) {
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
    for (double& value : p) total += value = std::exp(value - top);
    for (double& value : p) value /= total;
    lse[static_cast<size_t>(row * shape.num_heads + h)] = top + std::log(total);
    const double dot = std::inner_product(p.begin(), p.end(), dp.begin(), 0.0);
    const int64_t cols = shape.num_heads * d, kv_cols = shape.num_kv_heads * d;
    for (int64_t j = 0; j < visible; ++j) {
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
double distance(const Tensor& actual, const Doubles& expected) {
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

Outputs make_outputs(const Problem& p) {
  return {Tensor::filled(p.q.rows(), p.q.cols(), 0.0f, 4),
          Tensor::filled(p.q.rows(), p.shape.num_heads, 0.0f),
          Tensor::filled(p.q.rows(), p.q.cols(), 0.0f, 1),
          Tensor::filled(p.k.rows(), p.k.cols(), 0.0f, 2),
          Tensor::filled(p.k.rows(), p.k.cols(), 0.0f, 6)};
}

void run_forward(TestDevice& t, const Problem& p, std::span<const AttentionItem> items,
                 Outputs* out) {
  t.ops.attention->forward(p.shape, items, p.q.view(), p.k.view(), p.v.view(), out->o.matrix(),
                           out->lse.data());
}
void run_backward(TestDevice& t, const Problem& p, std::span<const AttentionItem> items,
                  Outputs* out) {
  t.ops.attention->backward(p.shape, items, p.q.view(), p.k.view(), p.v.view(), out->o.view(),
                            out->lse.data(), p.d_o.view(), out->dq.matrix(), out->dk.matrix(),
                            out->dv.matrix());
}

bool rounds(const TestDevice& t, const Problem& p) {
  return kernel_set_rounds(t.device->kernels()) && p.shape.operands == ProductOperands::kMayRound;
}
/// Differences relative to the largest value. Kernels that round work with inputs of 8 bits.
double allowed(const TestDevice& t, const Problem& p) { return rounds(t, p) ? 1e-2 : 2e-5; }

void expect_solved(TestDevice& t, const Problem& p) {
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
AttentionShape shape_of(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  return {.num_heads = heads,
          .num_kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .operands = ProductOperands::kMayRound};
}

TEST(Attention, equals_double_precision_for_many_shapes) {
  struct Case {
    int64_t heads, kv_heads, head_dim, tokens;
  };
  const Case kCases[] = {{1, 1, 1, 1},    {1, 1, 4, 3},    {2, 1, 16, 17},  {3, 1, 64, 31},
                         {4, 2, 33, 33},  {9, 3, 64, 100}, {2, 2, 80, 130}, {17, 1, 8, 50},
                         {1, 1, 256, 97}, {40, 1, 20, 13}, {6, 2, 32, 200}, {4, 1, 100, 1},
                         {2, 1, 32, 300}, {5, 1, 48, 37},  {7, 1, 16, 61},  {8, 1, 64, 50},
                         {8, 2, 128, 75}, {6, 1, 96, 29},  {1, 1, 160, 150}};
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.heads << " heads, " << c.kv_heads << " kv, dim "
                                      << c.head_dim << ", " << c.tokens << " tokens");
    Problem p(shape_of(c.heads, c.kv_heads, c.head_dim), {{0, c.tokens, 0, c.tokens}}, c.tokens,
              c.tokens);
    for_every_device([&](TestDevice& t) {
      for (const ProductOperands operands : {ProductOperands::kExact, ProductOperands::kMayRound}) {
        p.shape.operands = operands;
        expect_solved(t, p);
      }
    });
  }
}

TEST(Attention, several_items_with_cached_keys_do_not_see_each_other) {
  // Whole rows, a window at the end of a longer sequence, decodes, and an empty item; gaps between.
  const std::vector<AttentionItem> items = {{0, 20, 0, 20},   {20, 7, 25, 140}, {30, 1, 170, 1},
                                            {31, 1, 175, 99}, {40, 0, 0, 0},    {41, 50, 280, 51}};
  for_every_device([&](TestDevice& t) {
    const Problem p(shape_of(4, 2, 24), items, 95, 340);
    expect_solved(t, p);
    Outputs out = make_outputs(p);
    run_forward(t, p, p.items, &out);
    EXPECT_EQ(out.o(28, 0), 0.0f) << "a row of no item was written";
  });
}

TEST(Attention, pain_P144_packed_samples_do_not_attend_to_one_another) {
  for_every_device([](TestDevice& t) {
    const std::vector<AttentionItem> items = {{0, 70, 0, 70}, {70, 31, 70, 31}};
    const Problem p(shape_of(6, 3, 32), items, 101, 101);
    Outputs packed = make_outputs(p), separate = make_outputs(p);
    run_forward(t, p, items, &packed);
    for (const AttentionItem& item : items) run_forward(t, p, {&item, 1}, &separate);
    EXPECT_TRUE(packed.o.same_bits(separate.o) && packed.lse.same_bits(separate.lse));
    run_backward(t, p, items, &packed);
    for (const AttentionItem& item : items) run_backward(t, p, {&item, 1}, &separate);
    EXPECT_LT(distance(packed.dk, p.dk), allowed(t, p));
    EXPECT_LT(distance(separate.dk, p.dk), allowed(t, p));
    EXPECT_LT(distance(separate.dv, p.dv), allowed(t, p));
  });
}

TEST(Attention, large_scores_neither_overflow_nor_vanish) {
  for_every_device([](TestDevice& t) {
    AttentionShape shape = shape_of(2, 1, 16);
    shape.scale = 3.0f;
    const Problem p(shape, {{0, 120, 0, 120}}, 120, 120, 8.0f, Inputs::kBf16);
    Outputs out = make_outputs(p);
    run_forward(t, p, p.items, &out);
    EXPECT_LT(distance(out.o, p.o), rounds(t, p) ? 4e-3 : 2e-3);
    EXPECT_LT(distance(out.lse, p.lse), 1e-5);
  });
}

TEST(Attention, kernels_that_round_do_so_in_products_alone) {
  // Inputs have 8 bits already: scores and their log-sum-exp are as exact as ever, and only the
  // weights and the gradients of scores are rounded, by half a unit of 2^-8 each.
  for (const KernelSet set : usable_kernel_sets()) {
    if (!kernel_set_rounds(set)) continue;
    TestDevice t = make_test_device(set, 2);
    for (const int64_t tokens : {2, 49, 310}) {
      const Problem p(shape_of(6, 2, 64), {{0, tokens, 0, tokens}}, tokens, tokens, 2.0f,
                      Inputs::kBf16);
      Outputs out = make_outputs(p);
      run_forward(t, p, p.items, &out);
      EXPECT_LT(distance(out.lse, p.lse), 2e-5);
      EXPECT_LT(distance(out.o, p.o), 0x1p-9 + 2e-5) << "no value is above 1";
      run_backward(t, p, p.items, &out);
      EXPECT_LT(distance(out.dv, p.dv), 0x1p-8);
      EXPECT_LT(distance(out.dq, p.dq), 0x1p-8);
      EXPECT_LT(distance(out.dk, p.dk), 0x1p-8);
      EXPECT_GT(distance(out.o, p.o), tokens == 2 ? 0.0 : 1e-5) << "nothing was rounded";
    }
  }
}

TEST(Attention, one_token_is_never_rounded) {
  for_every_device([](TestDevice& t) {
    const Problem p(shape_of(9, 3, 64), {{0, 1, 0, 1}, {1, 1, 1, 130}}, 2, 131);
    Outputs out = make_outputs(p);
    run_forward(t, p, p.items, &out);
    EXPECT_LT(distance(out.o, p.o), 2e-5);
  });
}

TEST(Attention, log_sum_exp_may_be_left_out) {
  TestDevice t = make_test_device(KernelSet::kAuto, 1);
  const Problem p(shape_of(2, 1, 16), {{0, 5, 0, 5}}, 5, 5);
  Outputs out = make_outputs(p);
  t.ops.attention->forward(p.shape, p.items, p.q.view(), p.k.view(), p.v.view(), out.o.matrix(),
                           nullptr);
  EXPECT_LT(distance(out.o, p.o), allowed(t, p));
}

/// Windows of `size` rows of one sequence of `tokens` rows.
std::vector<AttentionItem> windows_of(int64_t tokens, int64_t size) {
  std::vector<AttentionItem> windows;
  for (int64_t begin = 0; begin < tokens; begin += size) {
    const int64_t end = std::min(tokens, begin + size);
    windows.push_back({begin, end - begin, 0, end});
  }
  return windows;
}

TEST(Attention, windows_from_the_end_to_the_start_add_up_to_the_whole_backward) {
  for_every_device([](TestDevice& t) {
    const int64_t tokens = 70;
    const Problem p(shape_of(6, 2, 16), {{0, tokens, 0, tokens}}, tokens, tokens);
    for (const int64_t size : {3, 16, 33}) {
      Outputs out = make_outputs(p);
      std::vector<AttentionItem> windows = windows_of(tokens, size);
      for (const AttentionItem& window : windows) run_forward(t, p, {&window, 1}, &out);
      std::reverse(windows.begin(), windows.end());
      for (const AttentionItem& window : windows) {
        run_backward(t, p, {&window, 1}, &out);
        // The rows of this window are final now: earlier rows cannot see them.
        const size_t cols = static_cast<size_t>(p.k.cols());
        for (int64_t row = window.query_row; row < window.num_keys; ++row) {
          for (size_t j = 0; j < cols; ++j) {
            ASSERT_NEAR(out.dk(row, static_cast<int64_t>(j)),
                        p.dk[static_cast<size_t>(row) * cols + j], 5 * allowed(t, p));
            ASSERT_NEAR(out.dv(row, static_cast<int64_t>(j)),
                        p.dv[static_cast<size_t>(row) * cols + j], 5 * allowed(t, p));
          }
        }
      }
      EXPECT_LT(distance(out.dq, p.dq), allowed(t, p));
      EXPECT_LT(distance(out.dk, p.dk), allowed(t, p));
      EXPECT_LT(distance(out.dv, p.dv), allowed(t, p));
    }
  });
}

TEST(Attention, windows_in_forward_order_would_emit_wrong_key_gradients) {
  TestDevice t = make_test_device(KernelSet::kAuto, 1);
  const int64_t tokens = 12;
  const Problem p(shape_of(1, 1, 4), {{0, tokens, 0, tokens}}, tokens, tokens);
  Outputs out = make_outputs(p);
  run_forward(t, p, p.items, &out);
  double worst = 0;
  for (const AttentionItem& window : windows_of(tokens, 3)) {
    run_backward(t, p, {&window, 1}, &out);
    for (int64_t row = window.query_row; row < window.num_keys; ++row) {
      for (int64_t j = 0; j < 4; ++j) {
        worst = std::max(worst, std::abs(out.dv(row, j) - p.dv[static_cast<size_t>(row * 4 + j)]));
      }
    }
  }
  EXPECT_GT(worst, 0.1);
}

TEST(Attention, key_gradients_accumulate_and_query_gradients_are_set) {
  TestDevice t = make_test_device(KernelSet::kAuto, 2);
  const Problem p(shape_of(2, 1, 20), {{0, 40, 0, 40}}, 40, 40);
  Outputs out = make_outputs(p);
  run_forward(t, p, p.items, &out);
  run_backward(t, p, p.items, &out);
  const Outputs once = out;
  run_backward(t, p, p.items, &out);
  EXPECT_TRUE(out.dq.same_bits(once.dq));
  for (int64_t i = 0; i < 40; ++i) {
    EXPECT_NEAR(out.dk(i, 3), 2 * once.dk(i, 3), 1e-5);
    EXPECT_NEAR(out.dv(i, 3), 2 * once.dv(i, 3), 1e-5);
  }
}

TEST(Attention, pain_P200_repeated_runs_are_bit_equal) {
  for_every_device([](TestDevice& t) {
    const std::vector<AttentionItem> items = {{0, 64, 0, 64}, {64, 100, 64, 100}, {164, 9, 164, 9}};
    const Problem p(shape_of(6, 3, 40), items, 173, 173);
    Outputs first = make_outputs(p);
    run_forward(t, p, p.items, &first);
    run_backward(t, p, p.items, &first);
    for (int run = 0; run < 3; ++run) {
      Outputs again = make_outputs(p);
      run_forward(t, p, p.items, &again);
      run_backward(t, p, p.items, &again);
      EXPECT_TRUE(again.o.same_bits(first.o) && again.dq.same_bits(first.dq) &&
                  again.dk.same_bits(first.dk) && again.dv.same_bits(first.dv));
    }
  });
}

/// Item lists that are shared differently: one long row, equal rows, and many short ones.
std::vector<std::vector<AttentionItem>> lists_to_share() {
  std::vector<AttentionItem> many;
  int64_t row = 0;
  for (const int64_t tokens : {20, 130, 1, 64, 47, 200, 33, 90, 0, 25, 110}) {
    many.push_back({row, tokens, row, tokens});
    row += tokens;
  }
  const std::vector<AttentionItem> window = {{0, 150, 0, 400}};
  return {{{0, 500, 0, 500}}, {{0, 240, 0, 240}, {240, 240, 240, 240}}, many, window};
}

/// Both directions with 2 to 4 threads give the bits that one thread gives.
void expect_equal_for_all_threads(KernelSet set, const Problem& p) {
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

TEST(Attention, results_do_not_depend_on_the_number_of_threads) {
  for (const std::vector<AttentionItem>& items : lists_to_share()) {
    for (const AttentionShape& shape : {shape_of(6, 3, 16), shape_of(2, 2, 20)}) {
      const Problem p(shape, items, 720, 720);
      for (const KernelSet set : usable_kernel_sets()) expect_equal_for_all_threads(set, p);
    }
  }
}

TEST(Attention, threads_take_turns_over_many_calls) {
  // One head of three is shared by two threads: five tasks per call, hundreds in all.
  const Problem p(shape_of(3, 3, 16), {{0, 300, 0, 300}}, 300, 300);
  TestDevice t = make_test_device(KernelSet::kAuto, 2);
  Outputs first = make_outputs(p);
  run_forward(t, p, p.items, &first);
  const Outputs before = first;
  run_backward(t, p, p.items, &first);
  for (int run = 0; run < 120; ++run) {
    Outputs again = before;
    run_backward(t, p, p.items, &again);
    ASSERT_TRUE(again.dq.same_bits(first.dq) && again.dk.same_bits(first.dk) &&
                again.dv.same_bits(first.dv))
        << "call " << run;
  }
}

TEST(Attention, wrong_shapes_are_our_mistakes) {
  TestDevice t = make_test_device(KernelSet::kAuto, 1);
  const Problem p(shape_of(2, 1, 16), {{0, 5, 0, 5}}, 5, 5);
  Outputs out = make_outputs(p);
  const std::vector<AttentionItem> fewer_keys = {{0, 5, 0, 4}}, outside = {{1, 5, 0, 5}};
  EXPECT_THROW(run_forward(t, p, fewer_keys, &out), Error);
  EXPECT_THROW(run_forward(t, p, outside, &out), Error);
}

}  // namespace
}  // namespace galley::device
