// Products with int8 weights against exact integer arithmetic.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "engine/device/host/host_ops.h"
#include "tests/engine/device/device_testing.h"

namespace galley::device {
namespace {

/// Nearest integer, halves to even, of the same f32 product that the kernels round.
int32_t nearest(float value) { return static_cast<int32_t>(std::nearbyintf(value)); }

/// What a row becomes: value = scale * quantum.
struct Quantized {
  explicit Quantized(const Tensor& t) : cols(t.cols()), quanta(t.rows() * t.cols()) {
    for (int64_t i = 0; i < t.rows(); ++i) {
      float largest = 0;
      for (int64_t k = 0; k < cols; ++k) largest = std::max(largest, std::abs(t(i, k)));
      const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
      scales.push_back(largest / 127.0f);
      for (int64_t k = 0; k < cols; ++k) quanta[i * cols + k] = nearest(t(i, k) * inverse);
    }
  }
  int32_t at(int64_t i, int64_t k) const { return quanta[static_cast<size_t>(i * cols + k)]; }
  int64_t cols;
  std::vector<int32_t> quanta;
  std::vector<float> scales;
};

struct Weight {
  Buffer arena, bias;
  WeightHandle handle;
};

Weight make_weight(TestDevice& t, const Tensor& plain, bool with_bias = false) {
  Weight w;
  const int64_t out = plain.rows(), in = plain.cols();
  const uint64_t bytes = packed_weight_bytes(t.device->traits(), DType::kI8,
                                             static_cast<uint64_t>(out), static_cast<uint64_t>(in));
  w.arena = t.device->allocate(bytes + 64, "weights");
  std::memset(w.arena.data(), 0x55, w.arena.bytes());  // memory that was used before
  w.handle = {WeightKind::kInt8, &w.arena, 64, out, in, nullptr};
  if (with_bias) {
    w.bias = t.device->allocate(static_cast<size_t>(out) * sizeof(float), "bias");
    for (int64_t i = 0; i < out; ++i) w.bias.at<float>(0)[i] = 0.5f + static_cast<float>(i % 7);
    w.handle.bias = w.bias.at<float>(0);
  }
  t.ops.linear->pack_weight(w.handle, DType::kF32, plain.data(), 0, out);
  return w;
}

/// The product of the quanta: exact integers, then scales in double.
Expected product(const Quantized& x, const Quantized& w) {
  const auto rows = static_cast<int64_t>(x.scales.size()),
             cols = static_cast<int64_t>(w.scales.size());
  Expected result(rows, cols);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      int64_t sum = 0;
      for (int64_t k = 0; k < x.cols; ++k) sum += int64_t{x.at(i, k)} * w.at(j, k);
      result.add(i, j,
                 static_cast<double>(sum) * x.scales[static_cast<size_t>(i)] *
                     w.scales[static_cast<size_t>(j)]);
    }
  }
  return result;
}

constexpr double kF32Steps = 4e-7;  // of the sum and both scales as f32 numbers

struct Shape {
  int64_t tokens, in, out;
};
const Shape kShapes[] = {{1, 1, 1},     {1, 33, 31},   {3, 17, 100},  {2, 64, 32},  {8, 100, 33},
                         {12, 31, 65},  {13, 257, 17}, {25, 48, 96},  {64, 33, 70}, {100, 96, 64},
                         {200, 65, 40}, {7, 700, 37},  {9, 1153, 66}, {31, 4, 1200}};

TEST(Int8, forward_equals_exact_integers) {
  for_every_device([](TestDevice& t) {
    for (const Shape& s : kShapes) {
      SCOPED_TRACE(::testing::Message() << s.tokens << " x " << s.in << " -> " << s.out);
      for (const bool more : {false, true}) {  // with a bias, added to what is there
        const Tensor plain = Tensor::random(s.out, s.in, 11);
        const Weight w = make_weight(t, plain, more);
        const Tensor x = Tensor::random(s.tokens, s.in, 5, 1.0f, 3);
        Tensor y = Tensor::random(s.tokens, s.out, 8, 1.0f, 5);
        Expected expected = product(Quantized(x), Quantized(plain));
        for (int64_t i = 0; more && i < s.tokens; ++i) {
          for (int64_t j = 0; j < s.out; ++j) {
            expected.add(i, j, y(i, j));
            expected.add(i, j, w.handle.bias[j]);
          }
        }
        t.ops.linear->forward(x.view(), w.handle, nullptr, y.matrix(),
                              more ? Write::kAdd : Write::kSet);
        expect_near(y, expected, kF32Steps);
        if (::testing::Test::HasFailure()) return;
      }
    }
  });
}

TEST(Int8, every_number_of_rows) {
  for_every_device([](TestDevice& t) {
    const Tensor plain = Tensor::random(70, 45, 11);
    const Weight w = make_weight(t, plain);
    const Quantized weights(plain);
    for (int64_t rows = 1; rows <= 64; ++rows) {
      const Tensor x = Tensor::random(rows, 45, static_cast<uint64_t>(rows));
      Tensor y(rows, 70, 1);
      t.ops.linear->forward(x.view(), w.handle, nullptr, y.matrix(), Write::kSet);
      expect_near(y, product(Quantized(x), weights), kF32Steps);
      if (::testing::Test::HasFailure()) return;
    }
  });
}

/// All rows of the table and the dot instruction, with what makes sums largest: every 16-bit sum of
/// pairs that saturated would show. Scales are 1, so the sums come out as they are.
TEST(Int8, extremes_do_not_saturate_and_all_instructions_sum_alike) {
  const int64_t in = 1000, out = 40, rows = 14;
  for (const float sign : {1.0f, -1.0f}) {
    Tensor plain = Tensor::filled(out, in, 127.0f);
    Tensor x = Tensor::filled(rows, in, sign * 127.0f);
    for (int64_t k = 0; k < in; ++k) {
      plain(1, k) = k % 2 == 0 ? 127.0f : -127.0f;
      x(1, k) = k % 4 < 2 ? 127.0f : -127.0f;
      plain(2, k) = static_cast<float>(k % 255) - 127.0f;
    }
    TestDevice t = make_test_device(KernelSet::kPortable, 1);
    const Weight w = make_weight(t, plain);
    std::vector<std::pair<std::string, const Int8Kernels*>> all;
    for (const KernelSet set : usable_kernel_sets()) {
      all.emplace_back(kernel_set_name(set), &kernel_table(set).int8);
      all.emplace_back(kernel_set_name(set) + " here", &int8_kernels(kernel_table(set)));
    }
    for (const auto& [name, kernels] : all) {
      SCOPED_TRACE(name);
      Tensor y(rows, out, 3);
      Int8Task task;
      task.a = x.data();
      task.a_row = in;
      task.b = w.arena.at<std::byte>(64);
      task.m = rows;
      task.n = out;
      task.k = in;
      task.c = y.data();
      task.c_row = y.matrix().stride;
      std::vector<float> scratch(kGemmScratchFloats);
      kernels->product(task, 0, rows, 0, out, scratch.data());
      EXPECT_TRUE(y.sentinels_hold());
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < out; ++j) {
          int64_t sum = 0;
          for (int64_t k = 0; k < in; ++k) {
            sum += static_cast<int64_t>(x(i, k)) * static_cast<int64_t>(plain(j, k));
          }
          ASSERT_EQ(static_cast<int64_t>(y(i, j)), sum) << "row " << i << ", output " << j;
        }
      }
    }
  }
}

TEST(Int8, the_longest_sums_fit) {
  TestDevice t = make_test_device(KernelSet::kAuto, 1);
  const Tensor plain = Tensor::filled(33, kMaxInt8Inputs, 127.0f);
  const Weight w = make_weight(t, plain);
  const Tensor x = Tensor::filled(13, kMaxInt8Inputs, 127.0f);
  const double exact = 127.0 * 127.0 * static_cast<double>(kMaxInt8Inputs);
  for (const KernelSet set : usable_kernel_sets()) {
    SCOPED_TRACE(kernel_set_name(set));
    TestDevice other = make_test_device(set, 1);
    Tensor y(13, 33);
    other.ops.linear->forward(x.view(), w.handle, nullptr, y.matrix(), Write::kSet);
    for (int64_t i = 0; i < 13; ++i) {
      for (int64_t j = 0; j < 33; ++j) ASSERT_NEAR(y(i, j), exact, 1e-7 * exact);
    }
  }
  WeightHandle longer = w.handle;
  longer.in = kMaxInt8Inputs + 1;
  longer.out = 1;
  try {
    t.ops.linear->pack_weight(longer, DType::kF32, plain.data(), 0, 1);
    ADD_FAILURE() << "sums would not fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kUnsupported) << error.what();
  }
}

TEST(Int8, one_huge_value_costs_its_row_alone) {
  for_every_device([](TestDevice& t) {
    const Tensor plain = Tensor::random(50, 200, 11);
    const Weight w = make_weight(t, plain);
    Tensor x = Tensor::random(4, 200, 5);
    x(2, 77) = 1e6f;
    Tensor y(4, 50);
    t.ops.linear->forward(x.view(), w.handle, nullptr, y.matrix(), Write::kSet);
    expect_near(y, product(Quantized(x), Quantized(plain)), kF32Steps);
    // All that is left of row 2 is the huge value.
    const Quantized weights(plain);
    for (int64_t j = 0; j < 50; ++j) {
      const double alone = 1e6 * weights.at(j, 77) * weights.scales[static_cast<size_t>(j)];
      EXPECT_NEAR(y(2, j), alone, 1e-6 * std::abs(alone) + 1e-6);
    }
  });
}

/// Each factor is off by half a step at most.
TEST(Int8, error_of_quantizing_stays_within_its_bound) {
  for_every_device([](TestDevice& t) {
    const int64_t rows = 20, in = 300, out = 70;
    const Tensor plain = Tensor::random(out, in, 11), x = Tensor::random(rows, in, 5);
    const Weight w = make_weight(t, plain);
    const Quantized qx(x), qw(plain);
    Tensor y(rows, out);
    t.ops.linear->forward(x.view(), w.handle, nullptr, y.matrix(), Write::kSet);
    double error = 0, size = 0;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < out; ++j) {
        const double sx = 0.5001 * qx.scales[static_cast<size_t>(i)],
                     sw = 0.5001 * qw.scales[static_cast<size_t>(j)];
        double exact = 0, bound = 0;
        for (int64_t k = 0; k < in; ++k) {
          exact += double{x(i, k)} * plain(j, k);
          bound += std::abs(x(i, k)) * sw + std::abs(plain(j, k)) * sx + sx * sw;
        }
        ASSERT_NEAR(y(i, j), exact, bound);
        error += std::pow(y(i, j) - exact, 2);
        size += exact * exact;
      }
    }
    // Errors of steps of width s are spread evenly: s / sqrt(12) each, 1 % of uniform values.
    EXPECT_LT(std::sqrt(error / size), 0.01);
  });
}

TEST(Int8, low_rank_part_stays_f32) {
  for_every_device([](TestDevice& t) {
    const int64_t rows = 9, in = 40, out = 50, rank = 6;
    const Tensor plain = Tensor::random(out, in, 11), x = Tensor::random(rows, in, 5);
    Tensor xa = Tensor::random(rows, rank, 6);
    const Tensor b = Tensor::random(out, rank, 7);
    const Weight w = make_weight(t, plain, true);
    LowRank low_rank;
    low_rank.xa = xa.matrix();
    low_rank.b = b.view();
    low_rank.scale = 0.75f;
    Expected expected = product(Quantized(x), Quantized(plain));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < out; ++j) {
        expected.add(i, j, w.handle.bias[j]);
        for (int64_t k = 0; k < rank; ++k) expected.add(i, j, 0.75 * double{xa(i, k)} * b(j, k));
      }
    }
    Tensor y(rows, out, 2);
    t.ops.linear->forward(x.view(), w.handle, &low_rank, y.matrix(), Write::kSet);
    expect_near(y, expected, 2e-6);
  });
}

TEST(Int8, backward_input_takes_the_values_as_f32) {
  for_every_device([](TestDevice& t) {
    for (const Shape& s : kShapes) {
      SCOPED_TRACE(::testing::Message() << s.tokens << " x " << s.out << " -> " << s.in);
      const Tensor plain = Tensor::random(s.out, s.in, 11);
      const Weight w = make_weight(t, plain);
      const Quantized q(plain);
      const Tensor dy = Tensor::random(s.tokens, s.out, 5, 1.0f, 2);
      const int64_t rank = 3;
      Tensor xa = Tensor::random(s.tokens, rank, 6);
      const Tensor a = Tensor::random(rank, s.in, 7);
      LowRank low_rank;
      low_rank.xa = xa.matrix();
      low_rank.a = a.view();
      Tensor dx = Tensor::random(s.tokens, s.in, 8, 1.0f, 1);
      Expected expected(s.tokens, s.in);
      for (int64_t i = 0; i < s.tokens; ++i) {
        for (int64_t j = 0; j < s.in; ++j) {
          expected.add(i, j, dx(i, j));
          for (int64_t k = 0; k < s.out; ++k) {
            expected.add(i, j, double{dy(i, k)} * q.at(k, j) * q.scales[static_cast<size_t>(k)]);
          }
          for (int64_t k = 0; k < rank; ++k) expected.add(i, j, double{xa(i, k)} * a(k, j));
        }
      }
      t.ops.linear->backward_input(dy.view(), w.handle, &low_rank, dx.matrix(), Write::kAdd);
      expect_near(dx, expected, 4e-6);
      if (::testing::Test::HasFailure()) return;
    }
  });
}

TEST(Int8, sources_pack_alike_in_any_pieces) {
  const int64_t out = 100, in = 19;
  for (const DType source : {DType::kF32, DType::kBf16, DType::kF16}) {
    TestDevice t = make_test_device(KernelSet::kAuto, 2);
    // Multiples of 1/8 below 16: exact in all three.
    Tensor plain(out, in);
    std::vector<uint16_t> narrow;
    for (int64_t i = 0; i < out; ++i) {
      for (int64_t j = 0; j < in; ++j) {
        const int64_t eighths = (i * 31 + j * 7) % 255 - 127;
        plain(i, j) = static_cast<float>(eighths) / 8;
        narrow.push_back(f32_to_bf16(plain(i, j)));
        if (source != DType::kF16) continue;
        // f16: find the bits by halving the magnitude down to its leading one.
        const auto size = static_cast<uint32_t>(std::abs(eighths));
        const int lead = size == 0 ? 0 : 31 - std::countl_zero(size);
        const uint32_t bits =
            size == 0 ? 0u
                      : static_cast<uint32_t>(lead - 3 + 15) << 10 | (size << (10 - lead) & 0x3FFu);
        narrow.back() = static_cast<uint16_t>(bits | (eighths < 0 ? 0x8000u : 0u));
      }
    }
    const Weight whole = make_weight(t, plain);
    Buffer arena = t.device->allocate(whole.arena.bytes(), "pieces");
    std::memset(arena.data(), 0x7F, arena.bytes());
    WeightHandle pieces = whole.handle;
    pieces.arena = &arena;
    for (int64_t row = 0; row < out; row += 7) {
      const int64_t count = std::min<int64_t>(7, out - row);
      const void* from = source == DType::kF32 ? static_cast<const void*>(plain.data() + row * in)
                                               : narrow.data() + row * in;
      t.ops.linear->pack_weight(pieces, source, from, row, count);
    }
    EXPECT_EQ(std::memcmp(whole.arena.at<char>(64), arena.at<char>(64), arena.bytes() - 64), 0)
        << dtype_name(source);
    // Rows come back as scale times quantum.
    const Quantized q(plain);
    const std::vector<int32_t> ids = {0, 99, 33, 31, 32};
    Tensor rows(5, in, 2);
    t.ops.token->gather_rows(pieces, ids.data(), 0, rows.matrix());
    EXPECT_TRUE(rows.sentinels_hold());
    for (int64_t i = 0; i < 5; ++i) {
      const auto row = static_cast<size_t>(ids[static_cast<size_t>(i)]);
      for (int64_t j = 0; j < in; ++j) {
        EXPECT_EQ(rows(i, j),
                  static_cast<float>(q.at(ids[static_cast<size_t>(i)], j)) * q.scales[row]);
      }
    }
  }
}

TEST(Int8, halves_round_to_even) {
  TestDevice t = make_test_device(KernelSet::kAuto, 1);
  Tensor plain(1, 5);
  const float values[] = {127.0f, 0.5f, 1.5f, -2.5f, -3.5f}, rounded[] = {127, 0, 2, -2, -4};
  for (int64_t j = 0; j < 5; ++j) plain(0, j) = values[j];
  const Weight w = make_weight(t, plain);
  const int32_t id = 0;
  Tensor row(1, 5);
  t.ops.token->gather_rows(w.handle, &id, 0, row.matrix());
  for (int64_t j = 0; j < 5; ++j) EXPECT_EQ(row(0, j), rounded[j]);
}

TEST(Int8, zero_and_tiny_rows_and_values_that_are_not_finite) {
  for_every_device([](TestDevice& t) {
    Tensor plain = Tensor::random(40, 30, 11);
    for (int64_t k = 0; k < 30; ++k) plain(3, k) = 0, plain(4, k) = 1e-40f;
    const Weight w = make_weight(t, plain, true);
    Tensor x = Tensor::random(5, 30, 5);
    for (int64_t k = 0; k < 30; ++k) x(1, k) = 0, x(2, k) = 1e-42f;
    x(3, 7) = std::numeric_limits<float>::quiet_NaN();
    x(4, 29) = -std::numeric_limits<float>::infinity();
    Tensor y(5, 40);
    t.ops.linear->forward(x.view(), w.handle, nullptr, y.matrix(), Write::kSet);
    EXPECT_TRUE(y.sentinels_hold());
    for (int64_t j = 0; j < 40; ++j) {
      EXPECT_EQ(y(1, j), w.handle.bias[j]);
      EXPECT_EQ(y(2, j), w.handle.bias[j]);
      EXPECT_TRUE(std::isnan(y(3, j)) && std::isnan(y(4, j))) << j;
    }
    EXPECT_EQ(y(0, 3), w.handle.bias[3]);
    EXPECT_EQ(y(0, 4), w.handle.bias[4]);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      plain(17, 29) = bad;
      try {
        t.ops.linear->pack_weight(w.handle, DType::kF32, plain.data(), 0, 40);
        ADD_FAILURE() << "packed " << bad;
      } catch (const Error& error) {
        EXPECT_EQ(error.reason(), Reason::kBadModel);
        EXPECT_NE(std::string(error.what()).find("row 17"), std::string::npos) << error.what();
      }
    }
  });
}

}  // namespace
}  // namespace galley::device
