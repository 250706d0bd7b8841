#include "engine/model/adapter_layout.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <tuple>

#include "tests/engine/model/memory_plan_cases.h"

namespace galley::model {
namespace {

using enum TensorState;
using Combination = std::tuple<TensorState, TensorState, TensorState>;  // A, x A^T, B

constexpr TensorState kAll[] = {kReplicated, kRowsSplit, kColumnsSplit, kPartialSum};

AdapterLayoutCase small_case(LinearSplit split, int tp_size) {
  return {.split = split, .tp_size = tp_size, .in = 7, .out = 5, .rank = 4, .tokens_per_step = 3};
}

// Executed definition: a tensor on t workers is one matrix per worker, zero where the worker has
// nothing. It is the whole one if every worker has it, or if the sum over the workers is it.

struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<int64_t> values;
  int64_t& at(int64_t r, int64_t c) { return values[static_cast<size_t>(r * columns + c)]; }
  int64_t at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * columns + c)]; }
  bool operator==(const Matrix&) const = default;
};

Matrix zeros(int64_t rows, int64_t columns) {
  return {rows, columns, std::vector<int64_t>(static_cast<size_t>(rows * columns), 0)};
}

Matrix numbered(int64_t rows, int64_t columns, int64_t seed) {
  Matrix matrix = zeros(rows, columns);
  for (int64_t& value : matrix.values) value = seed = (seed * 1103515245 + 12345) % 9973;
  return matrix;
}

Matrix times_transposed(const Matrix& x, const Matrix& w) {
  Matrix y = zeros(x.rows, w.rows);
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t o = 0; o < w.rows; ++o) {
      for (int64_t k = 0; k < x.columns; ++k) y.at(i, o) += x.at(i, k) * w.at(o, k);
    }
  }
  return y;
}

using Distributed = std::vector<Matrix>;

Distributed distribute(const Matrix& whole, TensorState state, int workers) {
  Distributed parts;
  for (int worker = 0; worker < workers; ++worker) {
    Matrix part = whole;
    const IndexRange rows =
        state == kRowsSplit ? shard_range(whole.rows, workers, worker) : IndexRange{0, whole.rows};
    const IndexRange columns = state == kColumnsSplit ? shard_range(whole.columns, workers, worker)
                                                      : IndexRange{0, whole.columns};
    for (int64_t r = 0; r < whole.rows; ++r) {
      for (int64_t c = 0; c < whole.columns; ++c) {
        const bool own = r >= rows.begin && r < rows.end && c >= columns.begin && c < columns.end;
        if (!own) part.at(r, c) = 0;
      }
    }
    parts.push_back(part);
  }
  return parts;
}

Distributed multiply(const Distributed& x, const Distributed& w) {
  Distributed y;
  for (size_t i = 0; i < x.size(); ++i) y.push_back(times_transposed(x[i], w[i]));
  return y;
}

bool everybody_has(const Distributed& parts, const Matrix& whole) {
  return std::all_of(parts.begin(), parts.end(), [&](const Matrix& part) { return part == whole; });
}
bool adds_up(const Distributed& parts, const Matrix& whole) {
  Matrix sum = zeros(whole.rows, whole.columns);
  for (const Matrix& part : parts) {
    for (size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += part.values[i];
  }
  return sum == whole;
}
bool is_split(const Distributed& parts, const Matrix& whole) {
  return parts == distribute(whole, kColumnsSplit, static_cast<int>(parts.size()));
}

/// The low-rank activation in `wanted`, if what the workers made is it or a collective or a slice
/// makes it; partial sums are never made on purpose.
std::optional<Distributed> in_state(const Distributed& made, const Matrix& whole,
                                    TensorState wanted) {
  const int workers = static_cast<int>(made.size());
  if (!everybody_has(made, whole) && !adds_up(made, whole)) return std::nullopt;
  if (wanted == kReplicated || wanted == kColumnsSplit) return distribute(whole, wanted, workers);
  const bool partial = !everybody_has(made, whole) && !is_split(made, whole);
  if (wanted == kPartialSum && partial) return made;
  return std::nullopt;
}

bool computes(LinearSplit split, int workers, const Combination& states) {
  const auto [a_state, low_state, b_state] = states;
  // Parameters as partial sums cannot be updated; activations are not split by rows.
  if (a_state == kPartialSum || b_state == kPartialSum || low_state == kRowsSplit) return false;
  const Matrix x = numbered(3, 7, 1), a = numbered(4, 7, 2), b = numbered(5, 4, 3);
  const Distributed x_parts =
      distribute(x, split == LinearSplit::kRow ? kColumnsSplit : kReplicated, workers);
  const Matrix low = times_transposed(x, a);
  const auto low_parts =
      in_state(multiply(x_parts, distribute(a, a_state, workers)), low, low_state);
  if (!low_parts) return false;
  const Matrix y = times_transposed(low, b);
  const Distributed y_parts = multiply(*low_parts, distribute(b, b_state, workers));
  return everybody_has(y_parts, y) || adds_up(y_parts, y);
}

std::set<Combination> enumerated(LinearSplit split, int workers) {
  std::set<Combination> found;
  for (const AdapterLayout& layout : adapter_layouts(small_case(split, workers))) {
    EXPECT_TRUE(found.insert({layout.a, layout.low_rank, layout.b}).second);
  }
  return found;
}

TEST(AdapterLayoutTest, exactly_the_layouts_that_compute_the_output_are_enumerated) {
  for (const int workers : {2, 3}) {
    for (const LinearSplit split : {LinearSplit::kColumn, LinearSplit::kRow}) {
      std::set<Combination> right;
      for (const TensorState a : kAll) {
        for (const TensorState low : kAll) {
          for (const TensorState b : kAll) {
            if (computes(split, workers, {a, low, b})) right.insert({a, low, b});
          }
        }
      }
      EXPECT_EQ(enumerated(split, workers), right);
      EXPECT_EQ(right.size(), split == LinearSplit::kRow ? 12u : 16u);
    }
  }
}

/// Costs by hand: forward, backward, gradients, as multiples of s = (t - 1) / t.
struct Costs {
  double forward = 0, backward = 0, gradient = 0;
};

Costs costs_of_row(const Combination& states, double low, double a, double b) {
  const auto [a_state, low_state, b_state] = states;
  Costs costs;
  if (a_state == kReplicated) costs.gradient += 2 * a;  // each has the gradient of its columns
  if (low_state == kReplicated) costs.forward = 2 * low;
  if (low_state == kColumnsSplit) costs.forward = low;
  // The gradient of x A^T must be whole on all workers for the features of dx.
  if (b_state == kRowsSplit) costs.backward = 2 * low;
  if (b_state == kColumnsSplit || low_state == kColumnsSplit) costs.backward = low;
  if (b_state == kReplicated && low_state != kReplicated) costs.gradient += 2 * b;
  return costs;
}

Costs costs_of_column(const Combination& states, double low, double y, double a, double b) {
  const auto [a_state, low_state, b_state] = states;
  Costs costs;
  if (a_state == kReplicated) costs.gradient += 2 * a;
  if (b_state == kReplicated) costs.gradient += 2 * b;
  if (a_state == kRowsSplit && low_state == kReplicated) costs.forward += low;
  if (a_state == kColumnsSplit && low_state == kReplicated) costs.forward += 2 * low;
  if (a_state == kColumnsSplit && low_state == kColumnsSplit) costs.forward += low;
  const bool whole_y = low_state != kReplicated || b_state == kColumnsSplit;
  if (whole_y) {
    costs.forward += y;
    costs.backward += y;
  }
  // What B^T dy is: a summand, own columns, or (from summands of x A^T) whole.
  const bool summand = !whole_y, columns = whole_y && low_state != kPartialSum;
  if (a_state == kRowsSplit && summand) costs.backward += low;
  if (a_state == kColumnsSplit) costs.backward += summand ? 2 * low : columns ? low : 0;
  return costs;
}

TEST(AdapterLayoutTest, costs_are_those_of_the_formulas) {
  for (const int tp : {2, 3, 8}) {
    for (const LinearSplit split : {LinearSplit::kColumn, LinearSplit::kRow}) {
      const AdapterLayoutCase given{.split = split,
                                    .tp_size = tp,
                                    .in = 576,
                                    .out = 192,
                                    .rank = 16,
                                    .tokens_per_step = 1000};
      const double s = (tp - 1.0) / tp;
      for (const AdapterLayout& layout : adapter_layouts(given)) {
        const Combination states{layout.a, layout.low_rank, layout.b};
        const Costs costs = split == LinearSplit::kRow
                                ? costs_of_row(states, 16000, 576 * 16, 192 * 16)
                                : costs_of_column(states, 16000, 192000, 576 * 16, 192 * 16);
        EXPECT_NEAR(layout.forward_elements, s * costs.forward, 1e-6) << layout.how;
        EXPECT_NEAR(layout.backward_elements, s * costs.backward, 1e-6) << layout.how;
        EXPECT_NEAR(layout.gradient_elements, s * costs.gradient, 1e-6) << layout.how;
      }
    }
  }
}

struct PublishedModel {
  const char* name;
  ProjectionWidths widths;
};
constexpr PublishedModel kPublished[] = {
    {"Llama-3.1-8B", {4096, 14336, 4096, 1024}},
    {"Qwen2.5-14B", {5120, 13824, 5120, 1024}},
    {"Qwen2.5-32B", {5120, 27648, 5120, 1024}},
    {"SmolLM2-135M", {576, 1536, 576, 192}},
};

void for_published_cases(const std::function<void(const AdapterLayoutCase&)>& check) {
  for (const PublishedModel& published : kPublished) {
    for (int p = 0; p < kNumProjections; ++p) {
      const auto projection = static_cast<Projection>(p);
      for (const int tp : {2, 4, 8}) {
        SCOPED_TRACE(std::string(published.name) + " " + std::string(projection_name(projection)) +
                     " tp " + std::to_string(tp));
        check({.split = linear_split(projection),
               .tp_size = tp,
               .in = published.widths.in(projection),
               .out = published.widths.out(projection),
               .rank = 16,
               .tokens_per_step = 32768});
      }
    }
  }
}

TEST(AdapterLayoutTest, the_cheapest_layout_of_published_models_sends_nothing_in_forward) {
  for_published_cases([](const AdapterLayoutCase& given) {
    const auto layouts = adapter_layouts(given);
    const AdapterLayout chosen = choose_adapter_layout(given);
    const bool row = given.split == LinearSplit::kRow;
    EXPECT_EQ(chosen.a, row ? kColumnsSplit : kReplicated);
    EXPECT_EQ(chosen.low_rank, row ? kPartialSum : kReplicated);
    EXPECT_EQ(chosen.b, row ? kReplicated : kRowsSplit);
    EXPECT_EQ(chosen.forward_elements, 0);
    EXPECT_EQ(chosen.backward_elements, 0);
    const double replicated = static_cast<double>(given.rank * (row ? given.out : given.in));
    EXPECT_DOUBLE_EQ(chosen.gradient_elements,
                     2.0 * (given.tp_size - 1) / given.tp_size * replicated);
    const double divided =
        static_cast<double>(given.rank * (row ? given.in : given.out)) / given.tp_size;
    EXPECT_DOUBLE_EQ(chosen.held_elements, replicated + divided);
    EXPECT_EQ(layouts.size(), row ? 12u : 16u);
    for (const AdapterLayout& other : layouts) {
      EXPECT_LE(chosen.communicated(), other.communicated());
      if (chosen.communicated() == other.communicated()) {
        EXPECT_LE(chosen.held_elements, other.held_elements);
      }
    }
  });
}

TEST(AdapterLayoutTest, few_tokens_may_send_activations_rather_than_gradients) {
  const AdapterLayout chosen = choose_adapter_layout({.split = LinearSplit::kRow,
                                                      .tp_size = 2,
                                                      .in = 4096,
                                                      .out = 4096,
                                                      .rank = 16,
                                                      .tokens_per_step = 8});
  EXPECT_GT(chosen.forward_elements, 0);
  EXPECT_EQ(chosen.gradient_elements, 0);
}

TEST(AdapterLayoutTest, one_worker_has_nothing_to_choose) {
  const auto layouts = adapter_layouts(small_case(LinearSplit::kRow, 1));
  ASSERT_EQ(layouts.size(), 1u);
  EXPECT_EQ(layouts[0].communicated(), 0);
  EXPECT_EQ(layouts[0].held_elements, 4 * (7 + 5));
}

TEST(AdapterLayoutTest, the_table_has_a_line_for_each) {
  const AdapterLayoutCase given = small_case(LinearSplit::kColumn, 2);
  const auto layouts = adapter_layouts(given);
  const std::string text = to_text(given, layouts);
  EXPECT_EQ(static_cast<size_t>(std::count(text.begin(), text.end(), '\n')), layouts.size() + 2);
  EXPECT_EQ(text.rfind("column-parallel linear 7 -> 5, rank 4, 2 workers", 0), 0u);
  EXPECT_NE(text.find("rows split"), std::string::npos);
}

}  // namespace
}  // namespace galley::model
