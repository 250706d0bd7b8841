#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "tests/engine/device/device_testing.h"

namespace galley::device {
namespace {

constexpr double kRounding = 4e-6;

/// Values of a weight [out, in] that its kind holds exactly.
Tensor weight_values(WeightKind kind, int64_t out, int64_t in) {
  Tensor values = Tensor::random(out, in, 11);
  for (int64_t i = 0; kind == WeightKind::kBf16 && i < out; ++i) {
    for (int64_t j = 0; j < in; ++j) values(i, j) = bf16_to_f32(f32_to_bf16(values(i, j)));
  }
  return values;
}

/// A weight with its packed copy.
struct Weight {
  Tensor plain;
  Buffer arena;
  Buffer bias;
  WeightHandle handle;
};

std::unique_ptr<Weight> make_weight(TestDevice& t, WeightKind kind, int64_t out, int64_t in,
                                    bool with_bias) {
  auto result = std::make_unique<Weight>(Weight{weight_values(kind, out, in), {}, {}, {}});
  Weight& w = *result;
  const DType dtype = kind == WeightKind::kF32 ? DType::kF32 : DType::kBf16;
  const uint64_t bytes = packed_weight_bytes(t.device->traits(), dtype, static_cast<uint64_t>(out),
                                             static_cast<uint64_t>(in));
  w.arena = t.device->allocate(bytes + 128, "weights");
  w.handle = {kind, &w.arena, 64, out, in, nullptr};
  if (with_bias) {
    w.bias = t.device->allocate(static_cast<size_t>(out) * sizeof(float), "bias");
    for (int64_t i = 0; i < out; ++i) w.bias.at<float>(0)[i] = 0.5f + static_cast<float>(i % 7);
    w.handle.bias = w.bias.at<float>(0);
  }
  t.ops.linear->pack_weight(w.handle, DType::kF32, w.plain.data(), 0, out);
  return result;
}

/// Whether the left operand of products with such weights is rounded to bf16.
bool rounds(const TestDevice& t, WeightKind kind) {
  return kind == WeightKind::kBf16 && kernel_set_rounds(t.device->kernels());
}

/// `value` as a product takes it. That results then agree as closely as those of exact kernels
/// shows that nothing but this rounding differs.
double as_taken(bool rounded, float value) {
  return rounded ? bf16_to_f32(f32_to_bf16(value)) : value;
}

/// Adds scale * left right: `left` (i, k) and `right` (k, j) give values.
template <class Left, class Right>
void add_product(double scale, int64_t depth, const Left& left, const Right& right, Expected* to) {
  const int64_t rows = static_cast<int64_t>(to->value.size()) / std::max<int64_t>(to->cols, 1);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < to->cols; ++j) {
      for (int64_t k = 0; k < depth; ++k) to->add(i, j, scale * left(i, k) * right(k, j));
    }
  }
}

void add_values(const Tensor& values, Expected* to) {
  for (int64_t i = 0; i < values.rows(); ++i) {
    for (int64_t j = 0; j < values.cols(); ++j) to->add(i, j, values(i, j));
  }
}

struct Shape {
  int64_t tokens, in, out, lora_rank;
};
const Shape kShapes[] = {
    {1, 1, 1, 0},     {1, 33, 31, 3},   {3, 17, 100, 2},   {5, 64, 32, 8},      {8, 100, 33, 16},
    {12, 31, 65, 64}, {13, 257, 17, 1}, {25, 48, 96, 5},   {64, 33, 70, 16},    {100, 96, 64, 31},
    {200, 65, 40, 4}, {255, 20, 33, 2}, {7, 700, 37, 9},   {270, 1200, 33, 16}, {31, 40, 1200, 6},
    {9, 1153, 66, 0}, {3, 30, 50, 300}, {301, 70, 130, 5}, {40, 2401, 33, 3},   {37, 33, 1290, 2}};

using Activation = LowRank::Activation;

/// Of a narrow product that may have rounded both its operands.
constexpr double kRoundedTwice = 1.0 / 256;

class LinearTest : public ::testing::TestWithParam<WeightKind> {
 protected:
  /// A call with and without low rank, given and computed, setting and adding, on one shape.
  void check_forward(const Shape& s);
  void check_backward(const Shape& s);
};

void LinearTest::check_forward(const Shape& s) {
  const Tensor plain = weight_values(GetParam(), s.out, s.in);
  const Tensor x = Tensor::random(s.tokens, s.in, 5, 1.0f, 3);
  const Tensor given = Tensor::random(s.tokens, s.lora_rank, 6, 1.0f, 1);
  const Tensor a = Tensor::random(s.lora_rank, s.in, 9, 1.0f, 5);
  const Tensor b = Tensor::random(s.out, s.lora_rank, 7, 1.0f, 2);
  const Tensor start = Tensor::random(s.tokens, s.out, 8, 1.0f, 5);
  Expected activation(s.tokens, s.lora_rank), exact(s.tokens, s.out), rounded = exact;
  const auto weight = [&](int64_t k, int64_t j) { return plain(j, k); };
  const auto input = [&](int64_t i, int64_t k) { return double{x(i, k)}; };
  add_product(1, s.in, input, weight, &exact);
  add_product(
      1, s.in, [&](int64_t i, int64_t k) { return as_taken(true, x(i, k)); }, weight, &rounded);
  add_product(
      1, s.in, input, [&](int64_t k, int64_t j) { return a(j, k); }, &activation);
  for_every_device([&](TestDevice& t) {
    for (const Activation kind : {Activation::kGiven, Activation::kComputed}) {
      for (const Write write : {Write::kSet, Write::kAdd}) {
        const bool with_bias = write == Write::kAdd;
        const auto w = make_weight(t, GetParam(), s.out, s.in, with_bias);
        Tensor xa = given, y = start;
        const LowRank low_rank = {kind, xa.matrix(), b.view(), a.view(), 0.75f};
        t.ops.linear->forward(x.view(), w->handle, s.lora_rank > 0 ? &low_rank : nullptr,
                              y.matrix(), write);
        if (s.lora_rank > 0 && kind == Activation::kComputed) {
          expect_near(xa, activation, rounds(t, GetParam()) ? kRoundedTwice : kRounding);
        } else {
          EXPECT_TRUE(xa.same_bits(given));
        }
        Expected expected = rounds(t, GetParam()) ? rounded : exact;
        if (write == Write::kAdd) add_values(start, &expected);
        for (int64_t i = 0; with_bias && i < s.tokens; ++i) {
          for (int64_t j = 0; j < s.out; ++j) expected.add(i, j, w->handle.bias[j]);
        }
        add_product(
            0.75, s.lora_rank, [&](int64_t i, int64_t k) { return double{xa(i, k)}; },
            [&](int64_t k, int64_t j) { return b(j, k); }, &expected);
        expect_near(y, expected, kRounding);
        if (::testing::Test::HasFailure()) return;
      }
    }
  });
}

TEST_P(LinearTest, forward_equals_double_precision) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(::testing::Message()
                 << s.tokens << " x " << s.in << " -> " << s.out << " r " << s.lora_rank);
    check_forward(s);
    if (HasFailure()) return;
  }
}

void LinearTest::check_backward(const Shape& s) {
  constexpr float kScale = 3.0f;
  const Tensor plain = weight_values(GetParam(), s.out, s.in);
  const Tensor dy = Tensor::random(s.tokens, s.out, 5, 1.0f, 2);
  const Tensor given = Tensor::random(s.tokens, s.lora_rank, 6);
  const Tensor a = Tensor::random(s.lora_rank, s.in, 7, 1.0f, 4);
  const Tensor b = Tensor::random(s.out, s.lora_rank, 9, 1.0f, 1);
  const Tensor start = Tensor::random(s.tokens, s.in, 8, 1.0f, 1);
  Expected activation(s.tokens, s.lora_rank), exact(s.tokens, s.in), rounded = exact;
  const auto weight = [&](int64_t k, int64_t j) { return plain(k, j); };
  const auto input = [&](int64_t i, int64_t k) { return double{dy(i, k)}; };
  add_product(1, s.out, input, weight, &exact);
  add_product(
      1, s.out, [&](int64_t i, int64_t k) { return as_taken(true, dy(i, k)); }, weight, &rounded);
  add_product(
      kScale, s.out, input, [&](int64_t k, int64_t j) { return b(k, j); }, &activation);
  for_every_device([&](TestDevice& t) {
    const auto w = make_weight(t, GetParam(), s.out, s.in, true);
    for (const Activation kind : {Activation::kGiven, Activation::kComputed}) {
      for (const Write write : {Write::kSet, Write::kAdd}) {
        Tensor dxa = given, dx = start;
        const LowRank low_rank = {kind, dxa.matrix(), b.view(), a.view(), kScale};
        t.ops.linear->backward_input(dy.view(), w->handle, s.lora_rank > 0 ? &low_rank : nullptr,
                                     dx.matrix(), write);
        if (s.lora_rank > 0 && kind == Activation::kComputed) {
          expect_near(dxa, activation, rounds(t, GetParam()) ? kRoundedTwice : kRounding);
        } else {
          EXPECT_TRUE(dxa.same_bits(given));
        }
        Expected expected = rounds(t, GetParam()) ? rounded : exact;
        if (write == Write::kAdd) add_values(start, &expected);
        add_product(
            1, s.lora_rank, [&](int64_t i, int64_t k) { return double{dxa(i, k)}; },
            [&](int64_t k, int64_t j) { return a(k, j); }, &expected);
        expect_near(dx, expected, kRounding);
        if (::testing::Test::HasFailure()) return;
      }
    }
  });
}

TEST_P(LinearTest, backward_input_equals_double_precision_and_ignores_bias) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(::testing::Message()
                 << s.tokens << " x " << s.out << " -> " << s.in << " r " << s.lora_rank);
    check_backward(s);
    if (HasFailure()) return;
  }
}

TEST_P(LinearTest, infinity_and_nan_stay_in_their_rows_and_outputs) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for_every_device([](TestDevice& t) {
    for (const int64_t tokens : {1, 5, 50}) {
      const int64_t in = 37, out = 45;
      const auto weight = make_weight(t, GetParam(), out, in, false);
      Tensor x = Tensor::random(tokens, in, 5), dy = Tensor::random(tokens, out, 6);
      const int64_t last = tokens - 1;
      x(last, in - 1) = kInfinity;  // the last of an odd number of inputs
      dy(last, out - 1) = -kInfinity;
      if (tokens > 1) x(0, 3) = dy(0, 4) = kNan;
      Tensor y(tokens, out), dx(tokens, in);
      t.ops.linear->forward(x.view(), weight->handle, nullptr, y.matrix(), Write::kSet);
      t.ops.linear->backward_input(dy.view(), weight->handle, nullptr, dx.matrix(), Write::kSet);
      for (int64_t i = 0; i < tokens; ++i) {
        const bool nan = i == 0 && tokens > 1;
        for (int64_t j = 0; j < out; ++j) {
          if (i == last) {
            EXPECT_EQ(y(i, j), std::copysign(kInfinity, weight->plain(j, in - 1)));
          } else {
            EXPECT_EQ(std::isnan(y(i, j)), nan);
            EXPECT_EQ(std::isfinite(y(i, j)), !nan);
          }
        }
        for (int64_t j = 0; j < in; ++j) {
          if (i == last) {
            EXPECT_EQ(dx(i, j), -std::copysign(kInfinity, weight->plain(out - 1, j)));
          } else {
            EXPECT_EQ(std::isnan(dx(i, j)), nan);
            EXPECT_EQ(std::isfinite(dx(i, j)), !nan);
          }
        }
      }
    }
  });
}

TEST_P(LinearTest, left_operands_are_rounded_to_nearest_even_or_not_at_all) {
  for_every_device([](TestDevice& t) {
    // Halfway between two bf16 numbers, the even one below and above; next to the largest
    // number and to the smallest normal one.
    const float values[] = {1.00390625f, 1.01171875f, -1.00390625f, 1.0039063f, 3.3961e38f,
                            -0.0f,       1.0f,        0.1f,         1.2e-38f};
    const int64_t count = std::size(values);
    const auto weight = make_weight(t, GetParam(), 32, count, false);
    Tensor one = Tensor::filled(32, count, 0.0f);
    for (int64_t j = 0; j < count; ++j) one(j, j) = 1.0f;
    t.ops.linear->pack_weight(weight->handle, DType::kF32, one.data(), 0, 32);
    for (const int64_t tokens : {1, 3, 14}) {
      Tensor x(tokens, count), y(tokens, 32);
      for (int64_t i = 0; i < tokens; ++i) {
        for (int64_t j = 0; j < count; ++j) x(i, j) = values[j];
      }
      t.ops.linear->forward(x.view(), weight->handle, nullptr, y.matrix(), Write::kSet);
      for (int64_t i = 0; i < tokens; ++i) {
        for (int64_t j = 0; j < count; ++j) {
          EXPECT_EQ(y(i, j), as_taken(rounds(t, GetParam()), values[j])) << values[j];
        }
      }
    }
  });
}

TEST_P(LinearTest, packs_row_ranges_like_the_whole) {
  for (const int64_t out : {1, 31, 33, 100, 257}) {
    TestDevice t = make_test_device(KernelSet::kAuto, 2);
    const auto weight = make_weight(t, GetParam(), out, 19, false);
    const Weight& whole = *weight;
    const Tensor plain = Tensor::random(out, 19, 11);
    Buffer arena = t.device->allocate(whole.arena.bytes(), "pieces");
    // Memory that was used before: the padding must be cleared as well.
    std::memset(arena.data(), 0x7F, arena.bytes());
    WeightHandle pieces = whole.handle;
    pieces.arena = &arena;
    for (int64_t row = 0; row < out; row += 7) {
      t.ops.linear->pack_weight(pieces, DType::kF32, plain.data() + row * 19, row,
                                std::min<int64_t>(7, out - row));
    }
    const size_t bytes = whole.arena.bytes() - 128;
    EXPECT_EQ(std::memcmp(whole.arena.at<char>(64), arena.at<char>(64), bytes), 0) << out;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, LinearTest, ::testing::Values(WeightKind::kF32, WeightKind::kBf16),
                         [](const auto& kind) {
                           return kind.param == WeightKind::kF32 ? "f32" : "bf16";
                         });

TEST(PackWeight, bf16_sources_come_back_unchanged) {
  TestDevice t = make_test_device(KernelSet::kAuto, 2);
  const int64_t out = 70, in = 41;
  std::vector<uint16_t> source(static_cast<size_t>(out * in));
  for (size_t i = 0; i < source.size(); ++i)
    source[i] = static_cast<uint16_t>(0x3C00 + 7 * i % 1024);
  for (const WeightKind kind : {WeightKind::kF32, WeightKind::kBf16}) {
    Buffer arena = t.device->allocate(96 * 41 * 4 + 64, "weights");
    const WeightHandle handle = {kind, &arena, 0, out, in, nullptr};
    t.ops.linear->pack_weight(handle, DType::kBf16, source.data(), 0, out);
    std::vector<int32_t> ids(static_cast<size_t>(out));
    for (int32_t i = 0; i < out; ++i) ids[static_cast<size_t>(i)] = i;
    Tensor y(out, in, 2);
    t.ops.token->gather_rows(handle, ids.data(), 0, y.matrix());
    EXPECT_TRUE(y.sentinels_hold());
    for (int64_t i = 0; i < out; ++i) {
      for (int64_t j = 0; j < in; ++j) {
        ASSERT_EQ(f32_to_bf16(y(i, j)), source[static_cast<size_t>(i * in + j)]);
      }
    }
  }
}

TEST(PackWeight, f16_sources_are_widened_exactly_and_rounded_to_nearest_even_for_bf16) {
  TestDevice t = make_test_device(KernelSet::kAuto, 1);
  // 1 + 2^-8 lies between two bf16 numbers and goes to the even one; 1 + 3 * 2^-8 goes up.
  const std::vector<uint16_t> source = {0x3C04, 0x3C0C, 0xC000, 0x0001};
  const float exact[] = {1.00390625f, 1.01171875f, -2.0f, 5.9604644775390625e-08f};
  const float rounded[] = {1.0f, 1.015625f, -2.0f, 5.9604644775390625e-08f};
  for (const WeightKind kind : {WeightKind::kF32, WeightKind::kBf16}) {
    Buffer arena = t.device->allocate(4096, "weights");
    const WeightHandle handle = {kind, &arena, 0, 1, 4, nullptr};
    t.ops.linear->pack_weight(handle, DType::kF16, source.data(), 0, 1);
    const int32_t id = 0;
    Tensor y(1, 4);
    t.ops.token->gather_rows(handle, &id, 0, y.matrix());
    for (int64_t j = 0; j < 4; ++j) {
      EXPECT_EQ(y(0, j), kind == WeightKind::kF32 ? exact[j] : rounded[j]);
    }
  }
}

TEST(Matmul, all_three_forms_equal_double_precision) {
  struct Product {
    int64_t m, n, k;
  };
  const Product kProducts[] = {{1, 1, 1},      {3, 17, 31},  {16, 100, 33},  {100, 16, 257},
                               {33, 33, 33},   {2, 64, 700}, {300, 8, 96},   {64, 65, 66},
                               {17, 1, 1200},  {1, 257, 5},  {290, 300, 40}, {16, 1100, 65},
                               {1100, 16, 65}, {5, 7, 0}};
  for_every_device([&](TestDevice& t) {
    for (const Product& p : kProducts) {
      for (const Write write : {Write::kSet, Write::kAdd}) {
        SCOPED_TRACE(::testing::Message() << p.m << " x " << p.n << " x " << p.k);
        const Tensor a = Tensor::random(p.m, p.k, 1, 1.0f, 3),
                     at = Tensor::random(p.k, p.m, 2, 1.0f, 1);
        const Tensor b = Tensor::random(p.k, p.n, 3, 1.0f, 2), bt = Tensor::random(p.n, p.k, 4);
        const Tensor start = Tensor::random(p.m, p.n, 5, 1.0f, 6);
        const float alpha = write == Write::kAdd ? -1.5f : 1.0f;
        Expected nt(p.m, p.n), nn(p.m, p.n), tn(p.m, p.n);
        for (int64_t i = 0; i < p.m; ++i) {
          for (int64_t j = 0; j < p.n; ++j) {
            for (Expected* e : {&nt, &nn, &tn}) {
              if (write == Write::kAdd) e->add(i, j, start(i, j));
            }
            for (int64_t k = 0; k < p.k; ++k) {
              nt.add(i, j, double{alpha} * a(i, k) * bt(j, k));
              nn.add(i, j, double{alpha} * a(i, k) * b(k, j));
              tn.add(i, j, double{alpha} * at(k, i) * b(k, j));
            }
          }
        }
        Tensor c = start;
        t.ops.linear->matmul_nt(a.view(), bt.view(), alpha, c.matrix(), write);
        expect_near(c, nt, kRounding);
        c = start;
        t.ops.linear->matmul_nn(a.view(), b.view(), alpha, c.matrix(), write);
        expect_near(c, nn, kRounding);
        c = start;
        t.ops.linear->matmul_tn(at.view(), b.view(), alpha, c.matrix(), write);
        expect_near(c, tn, kRounding);
        if (::testing::Test::HasFailure()) return;
      }
    }
  });
}

TEST(Linear, pain_P200_repeated_runs_are_bit_equal) {
  for_every_device([](TestDevice& t) {
    const auto weight = make_weight(t, WeightKind::kBf16, 300, 260, false);
    const Weight& w = *weight;
    const Tensor x = Tensor::random(150, 260, 5);
    Tensor first(150, 300);
    t.ops.linear->forward(x.view(), w.handle, nullptr, first.matrix(), Write::kSet);
    for (int run = 0; run < 3; ++run) {
      Tensor again(150, 300);
      t.ops.linear->forward(x.view(), w.handle, nullptr, again.matrix(), Write::kSet);
      EXPECT_TRUE(again.same_bits(first));
    }
  });
}

TEST(Linear, wrong_shapes_are_our_mistakes) {
  TestDevice t = make_test_device(KernelSet::kAuto, 1);
  const auto weight = make_weight(t, WeightKind::kF32, 10, 20, false);
  const Weight& w = *weight;
  const Tensor x = Tensor::random(4, 20, 1);
  Tensor y(4, 11), small(3, 10), good(4, 10);
  LinearOps& ops = *t.ops.linear;
  EXPECT_THROW(ops.forward(x.view(), w.handle, nullptr, y.matrix(), Write::kSet), Error);
  EXPECT_THROW(ops.forward(x.view(), w.handle, nullptr, small.matrix(), Write::kSet), Error);
  EXPECT_THROW(ops.matmul_nn(x.view(), x.view(), 1.0f, good.matrix(), Write::kSet), Error);
  Tensor xa(4, 3), up(10, 3);
  LowRank low_rank = {Activation::kGiven, xa.matrix(), up.view(), {}, 1.0f};
  EXPECT_NO_THROW(ops.forward(x.view(), w.handle, &low_rank, good.matrix(), Write::kSet));
  low_rank.activation = Activation::kComputed;
  EXPECT_THROW(ops.forward(x.view(), w.handle, &low_rank, good.matrix(), Write::kSet), Error);
  WeightHandle outside = w.handle;
  outside.offset_bytes = w.arena.bytes() - 64;
  EXPECT_THROW(ops.forward(x.view(), outside, nullptr, good.matrix(), Write::kSet), Error);
  EXPECT_THROW(ops.pack_weight(w.handle, DType::kI32, x.data(), 0, 1), Error);
  EXPECT_THROW(ops.pack_weight(w.handle, DType::kF32, x.data(), 9, 2), Error);
}

}  // namespace
}  // namespace galley::device
