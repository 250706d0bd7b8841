// Attention of a worker that holds a range of the heads, and within a sliding window.
#include <limits>

#include "engine/core/error.h"
#include "engine/device/host/host_ops.h"
#include "tests/engine/device/attention_testing.h"

namespace galley::device {
namespace {

AttentionShape ranged(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t heads_per_kv,
                      int64_t first_in_group, int64_t window = 0) {
  AttentionShape shape = shape_of(heads, kv_heads, head_dim);
  shape.heads_per_kv = heads_per_kv;
  shape.first_in_group = first_in_group;
  shape.window = window;
  return shape;
}

/// Whole rows, a part at the end of a longer one, decodes of few and many keys, an empty item.
const std::vector<AttentionItem> kMixed = {{0, 90, 0, 90},     {90, 7, 95, 140}, {97, 1, 240, 1},
                                           {98, 1, 241, 399},  {99, 0, 0, 0},    {99, 1, 640, 20},
                                           {100, 40, 660, 340}};
constexpr int64_t kMixedRows = 141, kMixedKeys = 1001;

void expect_solved_exact_and_rounded(TestDevice& t, Problem& p) {
  for (const ProductOperands operands : {ProductOperands::kExact, ProductOperands::kMayRound}) {
    p.shape.operands = operands;
    expect_solved(t, p);
  }
}

TEST(AttentionWindow, equals_double_precision) {
  for (const int64_t window : {1, 2, 7, 16, 33, 100, 257, 500}) {
    SCOPED_TRACE(::testing::Message() << "window " << window);
    for (const int64_t head_dim : {20, 64, 128}) {
      AttentionShape shape = shape_of(6, 2, head_dim);
      shape.window = window;
      Problem p(shape, kMixed, kMixedRows, kMixedKeys);
      for_every_device([&](TestDevice& t) { expect_solved_exact_and_rounded(t, p); });
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(AttentionWindow, equals_double_precision_for_random_shapes) {
  Random random(20, random_stream("attention shapes"));
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random.uniform_f32() * static_cast<float>(high - low + 1));
  };
  for (int i = 0; i < 24; ++i) {
    const int64_t per_kv = draw(1, 9), first = draw(0, per_kv - 1), heads = draw(1, 12);
    const int64_t kv_heads = (first + heads - 1) / per_kv + 1;
    const int64_t head_dim = i % 8 == 7 ? draw(129, 256) : draw(1, 100);
    AttentionShape shape =
        ranged(heads, kv_heads, head_dim, per_kv, first, i % 3 == 0 ? 0 : draw(1, 150));
    const int64_t tokens = draw(1, 200), before = i % 2 == 0 ? 0 : draw(0, 300);
    SCOPED_TRACE(::testing::Message()
                 << heads << " heads from " << first << " of " << per_kv << ", dim " << head_dim
                 << ", window " << shape.window << ", " << tokens << " after " << before);
    const std::vector<AttentionItem> items = {{0, tokens, 0, before + tokens},
                                              {tokens, 1, before + tokens, 1 + before}};
    Problem p(shape, items, tokens + 1, 2 * before + tokens + 1);
    for_every_device([&](TestDevice& t) { expect_solved_exact_and_rounded(t, p); });
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(AttentionWindow, one_that_is_not_shorter_than_the_rows_changes_nothing) {
  for_every_device([](TestDevice& t) {
    AttentionShape shape = shape_of(4, 2, 40);
    const Problem plain(shape, kMixed, kMixedRows, kMixedKeys);
    shape.window = 399;
    const Problem p(shape, kMixed, kMixedRows, kMixedKeys);
    Outputs whole = make_outputs(plain), out = make_outputs(p);
    run_forward(t, plain, plain.items, &whole);
    run_forward(t, p, p.items, &out);
    EXPECT_TRUE(out.o.same_bits(whole.o) && out.lse.same_bits(whole.lse));
    run_backward(t, plain, plain.items, &whole);
    run_backward(t, p, p.items, &out);
    EXPECT_TRUE(out.dq.same_bits(whole.dq) && out.dk.same_bits(whole.dk) &&
                out.dv.same_bits(whole.dv));
  });
}

TEST(AttentionWindow, keys_outside_are_not_touched) {
  constexpr int64_t kWindow = 40;
  AttentionShape shape = shape_of(6, 2, 48);
  shape.window = kWindow;
  // The last 70 of 500 rows, and one that is decoded.
  const std::vector<AttentionItem> items = {{0, 70, 0, 500}, {70, 1, 500, 300}};
  Problem p(shape, items, 71, 800);
  for (int64_t row = 0; row < 800; ++row) {
    const bool seen = (row >= 500 - 70 + 1 - kWindow && row < 500) || row >= 800 - kWindow;
    for (int64_t j = 0; !seen && j < p.k.cols(); ++j) {
      p.k(row, j) = p.v(row, j) = std::numeric_limits<float>::quiet_NaN();
    }
  }
  for_every_device([&](TestDevice& t) { expect_solved_exact_and_rounded(t, p); });
}

TEST(AttentionWindow, results_do_not_depend_on_the_number_of_threads) {
  const std::vector<AttentionItem> packed = {
      {0, 130, 0, 130}, {130, 300, 130, 300}, {430, 9, 430, 9}};
  const std::vector<AttentionItem> one = {{0, 500, 0, 500}};
  for (const std::vector<AttentionItem>& items : {packed, one, kMixed}) {
    for (const AttentionShape& shape : {ranged(6, 3, 16, 2, 0, 70), ranged(4, 3, 20, 2, 1, 5),
                                        ranged(5, 2, 64, 3, 1), ranged(40, 2, 8, 39, 0, 200)}) {
      const Problem p(shape, items, 500, 1001);
      for (const KernelSet set : usable_kernel_sets()) expect_equal_for_all_threads(set, p);
    }
  }
}

/// Columns [begin, end) of a tensor.
Tensor columns_of(const Tensor& from, int64_t begin, int64_t end) {
  Tensor part(from.rows(), end - begin);
  for (int64_t i = 0; i < from.rows(); ++i) {
    for (int64_t j = begin; j < end; ++j) part(i, j - begin) = from(i, j);
  }
  return part;
}

/// Largest difference of `part` from the columns of `whole` from `begin` on.
double difference(const Tensor& whole, int64_t begin, const Tensor& part) {
  double worst = 0;
  for (int64_t i = 0; i < part.rows(); ++i) {
    for (int64_t j = 0; j < part.cols(); ++j) {
      worst = std::max(worst, std::abs(double{whole(i, begin + j)} - part(i, j)));
    }
  }
  return worst;
}

void add_columns(const Tensor& part, int64_t begin, Tensor* sum) {
  for (int64_t i = 0; i < part.rows(); ++i) {
    for (int64_t j = 0; j < part.cols(); ++j) (*sum)(i, begin + j) += part(i, j);
  }
}

/// Heads [begin, end) of nine over three key/value heads as one worker has them: its outputs are
/// columns of the whole, and what it has of dk and dv is added to `sum`.
void run_worker(TestDevice& t, const Problem& whole, const Outputs& expected, int64_t begin,
                int64_t end, Outputs* sum) {
  const int64_t d = whole.shape.head_dim, first_kv = begin / 3, end_kv = (end - 1) / 3 + 1;
  AttentionShape shape =
      ranged(end - begin, end_kv - first_kv, d, 3, begin - 3 * first_kv, whole.shape.window);
  shape.operands = whole.shape.operands;
  Problem p(shape, {}, whole.q.rows(), whole.k.rows());
  p.q = columns_of(whole.q, begin * d, end * d);
  p.d_o = columns_of(whole.d_o, begin * d, end * d);
  p.k = columns_of(whole.k, first_kv * d, end_kv * d);
  p.v = columns_of(whole.v, first_kv * d, end_kv * d);
  Outputs out = make_outputs(p);
  run_forward(t, p, whole.items, &out);
  EXPECT_LT(difference(expected.o, begin * d, out.o), 1e-6);
  EXPECT_LT(difference(expected.lse, begin, out.lse), 1e-5);
  run_backward(t, p, whole.items, &out);
  EXPECT_LT(difference(expected.dq, begin * d, out.dq), 1e-5);
  add_columns(out.dk, first_kv * d, &sum->dk);
  add_columns(out.dv, first_kv * d, &sum->dv);
}

TEST(AttentionHeads, divided_over_workers_equal_the_whole) {
  for_every_device([](TestDevice& t) {
    for (const int64_t window : {0, 30}) {
      for (const int64_t cut : {1, 3, 4, 5, 8}) {
        SCOPED_TRACE(::testing::Message() << "window " << window << ", " << cut << " of 9 heads");
        AttentionShape shape = shape_of(9, 3, 24);
        shape.window = window;
        shape.operands = cut == 5 ? ProductOperands::kMayRound : ProductOperands::kExact;
        const Problem whole(shape, {{0, 110, 0, 110}, {110, 1, 110, 60}}, 111, 170);
        Outputs expected = make_outputs(whole), sum = make_outputs(whole);
        run_forward(t, whole, whole.items, &expected);
        run_backward(t, whole, whole.items, &expected);
        run_worker(t, whole, expected, 0, cut, &sum);
        run_worker(t, whole, expected, cut, 9, &sum);
        EXPECT_LT(difference(expected.dk, 0, sum.dk), 1e-4);
        EXPECT_LT(difference(expected.dv, 0, sum.dv), 1e-4);
      }
    }
  });
}

TEST(AttentionHeads, groups_may_be_incomplete_at_both_ends) {
  const AttentionShape shape = ranged(4, 3, 16, 2, 1);
  EXPECT_EQ(head_group(shape, 0).begin, 0);
  EXPECT_EQ(head_group(shape, 0).end, 1);
  EXPECT_EQ(head_group(shape, 1).begin, 1);
  EXPECT_EQ(head_group(shape, 1).end, 3);
  EXPECT_EQ(head_group(shape, 2).begin, 3);
  EXPECT_EQ(head_group(shape, 2).end, 4);
}

TEST(AttentionHeads, wrong_groups_are_our_mistakes) {
  TestDevice t = make_test_device(KernelSet::kAuto, 1);
  // More and fewer key/value heads than are used, a first head of another group, no whole groups.
  for (const AttentionShape& shape :
       {ranged(4, 3, 16, 3, 0), ranged(4, 1, 16, 3, 0), ranged(4, 2, 16, 3, 3),
        ranged(4, 2, 16, 0, 1), ranged(4, 3, 16, 0, 0), ranged(4, 2, 16, 3, -1),
        ranged(4, 2, 16, 3, 0, -1)}) {
    Tensor q(5, 64), k(5, shape.num_kv_heads * 16);
    EXPECT_THROW(
        t.ops.attention->forward(shape, {}, q.view(), k.view(), k.view(), q.matrix(), nullptr),
        Error);
  }
}

TEST(AttentionPairs, are_counted_one_by_one) {
  for (const AttentionItem& item : kMixed) {
    for (const int64_t window : {0, 1, 7, 40, 90, 299, 1000}) {
      double pairs = 0;
      for (int64_t i = 0; i < item.num_queries; ++i) {
        const int64_t visible = item.num_keys - item.num_queries + i + 1;
        pairs += static_cast<double>(window > 0 ? std::min(window, visible) : visible);
      }
      EXPECT_EQ(visible_pairs(item, window), pairs) << item.num_keys << " keys, window " << window;
    }
  }
}

/// Counts the blocks of keys that a task of backward adds to.
struct CountingTurn : AttentionTurn {
  CountingTurn() {
    wait = [](const AttentionTurn*, int64_t) {};
    pass = [](const AttentionTurn* turn, int64_t block) {
      const auto* self = static_cast<const CountingTurn*>(turn);
      self->first = self->count == 0 ? block : self->first;
      ++self->count;
    };
  }
  mutable int64_t count = 0, first = -1;
};

TEST(AttentionWindow, blocks_of_keys_outside_are_skipped) {
  constexpr int64_t kKeys = 2000, kQueries = 12, kDim = 32;
  const Tensor q = Tensor::random(kQueries, kDim, 1), k = Tensor::random(kKeys, kDim, 2);
  Tensor o = Tensor::filled(kQueries, kDim, 0.0f), lse = Tensor::filled(kQueries, 1, 5.0f);
  Tensor dq = o, dk = Tensor::filled(kKeys, kDim, 0.0f), dv = dk;
  std::vector<float> scratch(kAttentionScratchFloats + 16);
  float* const aligned =
      scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64 / 4;
  for (const KernelSet set : usable_kernel_sets()) {
    const auto blocks_with = [&](int64_t window) {
      CountingTurn turn;
      AttentionTask task;
      task.num_queries = kQueries;
      task.first_visible = kKeys - kQueries + 1;
      task.window = window;
      task.num_heads = 1;
      task.head_dim = kDim;
      task.scale = 0.1f;
      task.q = task.d_o = q.data();
      task.k = task.v = k.data();
      task.o = o.data();
      task.lse = lse.data();
      task.dq = dq.data();
      task.dk = dk.data();
      task.dv = dv.data();
      task.q_row = task.k_row = task.v_row = task.o_row = task.d_o_row = kDim;
      task.dq_row = task.dk_row = task.dv_row = kDim;
      task.lse_row = 1;
      task.turn = &turn;
      kernel_table(set).attention.backward(task, aligned);
      return std::pair(turn.count, turn.first);
    };
    const auto all = blocks_with(AttentionTask::kNoWindow), some = blocks_with(300);
    EXPECT_EQ(all.first, (kKeys + 95) / 96);
    EXPECT_EQ(all.second, 0);
    EXPECT_EQ(some.second, (kKeys - kQueries + 1 - 300) / 96);
    EXPECT_EQ(some.first, all.first - some.second);
  }
}

}  // namespace
}  // namespace galley::device
