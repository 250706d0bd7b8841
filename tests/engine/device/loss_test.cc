#include <algorithm>
#include <limits>

#include "engine/core/error.h"
#include "tests/engine/device/row_testing.h"

namespace galley::device {
namespace {

TEST(CrossEntropy, loss_and_gradient_equal_double_precision) {
  for_every_shape([](TestDevice& t, int64_t rows, int64_t cols) {
    Tensor logits = Tensor::random(rows, cols, 1, 15.0f, 3);
    const float scale = 0.125f;
    std::vector<int32_t> targets(static_cast<size_t>(rows));
    for (size_t i = 0; i < targets.size(); ++i) {
      targets[i] = static_cast<int32_t>((i * 31) % static_cast<size_t>(cols));
    }
    Expected gradient(rows, cols);
    std::vector<double> expected(static_cast<size_t>(rows)), losses(expected), only(expected);
    for (int64_t i = 0; i < rows; ++i) {
      double total = 0;
      for (int64_t j = 0; j < cols; ++j) total += std::exp(double{logits(i, j)} - 15.0);
      const int32_t target = targets[static_cast<size_t>(i)];
      expected[static_cast<size_t>(i)] = 15.0 + std::log(total) - logits(i, target);
      for (int64_t j = 0; j < cols; ++j) {
        const double p = std::exp(double{logits(i, j)} - 15.0) / total;
        gradient.add(i, j, (p - (j == target ? 1 : 0)) * scale);
      }
    }
    t.ops.loss->cross_entropy_loss_only(logits.view(), targets.data(), only.data());
    t.ops.loss->cross_entropy(logits.matrix(), targets.data(), scale, losses.data());
    for (size_t i = 0; i < losses.size(); ++i) {
      ASSERT_NEAR(losses[i], expected[i], 1e-6);
      ASSERT_EQ(losses[i], only[i]);
    }
    expect_near(logits, gradient, 2e-6);
  });
}

TEST(CrossEntropy, extreme_logits) {
  for_every_device([](TestDevice& t) {
    Tensor logits = Tensor::filled(2, 100, -3e4f);
    logits(0, 7) = 3e4f;
    logits(1, 7) = std::numeric_limits<float>::quiet_NaN();
    const int32_t targets[] = {7, 3};
    double losses[2];
    t.ops.loss->cross_entropy(logits.matrix(), targets, 1.0f, losses);
    EXPECT_EQ(losses[0], 0.0);
    EXPECT_EQ(logits(0, 7), 0.0f);
    EXPECT_EQ(logits(0, 8), 0.0f);
    EXPECT_TRUE(std::isnan(losses[1])) << "a NaN must show in the loss";
    const int32_t outside[] = {100, 0};
    EXPECT_THROW(t.ops.loss->cross_entropy(logits.matrix(), outside, 1.0f, losses), Error);
  });
}

/// Columns [begin, begin + count) of all rows.
Matrix columns(Tensor& t, int64_t begin, int64_t count) {
  return {t.data() + begin, t.rows(), count, t.cols()};
}

/// Where each part of a divided vocabulary begins; the last number is its size.
using Division = std::vector<int64_t>;

/// The log-sum-exp and losses of the whole, from the parts of a divided vocabulary.
struct Combined {
  std::vector<double> log_sum_exp, losses;
};
Combined combine(TestDevice& t, Tensor& logits, const std::vector<int32_t>& targets,
                 const Division& division) {
  const size_t rows = targets.size();
  std::vector<std::vector<double>> parts;
  for (size_t w = 0; w + 1 < division.size(); ++w) {
    parts.emplace_back(3 * rows, -99.0);
    t.ops.loss->cross_entropy_part(columns(logits, division[w], division[w + 1] - division[w]),
                                   targets.data(), static_cast<int32_t>(division[w]),
                                   parts.back().data());
  }
  Combined whole;
  for (size_t i = 0; i < rows; ++i) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0, target = 0;
    for (const auto& part : parts) largest = std::max(largest, part[3 * i]);
    for (const auto& part : parts) {
      sum += part[3 * i + 1] * std::exp(part[3 * i] - largest);
      target += part[3 * i + 2];
    }
    whole.log_sum_exp.push_back(largest + std::log(sum));
    whole.losses.push_back(whole.log_sum_exp.back() - target);
  }
  return whole;
}

void apply(TestDevice& t, Tensor& logits, const std::vector<int32_t>& targets,
           const Division& division, const Combined& whole, float scale) {
  for (size_t w = 0; w + 1 < division.size(); ++w) {
    t.ops.loss->cross_entropy_apply(columns(logits, division[w], division[w + 1] - division[w]),
                                    targets.data(), static_cast<int32_t>(division[w]),
                                    whole.log_sum_exp.data(), scale);
  }
}

const Division kDivisions[] = {{0, 257},        {0, 65, 129, 193, 257}, {0, 64, 128, 192, 257},
                               {0, 1, 2, 257},  {0, 256, 257},          {0, 0, 100, 100, 257},
                               {0, 17, 50, 257}};

/// The loss of a row in double precision.
double exact_loss(const Tensor& logits, int64_t row, int64_t target) {
  double largest = logits(row, 0), sum = 0;
  for (int64_t j = 0; j < logits.cols(); ++j) largest = std::max(largest, double{logits(row, j)});
  for (int64_t j = 0; j < logits.cols(); ++j) sum += std::exp(double{logits(row, j)} - largest);
  return largest - logits(row, target) + std::log(sum);
}

TEST(DividedCrossEntropy, equals_the_whole) {
  for_every_device([](TestDevice& t) {
    const int64_t rows = 19, vocabulary = 257;
    const float scale = 0.25f;
    const Tensor logits = Tensor::random(rows, vocabulary, 1, 12.0f);
    std::vector<int32_t> targets;
    for (int32_t i = 0; i < rows; ++i) targets.push_back(i * 89 % 257);
    Tensor gradient = logits;
    std::vector<double> losses(static_cast<size_t>(rows));
    t.ops.loss->cross_entropy(gradient.matrix(), targets.data(), scale, losses.data());
    for (const Division& division : kDivisions) {
      Tensor divided = logits;
      const Combined whole = combine(t, divided, targets, division);
      EXPECT_TRUE(divided.same_bits(logits)) << "parts are only read";
      for (int64_t i = 0; i < rows; ++i) {
        const auto at = static_cast<size_t>(i);
        const double exact = exact_loss(logits, i, targets[at]);
        ASSERT_NEAR(whole.losses[at], exact, 1e-12 * exact);
        // The whole's exponentials are f32.
        ASSERT_NEAR(whole.losses[at], losses[at], 2e-7);
      }
      apply(t, divided, targets, division, whole, scale);
      EXPECT_TRUE(divided.sentinels_hold());
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < vocabulary; ++j) {
          ASSERT_NEAR(divided(i, j), gradient(i, j), 2e-6 * std::abs(gradient(i, j)) + 1e-9)
              << division.size() - 1 << " parts, row " << i << ", token " << j;
        }
      }
    }
  });
}

TEST(DividedCrossEntropy, parts_are_what_they_say) {
  for_every_device([](TestDevice& t) {
    for (const int64_t cols : kCols) {
      const Tensor logits = Tensor::random(2, cols, 1, 30.0f);
      // The first row's target is the last token of this part, the second row's another worker's.
      const std::vector<int32_t> targets = {static_cast<int32_t>(1000 + cols - 1), 7};
      std::vector<double> parts(6);
      t.ops.loss->cross_entropy_part(logits.view(), targets.data(), 1000, parts.data());
      for (int64_t i = 0; i < 2; ++i) {
        double largest = logits(i, 0), sum = 0;
        for (int64_t j = 0; j < cols; ++j) largest = std::max(largest, double{logits(i, j)});
        for (int64_t j = 0; j < cols; ++j) sum += std::exp(double{logits(i, j)} - largest);
        const double* part = parts.data() + 3 * i;
        EXPECT_EQ(part[0], largest);
        EXPECT_NEAR(part[1], sum, 1e-14 * sum * std::sqrt(static_cast<double>(cols)));
        EXPECT_EQ(part[2], i == 0 ? double{logits(0, cols - 1)} : 0.0);
      }
    }
  });
}

TEST(DividedCrossEntropy, extreme_logits) {
  for_every_device([](TestDevice& t) {
    // One token far above the others, none above them, one far below, equal ones far up and down.
    Tensor logits = Tensor::filled(5, 257, 0.0f);
    for (int64_t j = 0; j < 257; ++j) {
      logits(0, j) = j == 200 ? 1e4f : -1e4f;
      logits(2, j) = j == 200 ? -1e4f : static_cast<float>(j % 5);
      logits(3, j) = 1e4f;
      logits(4, j) = j == 3 ? 0.0f : -std::numeric_limits<float>::infinity();
    }
    const std::vector<int32_t> targets = {200, 200, 200, 200, 3};
    for (const Division& division : kDivisions) {
      Tensor divided = logits;
      const Combined whole = combine(t, divided, targets, division);
      EXPECT_EQ(whole.losses[0], 0.0);
      EXPECT_NEAR(whole.losses[1], std::log(257.0), 1e-12);
      EXPECT_NEAR(whole.losses[2], exact_loss(logits, 2, 200), 1e-8);
      EXPECT_NEAR(whole.losses[3], std::log(257.0), 1e-11);
      EXPECT_EQ(whole.losses[4], 0.0);
      apply(t, divided, targets, division, whole, 1.0f);
      EXPECT_EQ(divided(0, 200), 0.0f);
      EXPECT_EQ(divided(0, 0), 0.0f);
      EXPECT_NEAR(divided(1, 0), 1.0 / 257, 1e-8);
      EXPECT_NEAR(divided(1, 200), 1.0 / 257 - 1, 1e-7);
      EXPECT_EQ(divided(2, 200), -1.0f);
      EXPECT_NEAR(divided(3, 0), 1.0 / 257, 1e-8);
      EXPECT_EQ(divided(4, 0), 0.0f);
      EXPECT_EQ(divided(4, 3), 0.0f);
    }
  });
}

TEST(DividedCrossEntropy, a_value_that_is_no_number_shows) {
  for_every_device([](TestDevice& t) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float lowest = -std::numeric_limits<float>::infinity();
    for (const float others : {1.0f, lowest}) {
      Tensor logits = Tensor::filled(1, 40, others);
      logits(0, 33) = nan;
      const std::vector<int32_t> targets = {5};
      double part[3];
      t.ops.loss->cross_entropy_part(logits.view(), targets.data(), 0, part);
      EXPECT_TRUE(std::isnan(part[1]));
    }
    Tensor nothing = Tensor::filled(1, 40, lowest);
    const std::vector<int32_t> targets = {5};
    double part[3];
    t.ops.loss->cross_entropy_part(nothing.view(), targets.data(), 100, part);
    EXPECT_EQ(part[0], -std::numeric_limits<double>::infinity());
    EXPECT_EQ(part[1], 0.0);
    EXPECT_EQ(part[2], 0.0);
  });
}

}  // namespace
}  // namespace galley::device
