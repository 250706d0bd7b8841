// Products with int8 weights on the host device: packing, reading back, work split over threads.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/device/host/host_ops.h"

namespace galley::device {
namespace {

constexpr int64_t kWordBytes = 4 * kPanelOutputs;  // four inputs of all outputs of a panel
// A product with fewer multiply-adds per thread is not worth waking a thread for; packing a row
// costs as much as about kRowsOfReading more rows where there are few.
constexpr int64_t kWorkPerThread = 800'000;
constexpr int64_t kRowsOfReading = 28;

/// A panel in memory.
struct Panel {
  int8_t* values;  // [in / 4][32 outputs][4]
  float* scales;   // [32]
  int32_t* sums;   // [32]
};

Panel panel_of(const WeightHandle& weight, int64_t panel) {
  const int64_t value_bytes = stored_inputs(weight) * kPanelOutputs;
  const int64_t panel_bytes = value_bytes + kPanelOutputs * static_cast<int64_t>(kInt8OutputBytes);
  auto* const begin = weight.arena->at<std::byte>(weight.offset_bytes) + panel * panel_bytes;
  auto* const behind = begin + value_bytes;
  return {reinterpret_cast<int8_t*>(begin), reinterpret_cast<float*>(behind),
          reinterpret_cast<int32_t*>(behind) + kPanelOutputs};
}

int64_t place_of(int64_t input, int64_t output) {
  return input / 4 * kWordBytes + output * 4 + input % 4;
}

float value_of(DType dtype, const void* row, int64_t i) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, static_cast<const std::byte*>(row) + i * 4, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, static_cast<const std::byte*>(row) + i * 2, sizeof bits);
  return dtype == DType::kBf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

/// Numbers this small have no reciprocal: an output of such ones counts as zero.
constexpr float kLeast = 1e-35f;
// Adding 1.5 * 2^23 rounds to the nearest integer, halves to even.
constexpr float kRounder = 12582912.0f;

/// One output into its place. False when a value is not finite.
bool pack_output(DType dtype, const void* row, const WeightHandle& weight, const Panel& panel,
                 int64_t j) {
  const int64_t in = weight.in;
  float largest = 0, strange = 0;
  for (int64_t i = 0; i < in; ++i) {
    const float value = value_of(dtype, row, i);
    largest = std::max(largest, std::abs(value));
    strange += value - value;  // NaN unless every value is finite
  }
  if (strange != 0 || std::isnan(strange)) return false;
  const float inverse = largest > kLeast ? 127.0f / largest : 0.0f;
  int32_t sum = 0;
  for (int64_t i = 0; i < in; ++i) {
    const float shifted = value_of(dtype, row, i) * inverse + kRounder;
    const int32_t rounded = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRounder);
    panel.values[place_of(i, j)] = static_cast<int8_t>(rounded);
    sum += rounded;
  }
  for (int64_t i = in; i < stored_inputs(weight); ++i) panel.values[place_of(i, j)] = 0;
  panel.scales[j] = largest > kLeast ? largest / 127.0f : 0.0f;
  panel.sums[j] = sum;
  return true;
}

void clear_output(const WeightHandle& weight, const Panel& panel, int64_t j) {
  for (int64_t i = 0; i < stored_inputs(weight); ++i) panel.values[place_of(i, j)] = 0;
  panel.scales[j] = 0;
  panel.sums[j] = 0;
}

}  // namespace

const Int8Kernels& int8_kernels(const KernelTable& kernels) {
  const bool wide = &kernels == &kKernelsAvx512 || &kernels == &kKernelsAvx512Bf16;
  return wide && __builtin_cpu_supports("avx512vnni") ? kInt8KernelsAvx512Vnni : kernels.int8;
}

void pack_host_int8_weight(const HostRuntime& runtime, const WeightHandle& weight,
                           const SourceRows& rows) {
  if (rows.num_rows == 0) return;
  const int64_t row_end = rows.row_begin + rows.num_rows;
  const auto row_bytes = weight.in * static_cast<int64_t>(dtype_bytes(rows.dtype));
  std::atomic<int64_t> strange{row_end};  // the first row with a value that is not finite
  const auto pack = [&](int64_t index, int64_t first, int64_t last) {
    const Panel panel = panel_of(weight, index);
    for (int64_t row = first; row < last; ++row) {
      const auto* from =
          static_cast<const std::byte*>(rows.data) + (row - rows.row_begin) * row_bytes;
      if (pack_output(rows.dtype, from, weight, panel, row % kPanelOutputs)) continue;
      int64_t seen = strange.load();
      while (row < seen && !strange.compare_exchange_weak(seen, row)) {
      }
    }
    // The call that brings the last row also clears the padding behind it.
    for (int64_t j = last; last == weight.out && j < (index + 1) * kPanelOutputs; ++j) {
      clear_output(weight, panel, j % kPanelOutputs);
    }
  };
  for_panels(runtime, rows, pack, [] {});
  if (strange.load() < row_end) {
    throw Error(Reason::kBadModel, cat("row ", strange.load(),
                                       " of a weight has a value that is not finite; int8 weights "
                                       "need finite ones: get the model again, or use bf16"));
  }
}

void multiply_host_int8(const HostRuntime& runtime, const ConstMatrix& x,
                        const WeightHandle& weight, const Matrix& y, Write write) {
  if (y.rows == 0) return;
  Int8Task task;
  task.a = x.data;
  task.a_row = x.stride;
  task.b = weight.arena->at<std::byte>(weight.offset_bytes);
  task.m = y.rows;
  task.n = y.cols;
  task.k = weight.in;
  task.bias = weight.bias;
  task.c = y.data;
  task.c_row = y.stride;
  task.add = write == Write::kAdd;
  const Int8Kernels& kernels = int8_kernels(*runtime.kernels);
  const int64_t work = (task.m + kRowsOfReading) * task.n * task.k;
  const int64_t threads = std::clamp<int64_t>(work / kWorkPerThread, 1, runtime.pool->size());
  split_product(runtime, task.m, task.n, kernels.tile_rows, threads,
                [&](int64_t m0, int64_t m1, int64_t n0, int64_t n1, float* scratch) {
                  kernels.product(task, m0, m1, n0, n1, scratch);
                });
}

void read_host_int8_row(const WeightHandle& weight, int64_t row, float* to) {
  const Panel panel = panel_of(weight, row / kPanelOutputs);
  const int64_t j = row % kPanelOutputs;
  for (int64_t i = 0; i < weight.in; ++i) {
    to[i] = static_cast<float>(panel.values[place_of(i, j)]) * panel.scales[j];
  }
}

}  // namespace galley::device
