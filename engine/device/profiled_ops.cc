#include "engine/device/profiled_ops.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace galley::device {
namespace {

// Operations per element of what is no product. An exponential counts as 20: range reduction and a
// polynomial.
constexpr double kExponentialFlops = 20;
constexpr double kSwigluForwardFlops = kExponentialFlops + 4;
constexpr double kSwigluBackwardFlops = kExponentialFlops + 10;
constexpr double kNormForwardFlops = 4;   // square, sum, two scalings
constexpr double kNormBackwardFlops = 8;  // a dot product, then dx = rstd (w dy - x c)
constexpr double kRopeFlops = 3;          // six per pair
constexpr double kCrossEntropyFlops = kExponentialFlops + 4;
constexpr double kAdamWFlops = 14;
constexpr double kDropoutFlops = 20;  // ten rounds of the generator per four elements

template <typename Body>
void timed(Profile* profile, std::string_view name, const OpWork& work, const Body& body) {
  const double begin = profile->now();
  body();
  profile->add(name, profile->now() - begin, work);
}

double count_of(int64_t a, int64_t b) { return static_cast<double>(a) * static_cast<double>(b); }
double elements(const ConstMatrix& m) { return count_of(m.rows, m.cols); }
double f32_bytes(double count) { return count * sizeof(float); }
double product(int64_t a, int64_t b, int64_t c) {
  return 2 * count_of(a, b) * static_cast<double>(c);
}

/// A written operand; one that is added to is read too.
double written(const ConstMatrix& m, Write write) {
  return f32_bytes(elements(m)) * (write == Write::kAdd ? 2 : 1);
}

double weight_bytes(const WeightHandle& w) {
  return count_of(w.out, w.in) * static_cast<double>(dtype_bytes(weight_dtype(w.kind)));
}

OpWork row_work(double count, double flops_each, double operands) {
  return {0, 0, count * flops_each, f32_bytes(count * operands)};
}

class ProfiledLinear : public LinearOps {
 public:
  ProfiledLinear(std::unique_ptr<LinearOps> inner, int64_t vocab, Profile* profile)
      : inner_(std::move(inner)), vocab_(vocab), profile_(profile) {}

 protected:
  void do_pack_weight(const WeightHandle& w, DType dtype, const void* rows, int64_t begin,
                      int64_t count) override {
    inner_->pack_weight(w, dtype, rows, begin, count);
  }
  void do_forward(const ConstMatrix& x, const WeightHandle& w, const LowRank* low_rank,
                  const Matrix& y, Write write) override {
    timed(profile_, w.out == vocab_ ? "head forward" : "linears forward",
          weight_product(x, w, low_rank, y, write, w.out),
          [&] { inner_->forward(x, w, low_rank, y, write); });
  }
  void do_backward_input(const ConstMatrix& dy, const WeightHandle& w, const LowRank* low_rank,
                         const Matrix& dx, Write write) override {
    timed(profile_, w.out == vocab_ ? "head backward" : "linears backward",
          weight_product(dy, w, low_rank, dx, write, w.in),
          [&] { inner_->backward_input(dy, w, low_rank, dx, write); });
  }
  void do_matmul_nt(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                    Write write) override {
    timed(profile_, "adapter x A^T", plain_product(a, b, c, a.cols, write),
          [&] { inner_->matmul_nt(a, b, alpha, c, write); });
  }
  void do_matmul_nn(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                    Write write) override {
    timed(profile_, "adapter dy B", plain_product(a, b, c, a.cols, write),
          [&] { inner_->matmul_nn(a, b, alpha, c, write); });
  }
  void do_matmul_tn(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                    Write write) override {
    timed(profile_, "adapter dA, dB", plain_product(a, b, c, a.rows, write),
          [&] { inner_->matmul_tn(a, b, alpha, c, write); });
  }

 private:
  /// A product with a weight, and the low-rank part [T, r] times [r, width] that rides along.
  static OpWork weight_product(const ConstMatrix& x, const WeightHandle& w, const LowRank* low_rank,
                               const Matrix& y, Write write, int64_t width) {
    OpWork work{product(x.rows, w.in, w.out), 0, 0,
                weight_bytes(w) + f32_bytes(elements(x)) + written(y, write)};
    if (low_rank == nullptr) return work;
    const int64_t rank = low_rank->xa.cols;
    work.f32_flops += product(x.rows, rank, width);
    work.bytes += f32_bytes(elements(low_rank->xa) + count_of(rank, width));
    if (low_rank->activation == LowRank::Activation::kComputed) {
      work.f32_flops += product(x.rows, x.cols, rank);
      work.bytes += f32_bytes(count_of(rank, x.cols));
    }
    return work;
  }
  static OpWork plain_product(const ConstMatrix& a, const ConstMatrix& b, const Matrix& c,
                              int64_t depth, Write write) {
    return {0, 0, product(c.rows, depth, c.cols),
            f32_bytes(elements(a) + elements(b)) + written(c, write)};
  }

  std::unique_ptr<LinearOps> inner_;
  int64_t vocab_;
  Profile* profile_;
};

class ProfiledElementwise : public ElementwiseOps {
 public:
  ProfiledElementwise(std::unique_ptr<ElementwiseOps> inner, Profile* profile)
      : inner_(std::move(inner)), profile_(profile) {}

 protected:
  void do_swiglu_forward(const ConstMatrix& gate, const ConstMatrix& up, const Matrix& y) override {
    timed(profile_, "swiglu forward", row_work(elements(y), kSwigluForwardFlops, 3),
          [&] { inner_->swiglu_forward(gate, up, y); });
  }
  void do_swiglu_backward(const ConstMatrix& gate, const ConstMatrix& up, const ConstMatrix& dy,
                          const Matrix& d_gate, const Matrix& d_up) override {
    timed(profile_, "swiglu backward", row_work(elements(dy), kSwigluBackwardFlops, 5),
          [&] { inner_->swiglu_backward(gate, up, dy, d_gate, d_up); });
  }
  void do_add(const ConstMatrix& x, const Matrix& y) override {
    timed(profile_, "add", row_work(elements(x), 1, 3), [&] { inner_->add(x, y); });
  }

 private:
  std::unique_ptr<ElementwiseOps> inner_;
  Profile* profile_;
};

class ProfiledToken : public TokenOps {
 public:
  ProfiledToken(std::unique_ptr<TokenOps> inner, Profile* profile)
      : inner_(std::move(inner)), profile_(profile) {}

 protected:
  void do_gather_rows(const WeightHandle& table, const int32_t* ids, int32_t first_id,
                      const Matrix& y) override {
    const auto each = static_cast<double>(dtype_bytes(weight_dtype(table.kind)));
    timed(profile_, "embedding", {0, 0, 0, elements(y) * (each + sizeof(float))},
          [&] { inner_->gather_rows(table, ids, first_id, y); });
  }
  void do_rmsnorm_forward(const ConstMatrix& x, const float* weight, float eps, const Matrix& y,
                          float* rstd) override {
    timed(profile_, "norms forward", row_work(elements(x), kNormForwardFlops, 2),
          [&] { inner_->rmsnorm_forward(x, weight, eps, y, rstd); });
  }
  void do_rmsnorm_backward(const ConstMatrix& dy, const ConstMatrix& x, const float* weight,
                           const float* rstd, const Matrix& dx, Write write) override {
    timed(profile_, "norms backward",
          row_work(elements(x), kNormBackwardFlops, write == Write::kAdd ? 4 : 3),
          [&] { inner_->rmsnorm_backward(dy, x, weight, rstd, dx, write); });
  }
  void do_head_norm_forward(const ConstMatrix& x, int64_t head_dim, const float* weight, float eps,
                            const Matrix& y, float* rstd) override {
    timed(profile_, "norms forward", row_work(elements(x), kNormForwardFlops, 2),
          [&] { inner_->head_norm_forward(x, head_dim, weight, eps, y, rstd); });
  }
  void do_head_norm_backward(const ConstMatrix& dy, const ConstMatrix& x, int64_t head_dim,
                             const float* weight, const float* rstd, const Matrix& dx) override {
    timed(profile_, "norms backward", row_work(elements(x), kNormBackwardFlops, 3),
          [&] { inner_->head_norm_backward(dy, x, head_dim, weight, rstd, dx); });
  }
  void do_rope(const Matrix& x, int64_t head_dim, const float* cos, const float* sin,
               const int32_t* positions, Direction direction) override {
    timed(profile_, "rope", row_work(elements(x), kRopeFlops, 2),
          [&] { inner_->rope(x, head_dim, cos, sin, positions, direction); });
  }
  void do_dropout(const ConstMatrix& x, const DropoutMask& mask, const Matrix& y,
                  Write write) override {
    timed(profile_, "dropout", row_work(elements(x), kDropoutFlops, write == Write::kAdd ? 3 : 2),
          [&] { inner_->dropout(x, mask, y, write); });
  }

 private:
  std::unique_ptr<TokenOps> inner_;
  Profile* profile_;
};

/// One product over all visible pairs of queries and keys, of all heads.
double causal_product(const AttentionShape& shape, std::span<const AttentionItem> items) {
  double pairs = 0;
  for (const AttentionItem& item : items) pairs += visible_pairs(item, shape.window);
  return 2 * pairs * count_of(shape.num_heads, shape.head_dim);
}

double query_values(const AttentionShape& shape, std::span<const AttentionItem> items) {
  double rows = 0;
  for (const AttentionItem& item : items) rows += static_cast<double>(item.num_queries);
  return rows * count_of(shape.num_heads, shape.head_dim);
}

double key_values(const AttentionShape& shape, std::span<const AttentionItem> items) {
  double rows = 0;
  for (const AttentionItem& item : items) {
    const int64_t reach = item.num_queries == 0 ? 0 : item.num_queries - 1 + shape.window;
    rows += static_cast<double>(shape.window == 0 ? item.num_keys : std::min(item.num_keys, reach));
  }
  return rows * count_of(shape.num_kv_heads, shape.head_dim);
}

class ProfiledAttention : public AttentionOps {
 public:
  ProfiledAttention(std::unique_ptr<AttentionOps> inner, Profile* profile)
      : inner_(std::move(inner)), profile_(profile) {}

 protected:
  void do_forward(const AttentionShape& shape, std::span<const AttentionItem> items,
                  const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v, const Matrix& o,
                  float* lse) override {
    // Scores and the weighted sum; q and o, k and v.
    const OpWork work{0, 2 * causal_product(shape, items), 0,
                      f32_bytes(2 * query_values(shape, items) + 2 * key_values(shape, items))};
    timed(profile_, "attention forward", work,
          [&] { inner_->forward(shape, items, q, k, v, o, lse); });
  }
  void do_backward(const AttentionShape& shape, std::span<const AttentionItem> items,
                   const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                   const ConstMatrix& o, const float* lse, const ConstMatrix& d_o, const Matrix& dq,
                   const Matrix& dk, const Matrix& dv) override {
    // Scores again, dV, dP, dQ, dK; q, o, do, dq, and k, v, dk and dv added to.
    const OpWork work{0, 5 * causal_product(shape, items), 0,
                      f32_bytes(4 * query_values(shape, items) + 6 * key_values(shape, items))};
    timed(profile_, "attention backward", work,
          [&] { inner_->backward(shape, items, q, k, v, o, lse, d_o, dq, dk, dv); });
  }

 private:
  std::unique_ptr<AttentionOps> inner_;
  Profile* profile_;
};

class ProfiledLoss : public LossOps {
 public:
  ProfiledLoss(std::unique_ptr<LossOps> inner, Profile* profile)
      : inner_(std::move(inner)), profile_(profile) {}

 protected:
  void do_cross_entropy(const Matrix& logits, const int32_t* targets, float scale,
                        double* losses) override {
    timed(profile_, "cross entropy", row_work(elements(logits), kCrossEntropyFlops, 2),
          [&] { inner_->cross_entropy(logits, targets, scale, losses); });
  }
  void do_cross_entropy_loss_only(const ConstMatrix& logits, const int32_t* targets,
                                  double* losses) override {
    timed(profile_, "cross entropy", row_work(elements(logits), kCrossEntropyFlops, 1),
          [&] { inner_->cross_entropy_loss_only(logits, targets, losses); });
  }
  void do_cross_entropy_part(const ConstMatrix& logits, const int32_t* targets, int32_t first_token,
                             double* parts) override {
    timed(profile_, "cross entropy", row_work(elements(logits), kCrossEntropyFlops, 1),
          [&] { inner_->cross_entropy_part(logits, targets, first_token, parts); });
  }
  void do_cross_entropy_apply(const Matrix& logits, const int32_t* targets, int32_t first_token,
                              const double* log_sum_exp, float scale) override {
    timed(profile_, "cross entropy", row_work(elements(logits), kCrossEntropyFlops, 2),
          [&] { inner_->cross_entropy_apply(logits, targets, first_token, log_sum_exp, scale); });
  }

 private:
  std::unique_ptr<LossOps> inner_;
  Profile* profile_;
};

class ProfiledOptimizer : public OptimizerOps {
 public:
  ProfiledOptimizer(std::unique_ptr<OptimizerOps> inner, Profile* profile)
      : inner_(std::move(inner)), profile_(profile) {}

 protected:
  void do_adamw(float* w, const float* g, float* m, float* v, int64_t count,
                const AdamWStep& step) override {
    timed(profile_, "optimizer", row_work(static_cast<double>(count), kAdamWFlops, 7),
          [&] { inner_->adamw(w, g, m, v, count, step); });
  }
  double do_sum_of_squares(const float* x, int64_t count) override {
    double sum = 0;
    timed(profile_, "gradient norm", row_work(static_cast<double>(count), 2, 1),
          [&] { sum = inner_->sum_of_squares(x, count); });
    return sum;
  }
  bool do_all_finite(const float* x, int64_t count) override {
    bool finite = false;
    timed(profile_, "finite check", row_work(static_cast<double>(count), 0, 1),
          [&] { finite = inner_->all_finite(x, count); });
    return finite;
  }

 private:
  std::unique_ptr<OptimizerOps> inner_;
  Profile* profile_;
};

}  // namespace

void Profile::add(std::string_view name, double seconds, const OpWork& work) {
  ProfileRow& row = rows_[name];
  ++row.calls;
  row.seconds += seconds;
  row.work.product_flops += work.product_flops;
  row.work.attention_flops += work.attention_flops;
  row.work.f32_flops += work.f32_flops;
  row.work.bytes += work.bytes;
}

std::vector<ProfileRow> Profile::rows() const {
  std::vector<ProfileRow> rows;
  for (const auto& [name, row] : rows_) {
    rows.push_back(row);
    rows.back().name = name;
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const ProfileRow& a, const ProfileRow& b) { return a.seconds > b.seconds; });
  return rows;
}

OpSet profiled(OpSet ops, int64_t vocab, Profile* profile) {
  OpSet set;
  set.linear = std::make_unique<ProfiledLinear>(std::move(ops.linear), vocab, profile);
  set.elementwise = std::make_unique<ProfiledElementwise>(std::move(ops.elementwise), profile);
  set.token = std::make_unique<ProfiledToken>(std::move(ops.token), profile);
  set.attention = std::make_unique<ProfiledAttention>(std::move(ops.attention), profile);
  set.loss = std::make_unique<ProfiledLoss>(std::move(ops.loss), profile);
  set.optimizer = std::make_unique<ProfiledOptimizer>(std::move(ops.optimizer), profile);
  return set;
}

std::string_view limit_name(Limit limit) {
  switch (limit) {
    case Limit::kFlops:
      return "flops";
    case Limit::kBandwidth:
      return "bandwidth";
    case Limit::kLatency:
      return "latency";
  }
  return "unknown";
}

LimitVerdict limit_of(double seconds, const OpWork& work, const MachineRates& rates) {
  LimitVerdict verdict;
  if (seconds <= 0) return verdict;
  const auto needed = [](double amount, double rate) { return rate > 0 ? amount / rate : 0; };
  verdict.peak_fraction = (needed(work.product_flops, rates.product_flops) +
                           needed(work.attention_flops, rates.attention_flops) +
                           needed(work.f32_flops, rates.f32_flops)) /
                          seconds;
  verdict.bandwidth_fraction = needed(work.bytes, rates.bytes) / seconds;
  if (std::max(verdict.peak_fraction, verdict.bandwidth_fraction) < kLatencyFraction) {
    return verdict;
  }
  verdict.limit =
      verdict.peak_fraction >= verdict.bandwidth_fraction ? Limit::kFlops : Limit::kBandwidth;
  return verdict;
}

}  // namespace galley::device
