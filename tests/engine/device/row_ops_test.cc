#include <algorithm>
#include <limits>
#include <numeric>

#include "engine/core/error.h"
#include "tests/engine/device/row_testing.h"

namespace galley::device {
namespace {

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

/// Norms of heads in double precision: y and, where dy is given, dx of one head at (row, column).
struct HeadNorm {
  double rstd = 0;
  std::vector<double> y, dx;
  HeadNorm(const Tensor& x, const Tensor& dy, const Tensor& weight, int64_t row, int64_t column,
           double eps) {
    const int64_t d = weight.cols();
    double squares = 0, dot = 0;
    for (int64_t j = 0; j < d; ++j) {
      squares += double{x(row, column + j)} * x(row, column + j);
      dot += double{dy(row, column + j)} * weight(0, j) * x(row, column + j);
    }
    rstd = 1 / std::sqrt(squares / static_cast<double>(d) + eps);
    for (int64_t j = 0; j < d; ++j) {
      const double value = x(row, column + j), w = weight(0, j);
      y.push_back(value * rstd * w);
      dx.push_back(rstd * w * dy(row, column + j) -
                   value * rstd * rstd * rstd * dot / static_cast<double>(d));
    }
  }
};

const int64_t kHeadDims[] = {1, 5, 16, 64, 100, 128};

TEST(HeadNorm, equals_double_precision_and_the_norm_of_each_head) {
  for_every_device([](TestDevice& t) {
    const int64_t rows = 37, heads = 5;
    const double eps = 1e-6;
    for (const int64_t d : kHeadDims) {
      const Tensor x = Tensor::random(rows, heads * d, 1, 3.0f, 3);
      const Tensor dy = Tensor::random(rows, heads * d, 2, 1.0f, 1);
      const Tensor weight = Tensor::random(1, d, 3);
      Tensor y(rows, heads * d, 2), rstd(rows, heads), dx(rows, heads * d, 4);
      t.ops.token->head_norm_forward(x.view(), d, weight.data(), static_cast<float>(eps),
                                     y.matrix(), rstd.data());
      t.ops.token->head_norm_backward(dy.view(), x.view(), d, weight.data(), rstd.data(),
                                      dx.matrix());
      EXPECT_TRUE(y.sentinels_hold() && rstd.sentinels_hold() && dx.sentinels_hold());
      for (int64_t h = 0; h < heads; ++h) {
        // One head as a matrix of its own.
        const ConstMatrix one(x.data() + h * d, rows, d, heads * d + 3);
        const ConstMatrix d_one(dy.data() + h * d, rows, d, heads * d + 1);
        Tensor one_y(rows, d), one_rstd(rows, 1), one_dx(rows, d);
        t.ops.token->rmsnorm_forward(one, weight.data(), static_cast<float>(eps), one_y.matrix(),
                                     one_rstd.data());
        t.ops.token->rmsnorm_backward(d_one, one, weight.data(), one_rstd.data(), one_dx.matrix(),
                                      Write::kSet);
        for (int64_t i = 0; i < rows; ++i) {
          const HeadNorm expected(x, dy, weight, i, h * d, eps);
          ASSERT_NEAR(rstd(i, h), expected.rstd, 1e-6 * expected.rstd);
          ASSERT_EQ(rstd(i, h), one_rstd(i, 0));
          for (int64_t j = 0; j < d; ++j) {
            const auto at = static_cast<size_t>(j);
            ASSERT_NEAR(y(i, h * d + j), expected.y[at], 1e-6 * std::abs(expected.y[at]));
            ASSERT_NEAR(dx(i, h * d + j), expected.dx[at], 4e-6 * (1 + expected.rstd));
            ASSERT_EQ(y(i, h * d + j), one_y(i, j));
            ASSERT_EQ(dx(i, h * d + j), one_dx(i, j));
          }
        }
      }
    }
  });
}

TEST(HeadNorm, gradient_equals_finite_differences) {
  const int64_t rows = 3, heads = 2, d = 12;
  const double eps = 1e-5, step = 1e-3;
  Tensor x = Tensor::random(rows, heads * d, 1);
  const Tensor dy = Tensor::random(rows, heads * d, 2), weight = Tensor::random(1, d, 3);
  TestDevice t = make_test_device(KernelSet::kAuto, 2);
  Tensor y(rows, heads * d), rstd(rows, heads), dx(rows, heads * d);
  t.ops.token->head_norm_forward(x.view(), d, weight.data(), static_cast<float>(eps), y.matrix(),
                                 rstd.data());
  t.ops.token->head_norm_backward(dy.view(), x.view(), d, weight.data(), rstd.data(), dx.matrix());
  // The sum of dy * y of one head, whose values are x but for one of them.
  const auto loss = [&](int64_t row, int64_t head, int64_t changed, double by) {
    double squares = 0, sum = 0;
    const auto value = [&](int64_t j) { return x(row, head * d + j) + (j == changed ? by : 0.0); };
    for (int64_t j = 0; j < d; ++j) squares += value(j) * value(j);
    const double r = 1 / std::sqrt(squares / static_cast<double>(d) + eps);
    for (int64_t j = 0; j < d; ++j) sum += dy(row, head * d + j) * value(j) * r * weight(0, j);
    return sum;
  };
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t j = 0; j < d; ++j) {
        const double slope = (loss(i, h, j, step) - loss(i, h, j, -step)) / (2 * step);
        ASSERT_NEAR(dx(i, h * d + j), slope, 1e-5);
      }
    }
  }
}

TEST(HeadNorm, works_in_place) {
  for_every_device([](TestDevice& t) {
    for (const int64_t d : kHeadDims) {
      const Tensor x = Tensor::random(9, 3 * d, 1), dy = Tensor::random(9, 3 * d, 2);
      const Tensor weight = Tensor::random(1, d, 3);
      Tensor y(9, 3 * d), rstd(9, 3), dx(9, 3 * d);
      t.ops.token->head_norm_forward(x.view(), d, weight.data(), 1e-5f, y.matrix(), rstd.data());
      t.ops.token->head_norm_backward(dy.view(), x.view(), d, weight.data(), rstd.data(),
                                      dx.matrix());
      Tensor values = x, gradient = dy, again(9, 3);
      t.ops.token->head_norm_forward(values.view(), d, weight.data(), 1e-5f, values.matrix(),
                                     again.data());
      t.ops.token->head_norm_backward(gradient.view(), x.view(), d, weight.data(), again.data(),
                                      gradient.matrix());
      EXPECT_TRUE(values.same_bits(y) && again.same_bits(rstd) && gradient.same_bits(dx));
    }
  });
}

TEST(HeadNorm, wrong_shapes_are_our_mistakes) {
  TestDevice t = make_test_device(KernelSet::kAuto, 1);
  Tensor x(2, 10), rstd(2, 5), weight(1, 4);
  EXPECT_THROW(
      t.ops.token->head_norm_forward(x.view(), 4, weight.data(), 1e-5f, x.matrix(), rstd.data()),
      Error);
  EXPECT_THROW(t.ops.token->head_norm_backward(x.view(), x.view(), 0, weight.data(), rstd.data(),
                                               x.matrix()),
               Error);
}

/// A packed weight and the memory that it lies in.
struct Table {
  std::unique_ptr<Buffer> arena;
  WeightHandle handle;
};
Table make_table(TestDevice& t, WeightKind kind, const Tensor& values, int64_t begin, int64_t end) {
  Table table;
  const uint64_t bytes =
      packed_weight_bytes(t.device->traits(), weight_dtype(kind),
                          static_cast<uint64_t>(end - begin), static_cast<uint64_t>(values.cols()));
  table.arena = std::make_unique<Buffer>(t.device->allocate(bytes, "table"));
  table.handle = {kind, table.arena.get(), 0, end - begin, values.cols(), nullptr};
  t.ops.linear->pack_weight(table.handle, DType::kF32, values.data() + begin * values.cols(), 0,
                            end - begin);
  return table;
}

TEST(GatherRows, ids_of_other_workers_give_zeros) {
  const std::vector<int32_t> ids = {1000,
                                    999,
                                    1069,
                                    1070,
                                    0,
                                    -1,
                                    1033,
                                    1064,
                                    std::numeric_limits<int32_t>::max(),
                                    std::numeric_limits<int32_t>::min()};
  const Tensor values = Tensor::random(70, 33, 1);
  for_every_device([&](TestDevice& t) {
    for (const WeightKind kind : {WeightKind::kF32, WeightKind::kBf16, WeightKind::kInt8}) {
      const Table table = make_table(t, kind, values, 0, 70);
      Tensor y(static_cast<int64_t>(ids.size()), 33, 2), plain(1, 33);
      t.ops.token->gather_rows(table.handle, ids.data(), 1000, y.matrix());
      EXPECT_TRUE(y.sentinels_hold());
      for (int64_t i = 0; i < y.rows(); ++i) {
        const int64_t row = int64_t{ids[static_cast<size_t>(i)]} - 1000;
        const bool mine = row >= 0 && row < 70;
        if (mine) {
          const auto id = static_cast<int32_t>(row);
          t.ops.token->gather_rows(table.handle, &id, 0, plain.matrix());
        }
        for (int64_t j = 0; j < 33; ++j) {
          ASSERT_EQ(y(i, j), mine ? plain(0, j) : 0.0f);
          if (mine && kind == WeightKind::kF32) {
            ASSERT_EQ(y(i, j), values(row, j));
          }
        }
      }
    }
  });
}

TEST(GatherRows, parts_of_a_divided_table_add_up_to_the_whole) {
  const Tensor values = Tensor::random(100, 20, 1);
  std::vector<int32_t> ids(100);
  for (int32_t i = 0; i < 100; ++i) ids[static_cast<size_t>(i)] = i * 37 % 100;
  for_every_device([&](TestDevice& t) {
    for (const WeightKind kind : {WeightKind::kF32, WeightKind::kBf16, WeightKind::kInt8}) {
      Tensor whole(100, 20), sum = Tensor::filled(100, 20, 0.0f), part(100, 20);
      const Table all = make_table(t, kind, values, 0, 100);
      t.ops.token->gather_rows(all.handle, ids.data(), 0, whole.matrix());
      const int64_t cuts[] = {0, 33, 34, 64, 100};
      for (size_t w = 0; w + 1 < std::size(cuts); ++w) {
        const Table table = make_table(t, kind, values, cuts[w], cuts[w + 1]);
        t.ops.token->gather_rows(table.handle, ids.data(), static_cast<int32_t>(cuts[w]),
                                 part.matrix());
        t.ops.elementwise->add(part.view(), sum.matrix());
      }
      EXPECT_TRUE(sum.same_bits(whole));
    }
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

TEST(Dropout, mask_does_not_depend_on_the_division_of_columns) {
  const int64_t rows = 7, cols = 203;
  const uint64_t seed = 11, stream = 12;
  std::vector<uint64_t> ids(static_cast<size_t>(rows));
  std::iota(ids.begin(), ids.end(), uint64_t{1} << 33);
  const Tensor x = Tensor::random(rows, cols, 1);
  for_every_device([&](TestDevice& t) {
    Tensor whole(rows, cols), whole_added = x;
    t.ops.token->dropout(x.view(), {0.4f, seed, stream, ids.data()}, whole.matrix(), Write::kSet);
    t.ops.token->dropout(x.view(), {0.4f, seed, stream, ids.data()}, whole_added.matrix(),
                         Write::kAdd);
    for (const int64_t width : {1, 3, 4, 17, 50, 68, 102}) {
      Tensor parts(rows, cols), added = x;
      for (int64_t column = 0; column < cols; column += width) {
        const int64_t count = std::min(width, cols - column);
        const TokenOps::DropoutMask mask = {0.4f, seed, stream, ids.data(), column};
        const ConstMatrix from(x.data() + column, rows, count, cols);
        t.ops.token->dropout(from, mask, {parts.data() + column, rows, count, cols}, Write::kSet);
        t.ops.token->dropout(from, mask, {added.data() + column, rows, count, cols}, Write::kAdd);
      }
      EXPECT_TRUE(parts.same_bits(whole)) << width << " columns each";
      EXPECT_TRUE(added.same_bits(whole_added)) << width << " columns each";
    }
  });
}

}  // namespace
}  // namespace galley::device
