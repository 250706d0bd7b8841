// Operations on device memory. Each family is a small complete interface; the host device has all
// (host/host_device.h: OpSet), CUDA has LinearOps and ElementwiseOps so far.
//
// All tensors are row-major f32 unless a WeightHandle says otherwise; `stride` is the distance of
// rows in elements. Pointers are device memory except where "host" is written. Comments give
// shapes: T tokens, h hidden, r lora rank. "adds" = the output accumulates, "sets" = it is
// overwritten. Public functions check shapes once (GALLEY_CHECK) and call the protected virtual do_
// functions.
#pragma once

#include <cstdint>
#include <span>

#include "engine/core/dtype.h"
#include "engine/device/device.h"

namespace galley::device {

struct Matrix {
  float* data = nullptr;
  int64_t rows = 0, cols = 0, stride = 0;
};
struct ConstMatrix {
  const float* data = nullptr;
  int64_t rows = 0, cols = 0, stride = 0;
  ConstMatrix() = default;
  ConstMatrix(const float* d, int64_t r, int64_t c, int64_t s)
      : data(d), rows(r), cols(c), stride(s) {}
  ConstMatrix(const Matrix& m) : data(m.data), rows(m.rows), cols(m.cols), stride(m.stride) {}
};

enum class Write { kSet, kAdd };
enum class WeightKind : uint8_t { kF32, kBf16, kInt8 };  // 4-bit becomes a further kind
/// What the values of a packed weight are stored as.
constexpr DType weight_dtype(WeightKind kind) {
  if (kind == WeightKind::kInt8) return DType::kI8;
  return kind == WeightKind::kBf16 ? DType::kBf16 : DType::kF32;
}
/// The inverse, for kF32, kBf16 and kI8.
constexpr WeightKind weight_kind(DType dtype) {
  if (dtype == DType::kI8) return WeightKind::kInt8;
  return dtype == DType::kBf16 ? WeightKind::kBf16 : WeightKind::kF32;
}
/// Inputs of an int8 weight at most: sums of products stay exact in 32 bits.
constexpr int64_t kMaxInt8Inputs = 65536;

/// A packed linear weight [out, in] inside an arena (form: core/device_traits.h).
struct WeightHandle {
  WeightKind kind = WeightKind::kF32;
  const Buffer* arena = nullptr;
  uint64_t offset_bytes = 0;
  int64_t out = 0, in = 0;
  const float* bias = nullptr;  // [out] or null
};

/// The low-rank part of a linear: forward adds scale * xa b^T with xa = x a^T; backward_input adds
/// xa a, where xa = scale * dy b is the gradient of that activation.
struct LowRank {
  enum class Activation {
    kGiven,    // xa is read; only b (forward) or a (backward_input) is needed
    kComputed  // the call sets xa as above, while it has x or dy at hand; a and b are needed
  };
  Activation activation = Activation::kGiven;
  Matrix xa;      // [T, r]
  ConstMatrix b;  // [out, r]
  ConstMatrix a;  // [r, in]
  float scale = 1.0f;
};

class LinearOps {
 public:
  virtual ~LinearOps() = default;
  /// Packs host rows [row_begin, row_begin + num_rows) of a row-major [out, in] tensor of `source`
  /// dtype (F32, BF16, F16) into the weight. kind kBf16 from F32/F16 rounds to nearest even; kInt8
  /// stores round(w / scale) with scale = largest |w| of the output / 127, and refuses values that
  /// are not finite (Error(kBadModel)). Error(kUnsupported) where the device has no such weights,
  /// or for more than kMaxInt8Inputs inputs.
  void pack_weight(const WeightHandle& weight, DType source, const void* host_rows,
                   int64_t row_begin, int64_t num_rows);
  /// y [T, out] sets/adds x [T, in] W^T + bias (+ low rank: scale * xa b^T when given). For kInt8
  /// every row of x is rounded to 255 steps of its largest |x| / 127; the products and their sums
  /// are exact. A row with a value that is not finite gives NaN.
  void forward(const ConstMatrix& x, const WeightHandle& weight, const LowRank* low_rank,
               const Matrix& y, Write write);
  /// dx [T, in] sets/adds dy [T, out] W (+ low rank: xa a when given; a given xa has its scale).
  void backward_input(const ConstMatrix& dy, const WeightHandle& weight, const LowRank* low_rank,
                      const Matrix& dx, Write write);
  /// Plain products of f32 matrices, all with alpha:
  /// c [m, n] sets/adds alpha * a [m, k] b [n, k]^T.
  void matmul_nt(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                 Write write);
  /// c [m, n] sets/adds alpha * a [m, k] b [k, n].
  void matmul_nn(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                 Write write);
  /// c [m, n] sets/adds alpha * a [k, m]^T b [k, n].
  void matmul_tn(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                 Write write);

 protected:
  virtual void do_pack_weight(const WeightHandle&, DType, const void*, int64_t, int64_t) = 0;
  virtual void do_forward(const ConstMatrix&, const WeightHandle&, const LowRank*, const Matrix&,
                          Write) = 0;
  virtual void do_backward_input(const ConstMatrix&, const WeightHandle&, const LowRank*,
                                 const Matrix&, Write) = 0;
  virtual void do_matmul_nt(const ConstMatrix&, const ConstMatrix&, float, const Matrix&,
                            Write) = 0;
  virtual void do_matmul_nn(const ConstMatrix&, const ConstMatrix&, float, const Matrix&,
                            Write) = 0;
  virtual void do_matmul_tn(const ConstMatrix&, const ConstMatrix&, float, const Matrix&,
                            Write) = 0;
};

class ElementwiseOps {
 public:
  virtual ~ElementwiseOps() = default;
  /// y [T, f] sets silu(gate) * up.
  void swiglu_forward(const ConstMatrix& gate, const ConstMatrix& up, const Matrix& y);
  /// d_gate, d_up [T, f] set from dy; d_gate may be gate's own memory and d_up up's.
  void swiglu_backward(const ConstMatrix& gate, const ConstMatrix& up, const ConstMatrix& dy,
                       const Matrix& d_gate, const Matrix& d_up);
  /// y adds x.
  void add(const ConstMatrix& x, const Matrix& y);

 protected:
  virtual void do_swiglu_forward(const ConstMatrix&, const ConstMatrix&, const Matrix&) = 0;
  virtual void do_swiglu_backward(const ConstMatrix&, const ConstMatrix&, const ConstMatrix&,
                                  const Matrix&, const Matrix&) = 0;
  virtual void do_add(const ConstMatrix&, const Matrix&) = 0;
};

class TokenOps {
 public:
  virtual ~TokenOps() = default;
  /// y [T, in] sets rows ids[i] - first_id (device i32 [T]) of a packed weight, widened to f32; ids
  /// that lie outside the weight (another worker's part of a divided table) give zeros.
  void gather_rows(const WeightHandle& table, const int32_t* ids, int32_t first_id,
                   const Matrix& y);
  /// y sets x * rstd * weight [h]; rstd [T] sets 1 / sqrt(mean(x^2) + eps) (sum in f32 or better).
  void rmsnorm_forward(const ConstMatrix& x, const float* weight, float eps, const Matrix& y,
                       float* rstd);
  /// Norm of each head of x [T, num_heads * head_dim] by itself, with weight [head_dim]; rstd
  /// [T, num_heads]. y may be x's own memory.
  void head_norm_forward(const ConstMatrix& x, int64_t head_dim, const float* weight, float eps,
                         const Matrix& y, float* rstd);
  /// dx sets the gradient from dy and the norm's input x; dx may be dy's own memory.
  void head_norm_backward(const ConstMatrix& dy, const ConstMatrix& x, int64_t head_dim,
                          const float* weight, const float* rstd, const Matrix& dx);
  /// dx sets/adds the gradient; the weight is frozen.
  void rmsnorm_backward(const ConstMatrix& dy, const ConstMatrix& x, const float* weight,
                        const float* rstd, const Matrix& dx, Write write);
  /// Rotates heads of x [T, num_heads * head_dim] in place by cos/sin [max_position, head_dim / 2]
  /// (half-split order: element i pairs with i + head_dim / 2) at `positions` (device i32 [T]);
  /// kBackward rotates by the negative angle.
  enum class Direction { kForward, kBackward };
  void rope(const Matrix& x, int64_t head_dim, const float* cos, const float* sin,
            const int32_t* positions, Direction direction);
  /// Which mask: that of element (row, col) is a pure function of (seed, stream, row_ids[row],
  /// first_column + col), so recomputation, any batch split and any division of columns over
  /// workers give the same mask. row_ids: device u64 [T], the caller's stable identity of a token.
  struct DropoutMask {
    float p = 0;
    uint64_t seed = 0, stream = 0;
    const uint64_t* row_ids = nullptr;
    int64_t first_column = 0;
  };
  /// y sets/adds x * mask / (1 - p).
  void dropout(const ConstMatrix& x, const DropoutMask& mask, const Matrix& y, Write write);

 protected:
  virtual void do_gather_rows(const WeightHandle&, const int32_t*, int32_t, const Matrix&) = 0;
  virtual void do_head_norm_forward(const ConstMatrix&, int64_t, const float*, float, const Matrix&,
                                    float*) = 0;
  virtual void do_head_norm_backward(const ConstMatrix&, const ConstMatrix&, int64_t, const float*,
                                     const float*, const Matrix&) = 0;
  virtual void do_rmsnorm_forward(const ConstMatrix&, const float*, float, const Matrix&,
                                  float*) = 0;
  virtual void do_rmsnorm_backward(const ConstMatrix&, const ConstMatrix&, const float*,
                                   const float*, const Matrix&, Write) = 0;
  virtual void do_rope(const Matrix&, int64_t, const float*, const float*, const int32_t*,
                       Direction) = 0;
  virtual void do_dropout(const ConstMatrix&, const DropoutMask&, const Matrix&, Write) = 0;
};

/// One run of query rows of one sequence against its keys and values (causal).
struct AttentionItem {
  int64_t query_row = 0;  // first row in q, o, dq, do
  int64_t num_queries = 0;
  int64_t key_row = 0;   // first row of the sequence in k, v (rows are contiguous)
  int64_t num_keys = 0;  // the last query row sees all of them, the one before one less, ...
};
/// What may become of the operands of attention's products: kernels that round take bf16 ones,
/// with sums, softmax and log-sum-exp in f32, where kMayRound allows it.
enum class ProductOperands : uint8_t { kExact, kMayRound };
/// What a network with such weights asks for: bf16 where its other products have bf16 operands.
constexpr ProductOperands attention_operands(DType weights) {
  return weights == DType::kBf16 ? ProductOperands::kMayRound : ProductOperands::kExact;
}
struct AttentionShape {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  float scale = 0;  // usually 1 / sqrt(head_dim); not negative
  /// Query head h uses key/value head (first_in_group + h) / heads_per_kv; 0: num_heads /
  /// num_kv_heads. Of a worker that holds a range of the heads the first and last group may be
  /// incomplete.
  int64_t heads_per_kv = 0, first_in_group = 0;
  int64_t window = 0;  // a query sees itself and the window - 1 keys before it; 0: all
  ProductOperands operands = ProductOperands::kExact;
};

/// Query heads [begin, end) that use one key/value head.
struct HeadGroup {
  int64_t kv_head = 0, begin = 0, end = 0;
};
/// All of them.
HeadGroup head_group(const AttentionShape& shape, int64_t kv_head);
/// Pairs of a query row and a key that it sees.
double visible_pairs(const AttentionItem& item, int64_t window);

class AttentionOps {
 public:
  virtual ~AttentionOps() = default;
  /// o [T, heads * d] sets softmax(q k^T scale, causal) v per item; lse [T, heads] sets the
  /// log-sum-exp of the scaled scores (may be null when no backward follows). s x s is never
  /// stored.
  void forward(const AttentionShape& shape, std::span<const AttentionItem> items,
               const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v, const Matrix& o,
               float* lse);
  /// dq sets; dk, dv [rows, kv_heads * d] ADD (accumulators across windows: see methods, 3.5).
  void backward(const AttentionShape& shape, std::span<const AttentionItem> items,
                const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                const ConstMatrix& o, const float* lse, const ConstMatrix& d_o, const Matrix& dq,
                const Matrix& dk, const Matrix& dv);

 protected:
  virtual void do_forward(const AttentionShape&, std::span<const AttentionItem>, const ConstMatrix&,
                          const ConstMatrix&, const ConstMatrix&, const Matrix&, float*) = 0;
  virtual void do_backward(const AttentionShape&, std::span<const AttentionItem>,
                           const ConstMatrix&, const ConstMatrix&, const ConstMatrix&,
                           const ConstMatrix&, const float*, const ConstMatrix&, const Matrix&,
                           const Matrix&, const Matrix&) = 0;
};

class LossOps {
 public:
  virtual ~LossOps() = default;
  /// logits [n, V] -> in place gradient (softmax - onehot) * gradient_scale; losses (device f64
  /// [n]) sets -log softmax of the target. targets: device i32 [n]. Log-sum-exp accumulates in f64.
  void cross_entropy(const Matrix& logits, const int32_t* targets, float gradient_scale,
                     double* losses);
  /// The same without writing the gradient.
  void cross_entropy_loss_only(const ConstMatrix& logits, const int32_t* targets, double* losses);
  /// Of a divided vocabulary, logits [n, V of this worker] of tokens first_token ..: parts (device
  /// f64 [n, 3]) sets the largest logit, the sum of exp(logit - largest) in f64, and the logit of
  /// the target (0 when another worker has it).
  void cross_entropy_part(const ConstMatrix& logits, const int32_t* targets, int32_t first_token,
                          double* parts);
  /// logits -> in place gradient, from the log-sum-exp over the whole vocabulary (device f64 [n]).
  void cross_entropy_apply(const Matrix& logits, const int32_t* targets, int32_t first_token,
                           const double* log_sum_exp, float gradient_scale);

 protected:
  virtual void do_cross_entropy(const Matrix&, const int32_t*, float, double*) = 0;
  virtual void do_cross_entropy_loss_only(const ConstMatrix&, const int32_t*, double*) = 0;
  virtual void do_cross_entropy_part(const ConstMatrix&, const int32_t*, int32_t, double*) = 0;
  virtual void do_cross_entropy_apply(const Matrix&, const int32_t*, int32_t, const double*,
                                      float) = 0;
};

struct AdamWStep {
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  int64_t step = 1;             // of this optimizer, from 1: bias correction
  float gradient_scale = 1.0f;  // clipping factor, applied while reading
};

class OptimizerOps {
 public:
  virtual ~OptimizerOps() = default;
  /// Decoupled decay first (w -= lr * decay * w), then the Adam update as PyTorch's AdamW does it.
  void adamw(float* w, const float* g, float* m, float* v, int64_t count, const AdamWStep& step);
  /// Sum of squares in f64, independent of the number of threads.
  double sum_of_squares(const float* x, int64_t count);
  /// True when every value is finite.
  bool all_finite(const float* x, int64_t count);

 protected:
  virtual void do_adamw(float*, const float*, float*, float*, int64_t, const AdamWStep&) = 0;
  virtual double do_sum_of_squares(const float*, int64_t) = 0;
  virtual bool do_all_finite(const float*, int64_t) = 0;
};

/// Everything that the network needs, bound to one stream.
struct OpSet {
  std::unique_ptr<LinearOps> linear;
  std::unique_ptr<ElementwiseOps> elementwise;
  std::unique_ptr<TokenOps> token;
  std::unique_ptr<AttentionOps> attention;
  std::unique_ptr<LossOps> loss;
  std::unique_ptr<OptimizerOps> optimizer;
};

}  // namespace galley::device
