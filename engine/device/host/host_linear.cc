// LinearOps of the host device.
#include <algorithm>

#include "engine/device/host/host_ops.h"

namespace galley::device {
namespace {

// Products below this many multiply-adds per thread are not worth waking a thread for. With few
// rows reading B takes longer than the arithmetic: it counts as much as kRowsOfReading more rows.
constexpr int64_t kWorkPerThread = 200'000;
constexpr int64_t kRowsOfReading = 7;

class HostLinearOps final : public LinearOps {
 public:
  explicit HostLinearOps(const HostRuntime& runtime) : runtime_(runtime) {}

 protected:
  void do_pack_weight(const WeightHandle& weight, DType source, const void* host_rows,
                      int64_t row_begin, int64_t num_rows) override;
  void do_forward(const ConstMatrix& x, const WeightHandle& weight, const LowRank* low_rank,
                  const Matrix& y, Write write) override;
  void do_backward_input(const ConstMatrix& dy, const WeightHandle& weight, const LowRank* low_rank,
                         const Matrix& dx, Write write) override;
  void do_matmul_nt(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                    Write write) override;
  void do_matmul_nn(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                    Write write) override;
  void do_matmul_tn(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                    Write write) override;

 private:
  void multiply(GemmTask task);
  void forward_int8(const ConstMatrix& x, const WeightHandle& weight, const LowRank* low_rank,
                    const Matrix& y, Write write);
  void sum_outer(const OuterTask& task);
  int64_t threads_for(int64_t work) const;

  const HostRuntime& runtime_;
};

void HostLinearOps::do_pack_weight(const WeightHandle& weight, DType source, const void* host_rows,
                                   int64_t row_begin, int64_t num_rows) {
  const SourceRows rows = {source, host_rows, row_begin, num_rows};
  if (weight.kind == WeightKind::kInt8) {
    pack_host_int8_weight(runtime_, weight, rows);
  } else {
    pack_host_weight(runtime_, weight, rows);
  }
}

/// The product that a task's `down` asks for.
GemmTask narrow_task(const GemmTask& t) {
  GemmTask narrow;
  narrow.a = t.a;
  narrow.a_row = t.a_row;
  narrow.alpha = t.down_scale;
  narrow.b_form = t.down_form;
  narrow.b = t.down;
  narrow.b_stride = t.down_stride;
  narrow.m = t.m;
  narrow.n = t.k2;
  narrow.k = t.k;
  narrow.c = t.a2;
  narrow.c_row = t.a2_row;
  return narrow;
}

/// Where threads split columns the narrow product, which all need, goes before.
void HostLinearOps::multiply(GemmTask t) {
  if (t.m == 0 || t.n == 0) return;
  const GemmKernels& kernels = runtime_.kernels->gemm;
  const int64_t threads = threads_for((t.m + kRowsOfReading) * t.n * (t.k + t.k2));
  if (threads > 1 && t.down != nullptr && !splits_rows(t.m, t.n, kernels.tile_rows, threads)) {
    multiply(narrow_task(t));
    t.down = nullptr;
  }
  split_product(runtime_, t.m, t.n, kernels.tile_rows, threads,
                [&](int64_t m0, int64_t m1, int64_t n0, int64_t n1, float* scratch) {
                  kernels.gemm(t, m0, m1, n0, n1, scratch);
                });
}

/// Threads take columns, of which each reads its own: no sums to join.
void HostLinearOps::sum_outer(const OuterTask& t) {
  if (t.m == 0 || t.n == 0) return;
  const GemmKernels& kernels = runtime_.kernels->gemm;
  const int64_t panels = (t.n + kPanelOutputs - 1) / kPanelOutputs;
  const int64_t wanted = std::min(panels, threads_for(t.m * t.n * t.k));
  if (wanted == 1) {
    kernels.outer(t, 0, t.n, runtime_.gemm_scratch(0));
    return;
  }
  const int64_t part = (panels + wanted - 1) / wanted;
  runtime_.pool->run([&](int thread) {
    const int64_t begin = std::min(panels, thread * part);
    const int64_t end = std::min(panels, begin + part);
    if (begin == end) return;
    kernels.outer(t, begin * kPanelOutputs, std::min(t.n, end * kPanelOutputs),
                  runtime_.gemm_scratch(thread));
  });
}

int64_t HostLinearOps::threads_for(int64_t work) const {
  return std::clamp<int64_t>(work / kWorkPerThread, 1, runtime_.pool->size());
}

GemmTask task_of(const ConstMatrix& a, const Matrix& c, int64_t k, Write write) {
  GemmTask task;
  task.a = a.data;
  task.a_row = a.stride;
  task.m = c.rows;
  task.n = c.cols;
  task.k = k;
  task.c = c.data;
  task.c_row = c.stride;
  task.add = write == Write::kAdd;
  return task;
}

void set_weight(GemmTask* task, const WeightHandle& weight, BForm f32, BForm bf16) {
  task->b_form = weight.kind == WeightKind::kF32 ? f32 : bf16;
  task->b = weight.arena->at<std::byte>(weight.offset_bytes);
  task->b_stride = stored_inputs(weight);
}

struct PlainOperand {
  BForm form;  // kRows or kColumns
  const ConstMatrix& matrix;
};

/// Adds the low-rank part to the task where it can ride along. `up` multiplies xa, `down` makes it.
void set_low_rank(GemmTask* task, const LowRank& low_rank, const PlainOperand& up, float scale,
                  const PlainOperand& down, float down_scale) {
  task->a2 = low_rank.xa.data;
  task->a2_row = low_rank.xa.stride;
  task->k2 = low_rank.xa.cols;
  task->b2_form = up.form;
  task->b2 = up.matrix.data;
  task->b2_stride = up.matrix.stride;
  task->scale2 = scale;
  if (low_rank.activation == LowRank::Activation::kGiven) return;
  task->down_form = down.form;
  task->down = down.matrix.data;
  task->down_stride = down.matrix.stride;
  task->down_scale = down_scale;
}

void HostLinearOps::do_forward(const ConstMatrix& x, const WeightHandle& weight,
                               const LowRank* low_rank, const Matrix& y, Write write) {
  if (weight.kind == WeightKind::kInt8) return forward_int8(x, weight, low_rank, y, write);
  GemmTask task = task_of(x, y, weight.in, write);
  set_weight(&task, weight, BForm::kPanelF32, BForm::kPanelBf16);
  task.bias = weight.bias;
  if (low_rank == nullptr || low_rank->xa.cols == 0) return multiply(task);
  const LowRank& part = *low_rank;
  if (part.xa.cols <= kGemmMaxExtension) {
    set_low_rank(&task, part, {BForm::kColumns, part.b}, part.scale, {BForm::kColumns, part.a}, 1);
    return multiply(task);
  }
  if (part.activation == LowRank::Activation::kComputed) {
    do_matmul_nt(x, part.a, 1.0f, part.xa, Write::kSet);
  }
  multiply(task);
  do_matmul_nt(part.xa, part.b, part.scale, y, Write::kAdd);
}

void HostLinearOps::forward_int8(const ConstMatrix& x, const WeightHandle& weight,
                                 const LowRank* low_rank, const Matrix& y, Write write) {
  multiply_host_int8(runtime_, x, weight, y, write);
  // The low-rank part stays f32.
  if (low_rank == nullptr || low_rank->xa.cols == 0) return;
  if (low_rank->activation == LowRank::Activation::kComputed) {
    do_matmul_nt(x, low_rank->a, 1.0f, low_rank->xa, Write::kSet);
  }
  do_matmul_nt(low_rank->xa, low_rank->b, low_rank->scale, y, Write::kAdd);
}

void HostLinearOps::do_backward_input(const ConstMatrix& dy, const WeightHandle& weight,
                                      const LowRank* low_rank, const Matrix& dx, Write write) {
  GemmTask task = task_of(dy, dx, weight.out, write);
  set_weight(&task, weight, BForm::kPanelF32Transposed, BForm::kPanelBf16Transposed);
  if (weight.kind == WeightKind::kInt8) task.b_form = BForm::kPanelInt8Transposed;
  if (low_rank == nullptr || low_rank->xa.cols == 0) return multiply(task);
  const LowRank& part = *low_rank;
  if (part.xa.cols <= kGemmMaxExtension) {
    set_low_rank(&task, part, {BForm::kRows, part.a}, 1, {BForm::kRows, part.b}, part.scale);
    return multiply(task);
  }
  if (part.activation == LowRank::Activation::kComputed) {
    do_matmul_nn(dy, part.b, part.scale, part.xa, Write::kSet);
  }
  multiply(task);
  do_matmul_nn(part.xa, part.a, 1.0f, dx, Write::kAdd);
}

void HostLinearOps::do_matmul_nt(const ConstMatrix& a, const ConstMatrix& b, float alpha,
                                 const Matrix& c, Write write) {
  GemmTask task = task_of(a, c, a.cols, write);
  task.alpha = alpha;
  task.b_form = BForm::kColumns;
  task.b = b.data;
  task.b_stride = b.stride;
  multiply(task);
}

void HostLinearOps::do_matmul_nn(const ConstMatrix& a, const ConstMatrix& b, float alpha,
                                 const Matrix& c, Write write) {
  GemmTask task = task_of(a, c, a.cols, write);
  task.alpha = alpha;
  task.b = b.data;
  task.b_stride = b.stride;
  multiply(task);
}

void HostLinearOps::do_matmul_tn(const ConstMatrix& a, const ConstMatrix& b, float alpha,
                                 const Matrix& c, Write write) {
  // The smaller side of c is its rows there, if need be of c transposed.
  const bool turned = c.rows > c.cols;
  const ConstMatrix& left = turned ? b : a;
  const ConstMatrix& right = turned ? a : b;
  OuterTask task;
  task.a = left.data;
  task.a_row = left.stride;
  task.alpha = alpha;
  task.b = right.data;
  task.b_row = right.stride;
  task.m = left.cols;
  task.n = right.cols;
  task.k = a.rows;
  task.c = c.data;
  task.c_row = turned ? 1 : c.stride;
  task.c_column = turned ? c.stride : 1;
  task.add = write == Write::kAdd;
  sum_outer(task);
}

}  // namespace

std::unique_ptr<LinearOps> make_host_linear_ops(const HostRuntime& runtime) {
  return std::make_unique<HostLinearOps>(runtime);
}

}  // namespace galley::device
