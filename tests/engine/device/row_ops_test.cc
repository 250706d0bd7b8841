#include <algorithm>
#include <limits>
#include <numeric>

#include "engine/core/error.h"
#include "tests/engine/device/device_testing.h"

namespace galley::device {
namespace {

const int64_t kRows[] = {1, 3, 33, 200};
const int64_t kCols[] = {1, 3, 17, 31, 64, 100, 257, 576};

/// body(device, rows, cols) for all of them.
void for_every_shape(const std::function<void(TestDevice&, int64_t, int64_t)>& body) {
  for_every_device([&](TestDevice& t) {
    for (const int64_t rows : kRows) {
      for (const int64_t cols : kCols) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << cols);
        body(t, rows, cols);
        if (::testing::Test::HasFailure()) return;
      }
    }
  });
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(Swiglu, forward_and_backward_equal_double_precision) {
  for_every_shape([](TestDevice& t, int64_t rows, int64_t cols) {
    Tensor gate = Tensor::random(rows, cols, 1, 12.0f, 3);
    Tensor up = Tensor::random(rows, cols, 2, 2.0f, 1);
    const Tensor dy = Tensor::random(rows, cols, 3, 1.0f, 2);
    Expected y(rows, cols), d_gate(rows, cols), d_up(rows, cols);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        const double g = gate(i, j), u = up(i, j), d = dy(i, j), s = sigmoid(g);
        y.add(i, j, g * s * u);
        d_up.add(i, j, d * g * s);
        d_gate.add(i, j, d * u * s * (1 + g * (1 - s)));
        d_gate.magnitude(i, j) = std::abs(d * u) * (1 + std::abs(g));
      }
    }
    Tensor out(rows, cols, 5);
    t.ops.elementwise->swiglu_forward(gate.view(), up.view(), out.matrix());
    expect_near(out, y, 2e-6);
    // Gradients may take the place of the inputs.
    t.ops.elementwise->swiglu_backward(gate.view(), up.view(), dy.view(), gate.matrix(),
                                       up.matrix());
    expect_near(gate, d_gate, 2e-6);
    expect_near(up, d_up, 2e-6);
  });
}

TEST(Swiglu, extreme_gates_give_zero_and_identity) {
  for_every_device([](TestDevice& t) {
    Tensor gate = Tensor::filled(1, 20, 200.0f), up = Tensor::filled(1, 20, 2.0f), y(1, 20);
    for (int64_t j = 0; j < 20; j += 2) gate(0, j) = -200.0f;
    t.ops.elementwise->swiglu_forward(gate.view(), up.view(), y.matrix());
    for (int64_t j = 0; j < 20; ++j) EXPECT_EQ(y(0, j), j % 2 == 0 ? 0.0f : 400.0f) << j;
    gate(0, 5) = std::numeric_limits<float>::quiet_NaN();
    t.ops.elementwise->swiglu_forward(gate.view(), up.view(), y.matrix());
    EXPECT_TRUE(std::isnan(y(0, 5)));
  });
}

TEST(Add, adds) {
  for_every_shape([](TestDevice& t, int64_t rows, int64_t cols) {
    const Tensor x = Tensor::random(rows, cols, 1, 1.0f, 3);
    Tensor y = Tensor::random(rows, cols, 2, 1.0f, 2);
    const Tensor before = y;
    t.ops.elementwise->add(x.view(), y.matrix());
    EXPECT_TRUE(y.sentinels_hold());
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) ASSERT_EQ(y(i, j), before(i, j) + x(i, j));
    }
  });
}

TEST(Rmsnorm, forward_and_backward_equal_double_precision) {
  for_every_shape([](TestDevice& t, int64_t rows, int64_t cols) {
    const double eps = 1e-5;
    const Tensor x = Tensor::random(rows, cols, 1, 3.0f, 3), dy = Tensor::random(rows, cols, 2);
    const Tensor weight = Tensor::random(1, cols, 4);
    Tensor dx = Tensor::random(rows, cols, 5, 1.0f, 1), added = dx;
    Expected y(rows, cols), gradient(rows, cols), sum(rows, cols), rstd(rows, 1);
    for (int64_t i = 0; i < rows; ++i) {
      double squares = 0, dot = 0, size = 0;  // size: of the terms of dot, which may cancel
      for (int64_t j = 0; j < cols; ++j) {
        squares += double{x(i, j)} * x(i, j);
        dot += double{dy(i, j)} * weight(0, j) * x(i, j);
        size += std::abs(double{dy(i, j)} * weight(0, j) * x(i, j));
      }
      const double n = static_cast<double>(cols), r = 1 / std::sqrt(squares / n + eps);
      rstd.add(i, 0, r);
      for (int64_t j = 0; j < cols; ++j) {
        y.add(i, j, x(i, j) * r * weight(0, j));
        for (Expected* e : {&gradient, &sum}) {
          e->add(i, j, r * dy(i, j) * weight(0, j));
          e->add(i, j, -x(i, j) * r * r * r * dot / n);
          e->magnitude(i, j) += std::abs(x(i, j)) * r * r * r * size / n;
        }
        sum.add(i, j, dx(i, j));
      }
    }
    Tensor out(rows, cols, 2), out_rstd(rows, 1);
    t.ops.token->rmsnorm_forward(x.view(), weight.data(), static_cast<float>(eps), out.matrix(),
                                 out_rstd.data());
    expect_near(out, y, 8e-7);
    expect_near(out_rstd, rstd, 8e-7);
    t.ops.token->rmsnorm_backward(dy.view(), x.view(), weight.data(), out_rstd.data(), dx.matrix(),
                                  Write::kSet);
    expect_near(dx, gradient, 2e-6);
    t.ops.token->rmsnorm_backward(dy.view(), x.view(), weight.data(), out_rstd.data(),
                                  added.matrix(), Write::kAdd);
    expect_near(added, sum, 2e-6);
  });
}

TEST(Rope, rotates_pairs_half_a_head_apart_and_back) {
  for_every_device([](TestDevice& t) {
    for (const int64_t head_dim : {2, 6, 32, 64, 80}) {
      const int64_t rows = 50, heads = 3, half = head_dim / 2, positions = 70;
      Tensor cosines(positions, half), sines(positions, half);
      for (int64_t p = 0; p < positions; ++p) {
        for (int64_t i = 0; i < half; ++i) {
          const double angle =
              static_cast<double>(p) *
              std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
          cosines(p, i) = static_cast<float>(std::cos(angle));
          sines(p, i) = static_cast<float>(std::sin(angle));
        }
      }
      std::vector<int32_t> at(static_cast<size_t>(rows));
      for (int32_t i = 0; i < rows; ++i) at[static_cast<size_t>(i)] = (i * 13) % 70;
      Tensor x = Tensor::random(rows, heads * head_dim, 1, 1.0f, 3);
      const Tensor before = x;
      Expected turned(rows, heads * head_dim);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t h = 0; h < heads; ++h) {
          for (int64_t i = 0; i < half; ++i) {
            const int64_t low = h * head_dim + i, high = low + half;
            const double c = cosines(at[static_cast<size_t>(r)], i),
                         s = sines(at[static_cast<size_t>(r)], i);
            turned.add(r, low, x(r, low) * c);
            turned.add(r, low, -x(r, high) * s);
            turned.add(r, high, x(r, high) * c);
            turned.add(r, high, x(r, low) * s);
          }
        }
      }
      using Direction = TokenOps::Direction;
      t.ops.token->rope(x.matrix(), head_dim, cosines.data(), sines.data(), at.data(),
                        Direction::kForward);
      expect_near(x, turned, 3e-7);
      t.ops.token->rope(x.matrix(), head_dim, cosines.data(), sines.data(), at.data(),
                        Direction::kBackward);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t j = 0; j < heads * head_dim; ++j) ASSERT_NEAR(x(r, j), before(r, j), 1e-6);
      }
    }
  });
}

TEST(Dropout, equals_the_documented_draws_and_keeps_the_mean) {
  for_every_shape([](TestDevice& t, int64_t rows, int64_t cols) {
    const float p = 0.3f;
    const uint64_t seed = 0x123456789ABCDEFull, stream = random_stream("dropout", {4});
    std::vector<uint64_t> ids(static_cast<size_t>(rows));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = (uint64_t{1} << 40) + 77 * i;
    const Tensor x = Tensor::random(rows, cols, 1, 1.0f, 2);
    Tensor y(rows, cols, 3), added = Tensor::filled(rows, cols, 1.0f);
    t.ops.token->dropout(x.view(), {p, seed, stream, ids.data()}, y.matrix(), Write::kSet);
    t.ops.token->dropout(x.view(), {p, seed, stream, ids.data()}, added.matrix(), Write::kAdd);
    EXPECT_TRUE(y.sentinels_hold() && added.sentinels_hold());
    const auto key =
        philox4x32({static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32), 0, 0},
                   {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    const float scale = static_cast<float>(1.0 / (1.0 - double{p}));
    int64_t kept = 0;
    for (int64_t i = 0; i < rows; ++i) {
      const uint64_t id = ids[static_cast<size_t>(i)];
      for (int64_t j = 0; j < cols; ++j) {
        const uint32_t draw =
            philox4x32({static_cast<uint32_t>(id), static_cast<uint32_t>(id >> 32),
                        static_cast<uint32_t>(j / 4), 0},
                       {key[0], key[1]})[static_cast<size_t>(j % 4)];
        const bool keep = draw >= static_cast<uint32_t>(double{p} * 0x1p32);
        kept += keep;
        ASSERT_EQ(y(i, j), keep ? x(i, j) * scale : 0.0f);
        ASSERT_NEAR(added(i, j), 1.0f + y(i, j), 1e-6);
      }
    }
    if (rows * cols > 10000) {
      EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(rows * cols), 0.7, 0.02);
    }
  });
}

TEST(Dropout, mask_does_not_depend_on_batch_split_or_device) {
  const int64_t rows = 40, cols = 70;
  std::vector<uint64_t> ids(static_cast<size_t>(rows));
  std::iota(ids.begin(), ids.end(), uint64_t{1000});
  const Tensor x = Tensor::random(rows, cols, 1);
  Tensor whole(rows, cols);
  TestDevice one = make_test_device(KernelSet::kPortable, 1);
  one.ops.token->dropout(x.view(), {0.1f, 5, 6, ids.data()}, whole.matrix(), Write::kSet);
  for_every_device([&](TestDevice& t) {
    Tensor pieces(rows, cols);
    for (int64_t row = 0; row < rows; row += 13) {
      const int64_t num = std::min<int64_t>(13, rows - row);
      const ConstMatrix from(x.data() + row * cols, num, cols, cols);
      const Matrix to = {pieces.data() + row * cols, num, cols, cols};
      t.ops.token->dropout(from, {0.1f, 5, 6, ids.data() + row}, to, Write::kSet);
    }
    EXPECT_TRUE(pieces.same_bits(whole));
  });
  Tensor other(rows, cols);
  one.ops.token->dropout(x.view(), {0.1f, 5, 7, ids.data()}, other.matrix(), Write::kSet);
  EXPECT_FALSE(other.same_bits(whole)) << "another stream gave the same mask";
  one.ops.token->dropout(x.view(), {0.0f, 5, 7, ids.data()}, other.matrix(), Write::kSet);
  EXPECT_TRUE(other.same_bits(x)) << "p = 0 changed something";
}

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

}  // namespace
}  // namespace galley::device
