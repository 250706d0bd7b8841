// What the tests of device operations share: devices of every usable kernel set and thread count,
// tensors with sentinels around them, comparison with double precision.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/random.h"
#include "engine/device/host/host_device.h"

namespace galley::device {

/// A host device with its stream and operations.
struct TestDevice {
  std::unique_ptr<HostDevice> device;
  std::unique_ptr<Stream> stream;
  OpSet ops;
};

inline TestDevice make_test_device(KernelSet kernels, int num_threads) {
  HostDeviceOptions options;
  options.capacity_bytes = uint64_t{1} << 30;
  options.num_threads = num_threads;
  options.kernels = kernels;
  TestDevice result;
  result.device = HostDevice::create(options);
  result.stream = result.device->create_stream();
  result.ops = result.device->all_ops(*result.stream);
  return result;
}

/// Runs `body` for every usable kernel set with 1, 2 and 3 threads.
inline void for_every_device(const std::function<void(TestDevice&)>& body) {
  for (const KernelSet set : usable_kernel_sets()) {
    for (const int threads : {1, 2, 3}) {
      SCOPED_TRACE(kernel_set_name(set) + ", " + std::to_string(threads) + " threads");
      TestDevice device = make_test_device(set, threads);
      body(device);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

/// A row-major matrix with sentinels before, after and between its rows.
class Tensor {
 public:
  static constexpr float kSentinel = -7.75e33f;
  static constexpr int64_t kMargin = 64;

  Tensor(int64_t rows, int64_t cols, int64_t gap = 0)
      : rows_(rows),
        cols_(cols),
        stride_(cols + gap),
        values_(static_cast<size_t>(rows * (cols + gap) + 2 * kMargin), kSentinel) {}

  static Tensor random(int64_t rows, int64_t cols, uint64_t seed, float size = 1.0f,
                       int64_t gap = 0) {
    Tensor t(rows, cols, gap);
    Random draw(seed, random_stream("device test"));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) t(i, j) = size * (2.0f * draw.uniform_f32() - 1.0f);
    }
    return t;
  }
  static Tensor filled(int64_t rows, int64_t cols, float value, int64_t gap = 0) {
    Tensor t(rows, cols, gap);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) t(i, j) = value;
    }
    return t;
  }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  float* data() { return values_.data() + kMargin; }
  const float* data() const { return values_.data() + kMargin; }
  float& operator()(int64_t i, int64_t j) { return data()[i * stride_ + j]; }
  float operator()(int64_t i, int64_t j) const { return data()[i * stride_ + j]; }
  Matrix matrix() { return {data(), rows_, cols_, stride_}; }
  ConstMatrix view() const { return {data(), rows_, cols_, stride_}; }
  bool same_bits(const Tensor& other) const {
    return values_.size() == other.values_.size() &&
           std::memcmp(values_.data(), other.values_.data(), values_.size() * sizeof(float)) == 0;
  }

  /// True when nothing outside the matrix was written.
  bool sentinels_hold() const {
    const int64_t total = static_cast<int64_t>(values_.size());
    for (int64_t i = 0; i < total; ++i) {
      const int64_t at = i - kMargin;
      const bool inside = at >= 0 && at < rows_ * stride_ && at % stride_ < cols_;
      if (!inside && values_[static_cast<size_t>(i)] != kSentinel) return false;
    }
    return true;
  }

 private:
  int64_t rows_, cols_, stride_;
  std::vector<float> values_;
};

/// Expected values in double precision with the error that each may have.
struct Expected {
  Expected(int64_t num_rows, int64_t num_cols)
      : cols(num_cols), value(static_cast<size_t>(num_rows * num_cols)), size(value.size()) {}
  double& at(int64_t i, int64_t j) { return value[static_cast<size_t>(i * cols + j)]; }
  /// Sum of the absolute values of what was added: the scale of rounding errors.
  double& magnitude(int64_t i, int64_t j) { return size[static_cast<size_t>(i * cols + j)]; }
  void add(int64_t i, int64_t j, double term) {
    at(i, j) += term;
    magnitude(i, j) += std::abs(term);
  }
  int64_t cols;
  std::vector<double> value, size;
};

/// Every value within `relative` of the magnitude of its terms.
inline void expect_near(const Tensor& actual, const Expected& expected, double relative) {
  ASSERT_EQ(static_cast<size_t>(actual.rows() * actual.cols()), expected.value.size());
  EXPECT_TRUE(actual.sentinels_hold()) << "memory outside the output was written";
  for (int64_t i = 0; i < actual.rows(); ++i) {
    for (int64_t j = 0; j < actual.cols(); ++j) {
      const size_t at = static_cast<size_t>(i * actual.cols() + j);
      const double allowed = relative * (expected.size[at] + 1e-6);
      ASSERT_NEAR(actual(i, j), expected.value[at], allowed) << "at row " << i << ", column " << j;
    }
  }
}

}  // namespace galley::device
