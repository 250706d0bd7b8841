// ElementwiseOps, TokenOps and LossOps of the host device: every row on its own.
#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/random.h"
#include "engine/device/host/host_ops.h"

namespace galley::device {
namespace {

/// Rows per thread at least: about 16 thousand values.
int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, cols)); }

/// body(row) for every row, distributed over the threads.
template <typename Body>
void for_rows(const HostRuntime& runtime, const ConstMatrix& m, const Body& body) {
  runtime.pool->parallel_for(m.rows, row_grain(m.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

class HostElementwiseOps final : public ElementwiseOps {
 public:
  explicit HostElementwiseOps(const HostRuntime& runtime) : runtime_(runtime) {}

 protected:
  void do_swiglu_forward(const ConstMatrix& gate, const ConstMatrix& up, const Matrix& y) override {
    for_rows(runtime_, y, [&](int64_t i) {
      runtime_.kernels->vector.swiglu_forward(gate.data + i * gate.stride, up.data + i * up.stride,
                                              y.data + i * y.stride, y.cols);
    });
  }
  void do_swiglu_backward(const ConstMatrix& gate, const ConstMatrix& up, const ConstMatrix& dy,
                          const Matrix& d_gate, const Matrix& d_up) override {
    for_rows(runtime_, dy, [&](int64_t i) {
      runtime_.kernels->vector.swiglu_backward(
          gate.data + i * gate.stride, up.data + i * up.stride, dy.data + i * dy.stride,
          d_gate.data + i * d_gate.stride, d_up.data + i * d_up.stride, dy.cols);
    });
  }
  void do_add(const ConstMatrix& x, const Matrix& y) override {
    for_rows(runtime_, y, [&](int64_t i) {
      runtime_.kernels->vector.add(x.data + i * x.stride, y.data + i * y.stride, y.cols);
    });
  }

 private:
  const HostRuntime& runtime_;
};

class HostTokenOps final : public TokenOps {
 public:
  explicit HostTokenOps(const HostRuntime& runtime) : runtime_(runtime) {}

 protected:
  void do_gather_rows(const WeightHandle& table, const int32_t* ids, int32_t first_id,
                      const Matrix& y) override;
  void do_rmsnorm_forward(const ConstMatrix& x, const float* weight, float eps, const Matrix& y,
                          float* rstd) override {
    for_rows(runtime_, x, [&](int64_t i) {
      rstd[i] = runtime_.kernels->vector.rmsnorm_forward(x.data + i * x.stride, weight, eps,
                                                         y.data + i * y.stride, x.cols);
    });
  }
  void do_rmsnorm_backward(const ConstMatrix& dy, const ConstMatrix& x, const float* weight,
                           const float* rstd, const Matrix& dx, Write write) override {
    for_rows(runtime_, x, [&](int64_t i) {
      runtime_.kernels->vector.rmsnorm_backward(dy.data + i * dy.stride, x.data + i * x.stride,
                                                weight, rstd[i], dx.data + i * dx.stride, x.cols,
                                                write == Write::kAdd);
    });
  }
  void do_head_norm_forward(const ConstMatrix& x, int64_t head_dim, const float* weight, float eps,
                            const Matrix& y, float* rstd) override {
    const int64_t heads = x.cols / head_dim;
    for_rows(runtime_, x, [&](int64_t i) {
      const float* from = x.data + i * x.stride;
      float* to = y.data + i * y.stride;
      for (int64_t head = 0; head < heads; ++head, from += head_dim, to += head_dim) {
        rstd[i * heads + head] =
            runtime_.kernels->vector.rmsnorm_forward(from, weight, eps, to, head_dim);
      }
    });
  }
  void do_head_norm_backward(const ConstMatrix& dy, const ConstMatrix& x, int64_t head_dim,
                             const float* weight, const float* rstd, const Matrix& dx) override {
    const int64_t heads = x.cols / head_dim;
    for_rows(runtime_, x, [&](int64_t i) {
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t column = head * head_dim;
        runtime_.kernels->vector.rmsnorm_backward(
            dy.data + i * dy.stride + column, x.data + i * x.stride + column, weight,
            rstd[i * heads + head], dx.data + i * dx.stride + column, head_dim, false);
      }
    });
  }
  void do_rope(const Matrix& x, int64_t head_dim, const float* cos, const float* sin,
               const int32_t* positions, Direction direction) override {
    const int64_t half = head_dim / 2;
    const float sign = direction == Direction::kForward ? 1.0f : -1.0f;
    for_rows(runtime_, x, [&](int64_t i) {
      runtime_.kernels->vector.rope(x.data + i * x.stride, x.cols / head_dim, half,
                                    cos + positions[i] * half, sin + positions[i] * half, sign);
    });
  }
  void do_dropout(const ConstMatrix& x, const DropoutMask& mask, const Matrix& y,
                  Write write) override;

 private:
  const HostRuntime& runtime_;
};

void HostTokenOps::do_gather_rows(const WeightHandle& table, const int32_t* ids, int32_t first_id,
                                  const Matrix& y) {
  for_rows(runtime_, y, [&](int64_t row) {
    float* const to = y.data + row * y.stride;
    const int64_t id = int64_t{ids[row]} - first_id;
    if (id < 0 || id >= table.out) {
      std::fill_n(to, table.in, 0.0f);
      return;
    }
    if (table.kind == WeightKind::kInt8) return read_host_int8_row(table, id, to);
    const int64_t panel = id / kPanelOutputs, j = id % kPanelOutputs;
    const int64_t offset = panel * stored_inputs(table) * kPanelOutputs;
    if (table.kind == WeightKind::kF32) {
      const float* from = table.arena->at<float>(table.offset_bytes) + offset + j;
      for (int64_t i = 0; i < table.in; ++i) to[i] = from[i * kPanelOutputs];
    } else {
      const uint16_t* from = table.arena->at<uint16_t>(table.offset_bytes) + offset + 2 * j;
      for (int64_t i = 0; i < table.in; ++i) {
        to[i] = bf16_to_f32(from[i / 2 * 2 * kPanelOutputs + i % 2]);
      }
    }
  });
}

void HostTokenOps::do_dropout(const ConstMatrix& x, const DropoutMask& mask, const Matrix& y,
                              Write write) {
  // Seed and stream become one key of 64 bits; the counter is left for row and column.
  const std::array<uint32_t, 4> key = philox4x32(
      {static_cast<uint32_t>(mask.stream), static_cast<uint32_t>(mask.stream >> 32), 0, 0},
      {static_cast<uint32_t>(mask.seed), static_cast<uint32_t>(mask.seed >> 32)});
  DropoutNumbers numbers;
  numbers.key[0] = key[0];
  numbers.key[1] = key[1];
  numbers.threshold = static_cast<uint32_t>(static_cast<double>(mask.p) * 0x1p32);
  numbers.scale = static_cast<float>(1.0 / (1.0 - static_cast<double>(mask.p)));
  numbers.first_column = mask.first_column;
  for_rows(runtime_, x, [&](int64_t i) {
    runtime_.kernels->vector.dropout(x.data + i * x.stride, mask.row_ids[i], numbers,
                                     y.data + i * y.stride, x.cols, write == Write::kAdd);
  });
}

class HostLossOps final : public LossOps {
 public:
  explicit HostLossOps(const HostRuntime& runtime) : runtime_(runtime) {}

 protected:
  void do_cross_entropy(const Matrix& logits, const int32_t* targets, float gradient_scale,
                        double* losses) override {
    check_targets(logits, targets);
    for_rows(runtime_, logits, [&](int64_t i) {
      float* const row = logits.data + i * logits.stride;
      losses[i] =
          runtime_.kernels->vector.cross_entropy(row, targets[i], gradient_scale, row, logits.cols);
    });
  }
  void do_cross_entropy_loss_only(const ConstMatrix& logits, const int32_t* targets,
                                  double* losses) override {
    check_targets(logits, targets);
    for_rows(runtime_, logits, [&](int64_t i) {
      losses[i] = runtime_.kernels->vector.cross_entropy(logits.data + i * logits.stride,
                                                         targets[i], 0.0f, nullptr, logits.cols);
    });
  }
  void do_cross_entropy_part(const ConstMatrix& logits, const int32_t* targets, int32_t first_token,
                             double* parts) override {
    for_rows(runtime_, logits, [&](int64_t i) {
      const float* const row = logits.data + i * logits.stride;
      const int64_t target = int64_t{targets[i]} - first_token;
      const bool mine = target >= 0 && target < logits.cols;
      runtime_.kernels->vector.exponential_sum(row, logits.cols, parts + 3 * i, parts + 3 * i + 1);
      parts[3 * i + 2] = mine ? static_cast<double>(row[target]) : 0.0;
    });
  }
  void do_cross_entropy_apply(const Matrix& logits, const int32_t* targets, int32_t first_token,
                              const double* log_sum_exp, float gradient_scale) override {
    for_rows(runtime_, logits, [&](int64_t i) {
      float* const row = logits.data + i * logits.stride;
      const int64_t target = int64_t{targets[i]} - first_token;
      const bool mine = target >= 0 && target < logits.cols;
      const double loss = mine ? log_sum_exp[i] - static_cast<double>(row[target]) : 0.0;
      runtime_.kernels->vector.softmax(row, log_sum_exp[i], gradient_scale, logits.cols);
      if (mine) {
        row[target] = static_cast<float>(std::expm1(-loss) * static_cast<double>(gradient_scale));
      }
    });
  }

 private:
  static void check_targets(const ConstMatrix& logits, const int32_t* targets) {
    for (int64_t i = 0; i < logits.rows; ++i) {
      GALLEY_CHECK(targets[i] >= 0 && targets[i] < logits.cols);
    }
  }

  const HostRuntime& runtime_;
};

}  // namespace

std::unique_ptr<ElementwiseOps> make_host_elementwise_ops(const HostRuntime& runtime) {
  return std::make_unique<HostElementwiseOps>(runtime);
}
std::unique_ptr<TokenOps> make_host_token_ops(const HostRuntime& runtime) {
  return std::make_unique<HostTokenOps>(runtime);
}
std::unique_ptr<LossOps> make_host_loss_ops(const HostRuntime& runtime) {
  return std::make_unique<HostLossOps>(runtime);
}

}  // namespace galley::device
