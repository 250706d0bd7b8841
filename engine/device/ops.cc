// The checked wrappers of all operations: shapes once, here, never in an implementation.
#include "engine/device/ops.h"

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::device {
namespace {

bool is_matrix(const ConstMatrix& m) {
  return m.rows >= 0 && m.cols >= 0 && (m.rows * m.cols == 0 || m.data != nullptr) &&
         (m.rows <= 1 || m.stride >= m.cols);
}
bool same_shape(const ConstMatrix& a, const ConstMatrix& b) {
  return a.rows == b.rows && a.cols == b.cols && is_matrix(a) && is_matrix(b);
}

/// The packed weight lies inside its arena.
bool is_weight(const WeightHandle& w) {
  if (w.arena == nullptr || w.out <= 0 || w.in <= 0) return false;
  const uint64_t bytes =
      packed_weight_bytes(DeviceTraits{}, weight_dtype(w.kind), static_cast<uint64_t>(w.out),
                          static_cast<uint64_t>(w.in));
  return w.offset_bytes % DeviceTraits{}.alignment_bytes == 0 && bytes <= w.arena->bytes() &&
         w.offset_bytes <= w.arena->bytes() - bytes;
}

bool is_up(const LowRank& low_rank, const WeightHandle& weight) {
  return is_matrix(low_rank.b) && low_rank.b.rows == weight.out &&
         low_rank.b.cols == low_rank.xa.cols;
}
bool is_down(const LowRank& low_rank, const WeightHandle& weight) {
  return is_matrix(low_rank.a) && low_rank.a.cols == weight.in &&
         low_rank.a.rows == low_rank.xa.cols;
}
void check_low_rank(const LowRank& low_rank, const WeightHandle& weight, int64_t rows) {
  GALLEY_CHECK(is_matrix(low_rank.xa) && low_rank.xa.rows == rows);
  if (low_rank.activation == LowRank::Activation::kGiven) return;
  GALLEY_CHECK(is_up(low_rank, weight) && is_down(low_rank, weight));
}

}  // namespace

void LinearOps::pack_weight(const WeightHandle& weight, DType source, const void* host_rows,
                            int64_t row_begin, int64_t num_rows) {
  GALLEY_CHECK(is_weight(weight));
  GALLEY_CHECK(source == DType::kF32 || source == DType::kBf16 || source == DType::kF16);
  GALLEY_CHECK(row_begin >= 0 && num_rows >= 0 && row_begin + num_rows <= weight.out);
  GALLEY_CHECK(host_rows != nullptr || num_rows == 0);
  if (weight.kind == WeightKind::kInt8 && weight.in > kMaxInt8Inputs) {
    throw Error(Reason::kUnsupported,
                cat("an int8 weight has at most ", kMaxInt8Inputs, " inputs, this one has ",
                    weight.in, "; store it as bf16"));
  }
  do_pack_weight(weight, source, host_rows, row_begin, num_rows);
}

void LinearOps::forward(const ConstMatrix& x, const WeightHandle& weight, const LowRank* low_rank,
                        const Matrix& y, Write write) {
  GALLEY_CHECK(is_weight(weight) && is_matrix(x) && is_matrix(y));
  GALLEY_CHECK(x.cols == weight.in && y.cols == weight.out && x.rows == y.rows);
  if (low_rank != nullptr) {
    check_low_rank(*low_rank, weight, x.rows);
    GALLEY_CHECK(is_up(*low_rank, weight));
  }
  do_forward(x, weight, low_rank, y, write);
}

void LinearOps::backward_input(const ConstMatrix& dy, const WeightHandle& weight,
                               const LowRank* low_rank, const Matrix& dx, Write write) {
  GALLEY_CHECK(is_weight(weight) && is_matrix(dy) && is_matrix(dx));
  GALLEY_CHECK(dy.cols == weight.out && dx.cols == weight.in && dy.rows == dx.rows);
  if (low_rank != nullptr) {
    check_low_rank(*low_rank, weight, dy.rows);
    GALLEY_CHECK(is_down(*low_rank, weight));
  }
  do_backward_input(dy, weight, low_rank, dx, write);
}

void LinearOps::matmul_nt(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                          Write write) {
  GALLEY_CHECK(is_matrix(a) && is_matrix(b) && is_matrix(c));
  GALLEY_CHECK(a.rows == c.rows && b.rows == c.cols && a.cols == b.cols);
  do_matmul_nt(a, b, alpha, c, write);
}

void LinearOps::matmul_nn(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                          Write write) {
  GALLEY_CHECK(is_matrix(a) && is_matrix(b) && is_matrix(c));
  GALLEY_CHECK(a.rows == c.rows && b.cols == c.cols && a.cols == b.rows);
  do_matmul_nn(a, b, alpha, c, write);
}

void LinearOps::matmul_tn(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                          Write write) {
  GALLEY_CHECK(is_matrix(a) && is_matrix(b) && is_matrix(c));
  GALLEY_CHECK(a.cols == c.rows && b.cols == c.cols && a.rows == b.rows);
  do_matmul_tn(a, b, alpha, c, write);
}

void ElementwiseOps::swiglu_forward(const ConstMatrix& gate, const ConstMatrix& up,
                                    const Matrix& y) {
  GALLEY_CHECK(same_shape(gate, up) && same_shape(gate, y));
  do_swiglu_forward(gate, up, y);
}

void ElementwiseOps::swiglu_backward(const ConstMatrix& gate, const ConstMatrix& up,
                                     const ConstMatrix& dy, const Matrix& d_gate,
                                     const Matrix& d_up) {
  GALLEY_CHECK(same_shape(gate, up) && same_shape(gate, dy));
  GALLEY_CHECK(same_shape(gate, d_gate) && same_shape(gate, d_up));
  do_swiglu_backward(gate, up, dy, d_gate, d_up);
}

void ElementwiseOps::add(const ConstMatrix& x, const Matrix& y) {
  GALLEY_CHECK(same_shape(x, y));
  do_add(x, y);
}

void TokenOps::gather_rows(const WeightHandle& table, const int32_t* ids, int32_t first_id,
                           const Matrix& y) {
  GALLEY_CHECK(is_weight(table) && is_matrix(y) && y.cols == table.in);
  GALLEY_CHECK(first_id >= 0 && (ids != nullptr || y.rows == 0));
  do_gather_rows(table, ids, first_id, y);
}

void TokenOps::rmsnorm_forward(const ConstMatrix& x, const float* weight, float eps,
                               const Matrix& y, float* rstd) {
  GALLEY_CHECK(same_shape(x, y) && weight != nullptr && (rstd != nullptr || x.rows == 0));
  do_rmsnorm_forward(x, weight, eps, y, rstd);
}

void TokenOps::rmsnorm_backward(const ConstMatrix& dy, const ConstMatrix& x, const float* weight,
                                const float* rstd, const Matrix& dx, Write write) {
  GALLEY_CHECK(same_shape(x, dy) && same_shape(x, dx));
  GALLEY_CHECK(weight != nullptr && (rstd != nullptr || x.rows == 0));
  do_rmsnorm_backward(dy, x, weight, rstd, dx, write);
}

void TokenOps::head_norm_forward(const ConstMatrix& x, int64_t head_dim, const float* weight,
                                 float eps, const Matrix& y, float* rstd) {
  GALLEY_CHECK(same_shape(x, y) && head_dim > 0 && x.cols % head_dim == 0);
  GALLEY_CHECK(weight != nullptr && (rstd != nullptr || x.rows * x.cols == 0));
  do_head_norm_forward(x, head_dim, weight, eps, y, rstd);
}

void TokenOps::head_norm_backward(const ConstMatrix& dy, const ConstMatrix& x, int64_t head_dim,
                                  const float* weight, const float* rstd, const Matrix& dx) {
  GALLEY_CHECK(same_shape(x, dy) && same_shape(x, dx) && head_dim > 0 && x.cols % head_dim == 0);
  GALLEY_CHECK(weight != nullptr && (rstd != nullptr || x.rows * x.cols == 0));
  do_head_norm_backward(dy, x, head_dim, weight, rstd, dx);
}

void TokenOps::rope(const Matrix& x, int64_t head_dim, const float* cos, const float* sin,
                    const int32_t* positions, Direction direction) {
  GALLEY_CHECK(is_matrix(x) && head_dim > 0 && head_dim % 2 == 0 && x.cols % head_dim == 0);
  GALLEY_CHECK(x.rows == 0 || (cos != nullptr && sin != nullptr && positions != nullptr));
  do_rope(x, head_dim, cos, sin, positions, direction);
}

void TokenOps::dropout(const ConstMatrix& x, const DropoutMask& mask, const Matrix& y,
                       Write write) {
  GALLEY_CHECK(same_shape(x, y) && mask.p >= 0.0f && mask.p < 1.0f && mask.first_column >= 0);
  GALLEY_CHECK(mask.row_ids != nullptr || x.rows == 0);
  do_dropout(x, mask, y, write);
}

void LossOps::cross_entropy(const Matrix& logits, const int32_t* targets, float gradient_scale,
                            double* losses) {
  GALLEY_CHECK(is_matrix(logits) && logits.cols > 0);
  GALLEY_CHECK(logits.rows == 0 || (targets != nullptr && losses != nullptr));
  do_cross_entropy(logits, targets, gradient_scale, losses);
}

void LossOps::cross_entropy_loss_only(const ConstMatrix& logits, const int32_t* targets,
                                      double* losses) {
  GALLEY_CHECK(is_matrix(logits) && logits.cols > 0);
  GALLEY_CHECK(logits.rows == 0 || (targets != nullptr && losses != nullptr));
  do_cross_entropy_loss_only(logits, targets, losses);
}

void LossOps::cross_entropy_part(const ConstMatrix& logits, const int32_t* targets,
                                 int32_t first_token, double* parts) {
  GALLEY_CHECK(is_matrix(logits) && first_token >= 0);
  GALLEY_CHECK(logits.rows == 0 || (targets != nullptr && parts != nullptr));
  do_cross_entropy_part(logits, targets, first_token, parts);
}

void LossOps::cross_entropy_apply(const Matrix& logits, const int32_t* targets, int32_t first_token,
                                  const double* log_sum_exp, float gradient_scale) {
  GALLEY_CHECK(is_matrix(logits) && first_token >= 0);
  GALLEY_CHECK(logits.rows == 0 || (targets != nullptr && log_sum_exp != nullptr));
  do_cross_entropy_apply(logits, targets, first_token, log_sum_exp, gradient_scale);
}

void OptimizerOps::adamw(float* w, const float* g, float* m, float* v, int64_t count,
                         const AdamWStep& step) {
  GALLEY_CHECK(count >= 0 && step.step >= 1);
  GALLEY_CHECK(count == 0 || (w != nullptr && g != nullptr && m != nullptr && v != nullptr));
  do_adamw(w, g, m, v, count, step);
}

double OptimizerOps::sum_of_squares(const float* x, int64_t count) {
  GALLEY_CHECK(count >= 0 && (count == 0 || x != nullptr));
  return do_sum_of_squares(x, count);
}

bool OptimizerOps::all_finite(const float* x, int64_t count) {
  GALLEY_CHECK(count >= 0 && (count == 0 || x != nullptr));
  return do_all_finite(x, count);
}

}  // namespace galley::device
