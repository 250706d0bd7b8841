#include <limits>

#include "tests/engine/device/device_testing.h"

namespace galley::device {
namespace {

const int64_t kCounts[] = {0, 1, 3, 17, 100, 4096, 4097, 70001};

TEST(AdamW, follows_the_published_update) {
  for_every_device([](TestDevice& t) {
    for (const int64_t count : kCounts) {
      Tensor w = Tensor::random(1, count, 1), m = Tensor::filled(1, count, 0.0f), v = m;
      std::vector<double> dw(static_cast<size_t>(count)), dm(dw), dv(dw);
      for (int64_t i = 0; i < count; ++i) dw[static_cast<size_t>(i)] = w(0, i);
      AdamWStep step;
      step.learning_rate = 1e-2;
      step.weight_decay = 0.1;
      step.gradient_scale = 0.5f;
      for (step.step = 1; step.step <= 4; ++step.step) {
        const Tensor g = Tensor::random(1, count, static_cast<uint64_t>(10 + step.step), 2.0f);
        t.ops.optimizer->adamw(w.data(), g.data(), m.data(), v.data(), count, step);
        const double n = static_cast<double>(step.step);
        for (size_t i = 0; i < dw.size(); ++i) {
          const double grad = 0.5 * g(0, static_cast<int64_t>(i));
          dw[i] *= 1 - 1e-2 * 0.1;
          dm[i] = 0.9 * dm[i] + 0.1 * grad;
          dv[i] = 0.999 * dv[i] + 0.001 * grad * grad;
          const double m_hat = dm[i] / (1 - std::pow(0.9, n)),
                       v_hat = dv[i] / (1 - std::pow(0.999, n));
          dw[i] -= 1e-2 * m_hat / (std::sqrt(v_hat) + 1e-8);
        }
      }
      EXPECT_TRUE(w.sentinels_hold() && m.sentinels_hold() && v.sentinels_hold());
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_NEAR(w(0, i), dw[static_cast<size_t>(i)], 1e-6) << i << " of " << count;
        ASSERT_NEAR(m(0, i), dm[static_cast<size_t>(i)], 1e-6);
        ASSERT_NEAR(v(0, i), dv[static_cast<size_t>(i)], 1e-8);
      }
    }
  });
}

TEST(AdamW, the_first_step_has_the_size_of_the_learning_rate) {
  for_every_device([](TestDevice& t) {
    Tensor w = Tensor::filled(1, 33, 1.0f), g = Tensor::filled(1, 33, -123.0f),
           m = Tensor::filled(1, 33, 0.0f), v = m;
    AdamWStep step;
    step.learning_rate = 0.25;
    t.ops.optimizer->adamw(w.data(), g.data(), m.data(), v.data(), 33, step);
    for (int64_t i = 0; i < 33; ++i) EXPECT_NEAR(w(0, i), 1.25f, 1e-6f);
  });
}

TEST(SumOfSquares, is_exact_to_double_precision_and_the_same_for_all_threads_and_kernels) {
  for (const int64_t count : kCounts) {
    const Tensor x = Tensor::random(1, count, 3, 100.0f);
    double expected = 0;
    for (int64_t i = 0; i < count; ++i) expected += double{x(0, i)} * x(0, i);
    TestDevice one = make_test_device(KernelSet::kPortable, 1);
    const double reference = one.ops.optimizer->sum_of_squares(x.data(), count);
    EXPECT_NEAR(reference, expected, 1e-12 * expected);
    for_every_device([&](TestDevice& t) {
      EXPECT_EQ(t.ops.optimizer->sum_of_squares(x.data(), count), reference) << count;
    });
  }
  const int64_t large = 5'000'011;
  const Tensor x = Tensor::random(1, large, 4);
  TestDevice one = make_test_device(KernelSet::kAuto, 1),
             three = make_test_device(KernelSet::kAuto, 3);
  EXPECT_EQ(one.ops.optimizer->sum_of_squares(x.data(), large),
            three.ops.optimizer->sum_of_squares(x.data(), large));
}

TEST(AllFinite, finds_one_bad_value_anywhere) {
  for_every_device([](TestDevice& t) {
    for (const int64_t count : kCounts) {
      Tensor x = Tensor::random(1, count, 5, 1e30f);
      EXPECT_TRUE(t.ops.optimizer->all_finite(x.data(), count));
      for (const int64_t at : {int64_t{0}, count / 2, count - 1}) {
        if (count == 0) continue;
        for (const float bad :
             {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
              std::numeric_limits<float>::quiet_NaN()}) {
          const float old = x(0, at);
          x(0, at) = bad;
          EXPECT_FALSE(t.ops.optimizer->all_finite(x.data(), count)) << at << " of " << count;
          x(0, at) = old;
        }
      }
    }
  });
}

}  // namespace
}  // namespace galley::device
