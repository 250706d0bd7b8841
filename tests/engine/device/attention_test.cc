#include <algorithm>

#include "engine/core/error.h"
#include "tests/engine/device/attention_testing.h"

namespace galley::device {
namespace {

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
