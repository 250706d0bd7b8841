#include "tests/bench/profiled_ops.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

namespace galley::bench {
namespace {

using namespace galley::device;  // NOLINT: wrappers of that module's interfaces

template <typename Body>
void timed(Profile* profile, const std::string& name, double flops, const Body& body) {
  const double begin = profile->now();
  body();
  profile->add(name, profile->now() - begin, flops);
}

double product(int64_t a, int64_t b, int64_t c) {
  return 2.0 * static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
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
    const int64_t rank = low_rank == nullptr ? 0 : low_rank->xa.cols;
    timed(profile_, w.out == vocab_ ? "head forward" : "linears forward",
          product(x.rows, w.in + rank, w.out), [&] { inner_->forward(x, w, low_rank, y, write); });
  }
  void do_backward_input(const ConstMatrix& dy, const WeightHandle& w, const LowRank* low_rank,
                         const Matrix& dx, Write write) override {
    const int64_t rank = low_rank == nullptr ? 0 : low_rank->xa.cols;
    timed(profile_, w.out == vocab_ ? "head backward" : "linears backward",
          product(dy.rows, w.out + rank, w.in),
          [&] { inner_->backward_input(dy, w, low_rank, dx, write); });
  }
  void do_matmul_nt(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                    Write write) override {
    timed(profile_, "adapter x A^T", product(a.rows, a.cols, b.rows),
          [&] { inner_->matmul_nt(a, b, alpha, c, write); });
  }
  void do_matmul_nn(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                    Write write) override {
    timed(profile_, "adapter dy B", product(a.rows, a.cols, b.cols),
          [&] { inner_->matmul_nn(a, b, alpha, c, write); });
  }
  void do_matmul_tn(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                    Write write) override {
    timed(profile_, "adapter dA, dB", product(a.rows, a.cols, b.cols),
          [&] { inner_->matmul_tn(a, b, alpha, c, write); });
  }

 private:
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
    timed(profile_, "swiglu", 0, [&] { inner_->swiglu_forward(gate, up, y); });
  }
  void do_swiglu_backward(const ConstMatrix& gate, const ConstMatrix& up, const ConstMatrix& dy,
                          const Matrix& d_gate, const Matrix& d_up) override {
    timed(profile_, "swiglu", 0, [&] { inner_->swiglu_backward(gate, up, dy, d_gate, d_up); });
  }
  void do_add(const ConstMatrix& x, const Matrix& y) override {
    timed(profile_, "add", 0, [&] { inner_->add(x, y); });
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
  void do_gather_rows(const WeightHandle& table, const int32_t* ids, const Matrix& y) override {
    timed(profile_, "embedding", 0, [&] { inner_->gather_rows(table, ids, y); });
  }
  void do_rmsnorm_forward(const ConstMatrix& x, const float* weight, float eps, const Matrix& y,
                          float* rstd) override {
    timed(profile_, "norms", 0, [&] { inner_->rmsnorm_forward(x, weight, eps, y, rstd); });
  }
  void do_rmsnorm_backward(const ConstMatrix& dy, const ConstMatrix& x, const float* weight,
                           const float* rstd, const Matrix& dx, Write write) override {
    timed(profile_, "norms", 0, [&] { inner_->rmsnorm_backward(dy, x, weight, rstd, dx, write); });
  }
  void do_rope(const Matrix& x, int64_t head_dim, const float* cos, const float* sin,
               const int32_t* positions, Direction direction) override {
    timed(profile_, "rope", 0, [&] { inner_->rope(x, head_dim, cos, sin, positions, direction); });
  }
  void do_dropout(const ConstMatrix& x, float p, uint64_t seed, uint64_t stream,
                  const uint64_t* row_ids, const Matrix& y, Write write) override {
    timed(profile_, "dropout", 0, [&] { inner_->dropout(x, p, seed, stream, row_ids, y, write); });
  }

 private:
  std::unique_ptr<TokenOps> inner_;
  Profile* profile_;
};

double causal_products(const AttentionShape& shape, std::span<const AttentionItem> items) {
  double keys = 0;
  for (const AttentionItem& item : items) {
    const auto queries = static_cast<double>(item.num_queries);
    keys += queries * (static_cast<double>(item.num_keys) - (queries - 1) / 2);
  }
  return 2.0 * keys * static_cast<double>(shape.num_heads * shape.head_dim);
}

class ProfiledAttention : public AttentionOps {
 public:
  ProfiledAttention(std::unique_ptr<AttentionOps> inner, Profile* profile)
      : inner_(std::move(inner)), profile_(profile) {}

 protected:
  void do_forward(const AttentionShape& shape, std::span<const AttentionItem> items,
                  const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v, const Matrix& o,
                  float* lse) override {
    timed(profile_, "attention forward", 2 * causal_products(shape, items),
          [&] { inner_->forward(shape, items, q, k, v, o, lse); });
  }
  void do_backward(const AttentionShape& shape, std::span<const AttentionItem> items,
                   const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                   const ConstMatrix& o, const float* lse, const ConstMatrix& d_o, const Matrix& dq,
                   const Matrix& dk, const Matrix& dv) override {
    timed(profile_, "attention backward", 5 * causal_products(shape, items),
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
    timed(profile_, "cross entropy", 0,
          [&] { inner_->cross_entropy(logits, targets, scale, losses); });
  }
  void do_cross_entropy_loss_only(const ConstMatrix& logits, const int32_t* targets,
                                  double* losses) override {
    timed(profile_, "cross entropy", 0,
          [&] { inner_->cross_entropy_loss_only(logits, targets, losses); });
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
    timed(profile_, "optimizer", 0, [&] { inner_->adamw(w, g, m, v, count, step); });
  }
  double do_sum_of_squares(const float* x, int64_t count) override {
    double sum = 0;
    timed(profile_, "optimizer", 0, [&] { sum = inner_->sum_of_squares(x, count); });
    return sum;
  }
  bool do_all_finite(const float* x, int64_t count) override {
    return inner_->all_finite(x, count);
  }

 private:
  std::unique_ptr<OptimizerOps> inner_;
  Profile* profile_;
};

}  // namespace

void Profile::add(const std::string& name, double seconds, double flops) {
  Row& row = rows_[name];
  row.seconds += seconds;
  row.flops += flops;
}

void Profile::print(int steps, double step_seconds, double peak) const {
  std::vector<std::pair<std::string, Row>> rows(rows_.begin(), rows_.end());
  double seen = 0;
  for (const auto& [name, row] : rows) seen += row.seconds;
  rows.push_back({"rest (copies, fills)", {step_seconds * steps - seen, 0}});
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  std::printf("  %-22s %9s %7s %8s %6s\n", "operation", "ms/step", "share", "GF/s", "peak");
  for (const auto& [name, row] : rows) {
    std::printf("  %-22s %9.1f %6.1f%%", name.c_str(), 1e3 * row.seconds / steps,
                100 * row.seconds / (step_seconds * steps));
    if (row.flops > 0) {
      const double rate = row.flops / row.seconds;
      std::printf(" %8.1f %5.1f%%", 1e-9 * rate, 100 * rate / peak);
    }
    std::printf("\n");
  }
}

device::OpSet profiled(device::OpSet ops, int64_t vocab, Profile* profile) {
  device::OpSet set;
  set.linear = std::make_unique<ProfiledLinear>(std::move(ops.linear), vocab, profile);
  set.elementwise = std::make_unique<ProfiledElementwise>(std::move(ops.elementwise), profile);
  set.token = std::make_unique<ProfiledToken>(std::move(ops.token), profile);
  set.attention = std::make_unique<ProfiledAttention>(std::move(ops.attention), profile);
  set.loss = std::make_unique<ProfiledLoss>(std::move(ops.loss), profile);
  set.optimizer = std::make_unique<ProfiledOptimizer>(std::move(ops.optimizer), profile);
  return set;
}

}  // namespace galley::bench
