#include "engine/nn/block_runner.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/random.h"

namespace galley::nn {

using device::ConstMatrix;
using device::Matrix;
using device::Write;
using model::BlockOp;
using model::BlockOperation;
using model::Projection;
using model::Slot;

namespace {

size_t at(Slot slot) { return static_cast<size_t>(slot); }
size_t at(Projection projection) { return static_cast<size_t>(projection); }

/// What an adapter adds to a linear; without xa.
device::LowRank low_rank_of(const AdapterLinear& adapter, const device::WeightHandle& weight) {
  device::LowRank low_rank;
  low_rank.a = ConstMatrix(adapter.a, adapter.rank, weight.in, weight.in);
  low_rank.b = ConstMatrix(adapter.b, weight.out, adapter.rank, adapter.rank);
  low_rank.scale = adapter.scale;
  return low_rank;
}

bool in_stream(Slot slot) {
  return slot == Slot::kInput || slot == Slot::kMiddle || slot == Slot::kOutput;
}

Matrix rows_of(const Matrix& matrix, int64_t row, int64_t num_rows) {
  return {matrix.data + row * matrix.stride, num_rows, matrix.cols, matrix.stride};
}

}  // namespace

/// One layer in one step.
struct BlockRunner::Pass {
  int layer = 0;
  const BlockRunner& runner;
  const LayerTensors& tensors;
  const StepView& step;

  /// Of the residual stream this worker may hold a share of the tokens only.
  int64_t rows(Slot slot) const {
    return in_stream(slot) ? runner.setup_.shape.stream_tokens(step.num_tokens).size()
                           : step.num_tokens;
  }
  Matrix slot(Slot slot, int64_t rank = 0) const {
    float* data = tensors.at[at(slot)];
    GALLEY_CHECK(data != nullptr);
    return runner.matrix(data, rows(slot), slot_width(runner.setup_.shape, slot, rank));
  }
  Matrix gradient(Slot slot) const {
    float* data = tensors.gradient[at(slot)];
    GALLEY_CHECK(data != nullptr);
    return runner.matrix(data, rows(slot), slot_width(runner.setup_.shape, slot, 0));
  }
  /// Room for a sum over the workers: [T, h].
  Matrix partial() const {
    GALLEY_CHECK(tensors.partial != nullptr);
    return runner.matrix(tensors.partial, step.num_tokens, runner.setup_.shape.hidden);
  }
  Matrix low_rank(Projection projection, const AdapterRange& range, int64_t rank) const {
    return rows_of(slot(low_rank_slot(projection), rank), range.row, range.num_rows);
  }
  const AdapterLinear& adapter(const AdapterRange& range, Projection projection) const {
    return (*range.table)[static_cast<size_t>(layer)][at(projection)];
  }
};

BlockRunner::BlockRunner(const Setup& setup)
    : setup_(setup), share_elements_(static_cast<size_t>(setup.shape.tp_size)) {
  GALLEY_CHECK((setup.tensor == nullptr) == (setup.shape.tp_size == 1));
  const auto last_layer = static_cast<uint64_t>(setup.shape.first_layer + setup.shape.num_layers);
  for (uint64_t layer = 0; layer < last_layer; ++layer) {
    auto& streams = dropout_streams_.emplace_back();
    for (uint64_t p = 0; p < model::kNumProjections; ++p) {
      streams[p] = random_stream("dropout", {layer, p});
    }
  }
}

Matrix BlockRunner::matrix(float* data, int64_t rows, int64_t cols) const {
  return {data, rows, cols, model::row_stride(cols)};
}

std::span<const int64_t> BlockRunner::share_elements(const Matrix& rows) {
  for (int rank = 0; rank < setup_.shape.tp_size; ++rank) {
    const auto index = static_cast<size_t>(rank);
    share_elements_[index] =
        model::shard_range(rows.rows, setup_.shape.tp_size, rank).size() * rows.stride;
  }
  return share_elements_;
}

void BlockRunner::sum_rows(const Matrix& rows) {
  if (setup_.tensor != nullptr) setup_.tensor->all_reduce(rows.data, rows.rows * rows.stride);
}

void BlockRunner::sum_own_rows(const Matrix& rows) {
  setup_.tensor->reduce_scatter(rows.data, share_elements(rows));
}

void BlockRunner::gather_rows(const Matrix& rows) {
  setup_.tensor->all_gather(rows.data, share_elements(rows));
}

Matrix BlockRunner::own_rows(const Matrix& rows) const {
  const model::IndexRange own = setup_.shape.stream_tokens(rows.rows);
  return rows_of(rows, own.begin, own.size());
}

void BlockRunner::forward(int layer, const LayerTensors& tensors, const StepView& step) {
  const Pass pass{layer, *this, tensors, step};
  for (const BlockOperation& operation : model::block_operations({.qk_norm = setup_.shape.qk_norm}))
    run(pass, operation);
}

void BlockRunner::backward(int layer, const model::BlockBackward& needs,
                           const LayerTensors& tensors, const StepView& step) {
  const Pass pass{layer, *this, tensors, step};
  const auto& operations = model::block_operations({.qk_norm = setup_.shape.qk_norm});
  for (size_t i = 0; i < operations.size(); ++i) {
    if (needs.rerun[i] == model::Rerun::kWhole) run(pass, operations[i]);
    if (needs.rerun[i] == model::Rerun::kLowRank) rerun_low_rank(pass, operations[i]);
  }
  std::array<bool, model::kNumSlots> written{};
  for (size_t i = operations.size(); i-- > 0;) backward_of(pass, operations[i], needs, &written);
}

void BlockRunner::run(const Pass& pass, const BlockOperation& operation) {
  switch (operation.op) {
    case BlockOp::kNorm:
      run_norm(pass, operation);
      return;
    case BlockOp::kLinear:
      run_linear(pass, operation);
      return;
    case BlockOp::kRotate:
      for (const Slot slot : operation.inputs) {
        rotate(pass.slot(slot), pass.step, device::TokenOps::Direction::kForward);
      }
      return;
    case BlockOp::kHeadNorm:
      setup_.ops->token->head_norm_forward(
          pass.slot(operation.inputs[0]), setup_.shape.head_dim, norm_weight(pass.layer, operation),
          setup_.rms_eps, pass.slot(operation.output), pass.tensors.at[at(operation.statistic)]);
      return;
    case BlockOp::kAttention:
      run_attention(pass);
      return;
    case BlockOp::kSwiglu:
      setup_.ops->elementwise->swiglu_forward(pass.slot(Slot::kGate), pass.slot(Slot::kUp),
                                              pass.slot(Slot::kProduct));
      return;
  }
}

/// Sequence parallel: forward norms the own tokens and gathers all, backward sums and keeps the
/// own.
void BlockRunner::run_norm(const Pass& pass, const BlockOperation& operation) {
  const Matrix all = pass.slot(operation.output);
  setup_.ops->token->rmsnorm_forward(
      pass.slot(operation.inputs[0]), norm_weight(pass.layer, operation), setup_.rms_eps,
      divides_tokens() ? own_rows(all) : all, pass.tensors.at[at(operation.statistic)]);
  if (divides_tokens()) gather_rows(all);
}

/// Where a linear's output goes and how. Column-parallel: forward has its outputs, backward a
/// summand of its input's gradient. Row-parallel: forward has a summand of its output, to which
/// one worker adds the residual stream; backward has its inputs' gradient.
Matrix BlockRunner::begin_output(const Pass& pass, const BlockOperation& operation, Write* write) {
  *write = Write::kSet;
  if (!operation.has_residual) return pass.slot(operation.output);
  if (divides_tokens()) return pass.partial();
  const Matrix y = pass.slot(operation.output);
  if (setup_.shape.tp_rank > 0) return y;
  const Matrix residual = pass.slot(operation.residual);
  if (residual.data != y.data) {
    setup_.device->copy_on_device(
        *setup_.stream, y.data, residual.data,
        static_cast<size_t>(y.rows) * static_cast<size_t>(y.stride) * sizeof(float));
  }
  *write = Write::kAdd;
  return y;
}

/// Makes the sum of the summands that begin_output() speaks of.
void BlockRunner::end_output(const Pass& pass, const BlockOperation& operation, const Matrix& y) {
  if (!operation.has_residual) return;
  if (!divides_tokens()) {
    sum_rows(y);
    return;
  }
  sum_own_rows(y);
  const Matrix output = pass.slot(operation.output);
  const Matrix residual = pass.slot(operation.residual);
  if (residual.data != output.data) {
    setup_.device->copy_on_device(
        *setup_.stream, output.data, residual.data,
        static_cast<size_t>(output.rows) * static_cast<size_t>(output.stride) * sizeof(float));
  }
  setup_.ops->elementwise->add(own_rows(y), output);
}

void BlockRunner::run_linear(const Pass& pass, const BlockOperation& operation) {
  const ConstMatrix x = pass.slot(operation.inputs[0]);
  const device::WeightHandle& weight = setup_.weights->projection(pass.layer, operation.projection);
  Write write = Write::kSet;
  const Matrix y = begin_output(pass, operation, &write);
  // One adapter for all rows rides along with the base product; several are added behind it.
  if (pass.step.adapters.size() == 1 && pass.step.adapters[0].num_rows == pass.step.num_tokens) {
    const AdapterRange& range = pass.step.adapters[0];
    const AdapterLinear& adapter = pass.adapter(range, operation.projection);
    if (adapter.rank > 0) {
      device::LowRank low_rank = low_rank_of(adapter, weight);
      if (pass.step.dropout > 0) {
        low_rank.xa = run_low_rank(pass, range, adapter, operation);
      } else {
        low_rank.activation = device::LowRank::Activation::kComputed;
        low_rank.xa = pass.low_rank(operation.projection, range, adapter.rank);
      }
      setup_.ops->linear->forward(x, weight, &low_rank, y, write);
      end_output(pass, operation, y);
      return;
    }
  }
  setup_.ops->linear->forward(x, weight, nullptr, y, write);
  for (const AdapterRange& range : pass.step.adapters) {
    const AdapterLinear& adapter = pass.adapter(range, operation.projection);
    if (adapter.rank > 0) run_adapter(pass, range, adapter, operation, y);
  }
  end_output(pass, operation, y);
}

void BlockRunner::run_adapter(const Pass& pass, const AdapterRange& range,
                              const AdapterLinear& adapter, const BlockOperation& operation,
                              const Matrix& output) {
  const Matrix xa = run_low_rank(pass, range, adapter, operation);
  const Matrix y = rows_of(output, range.row, range.num_rows);
  const ConstMatrix b(adapter.b, y.cols, adapter.rank, adapter.rank);
  setup_.ops->linear->matmul_nt(xa, b, adapter.scale, y, Write::kAdd);
}

/// xa = x A^T of the rows of one adapter.
Matrix BlockRunner::run_low_rank(const Pass& pass, const AdapterRange& range,
                                 const AdapterLinear& adapter, const BlockOperation& operation) {
  const ConstMatrix x = adapter_input(pass, range, operation);
  const Matrix xa = pass.low_rank(operation.projection, range, adapter.rank);
  const ConstMatrix a(adapter.a, adapter.rank, x.cols, x.cols);
  setup_.ops->linear->matmul_nt(x, a, 1.0f, xa, Write::kSet);
  return xa;
}

void BlockRunner::rerun_low_rank(const Pass& pass, const BlockOperation& operation) {
  for (const AdapterRange& range : pass.step.adapters) {
    const AdapterLinear& adapter = pass.adapter(range, operation.projection);
    if (adapter.rank > 0) run_low_rank(pass, range, adapter, operation);
  }
}

/// The rows of a linear's input as its adapter sees them: with dropout, a masked copy.
ConstMatrix BlockRunner::adapter_input(const Pass& pass, const AdapterRange& range,
                                       const BlockOperation& operation) {
  const Matrix x = rows_of(pass.slot(operation.inputs[0]), range.row, range.num_rows);
  if (pass.step.dropout <= 0) return x;
  GALLEY_CHECK(pass.tensors.dropped != nullptr);
  const Matrix dropped = matrix(pass.tensors.dropped, x.rows, x.cols);
  setup_.ops->token->dropout(x, mask(pass, range, operation), dropped, Write::kSet);
  return dropped;
}

/// That of the whole input: a row-parallel worker has some of its columns.
device::TokenOps::DropoutMask BlockRunner::mask(const Pass& pass, const AdapterRange& range,
                                                const BlockOperation& operation) const {
  return {.p = pass.step.dropout,
          .seed = setup_.dropout_seed,
          .stream = dropout_stream(pass.layer, operation.projection),
          .row_ids = pass.step.row_ids + range.row,
          .first_column = setup_.shape.columns_of(operation.projection).begin};
}

void BlockRunner::run_attention(const Pass& pass) {
  ConstMatrix keys = pass.slot(Slot::kK);
  ConstMatrix values = pass.slot(Slot::kV);
  if (pass.tensors.key_cache != nullptr) {
    const int64_t stride = keys.stride;
    for (const CacheWrite& write : pass.step.cache_writes) {
      const auto bytes = static_cast<size_t>(write.num_rows * stride) * sizeof(float);
      setup_.device->copy_on_device(*setup_.stream,
                                    pass.tensors.key_cache + write.cache_row * stride,
                                    keys.data + write.row * stride, bytes);
      setup_.device->copy_on_device(*setup_.stream,
                                    pass.tensors.value_cache + write.cache_row * stride,
                                    values.data + write.row * stride, bytes);
    }
    keys = matrix(pass.tensors.key_cache, pass.tensors.cache_rows, keys.cols);
    values = matrix(pass.tensors.value_cache, pass.tensors.cache_rows, values.cols);
  }
  setup_.ops->attention->forward(attention_shape(), pass.step.attention, pass.slot(Slot::kQ), keys,
                                 values, pass.slot(Slot::kAttention),
                                 pass.tensors.at[at(Slot::kLse)]);
}

void BlockRunner::rotate(const Matrix& x, const StepView& step,
                         device::TokenOps::Direction direction) {
  setup_.ops->token->rope(x, setup_.shape.head_dim, setup_.cos, setup_.sin, step.positions,
                          direction);
}

void BlockRunner::backward_of(const Pass& pass, const BlockOperation& operation,
                              const model::BlockBackward& needs,
                              std::array<bool, model::kNumSlots>* written) {
  const bool input_needs = std::any_of(operation.inputs.begin(), operation.inputs.end(),
                                       [&](Slot slot) { return needs.needs_gradient[at(slot)]; });
  switch (operation.op) {
    case BlockOp::kLinear: {
      bool& second = (*written)[at(operation.inputs[0])];
      backward_linear(pass, operation, input_needs, second ? Write::kAdd : Write::kSet);
      second |= input_needs;
      return;
    }
    case BlockOp::kNorm:
      if (input_needs) backward_norm(pass, operation);
      return;
    case BlockOp::kRotate:
      if (!input_needs) return;
      for (const Slot slot : operation.inputs) {
        rotate(pass.gradient(slot), pass.step, device::TokenOps::Direction::kBackward);
      }
      return;
    case BlockOp::kHeadNorm:
      if (!input_needs) return;
      setup_.ops->token->head_norm_backward(
          pass.gradient(operation.output), pass.slot(operation.inputs[0]), setup_.shape.head_dim,
          norm_weight(pass.layer, operation), pass.tensors.at[at(operation.statistic)],
          pass.gradient(operation.inputs[0]));
      return;
    case BlockOp::kAttention:
      if (input_needs) backward_attention(pass);
      return;
    case BlockOp::kSwiglu:
      if (!input_needs) return;
      setup_.ops->elementwise->swiglu_backward(
          pass.slot(Slot::kGate), pass.slot(Slot::kUp), pass.gradient(Slot::kProduct),
          pass.gradient(Slot::kGate), pass.gradient(Slot::kUp));
      return;
  }
}

/// The residual stream's gradient is already there: the branch adds to it. What the linears behind
/// a norm have left on each worker are summands of its output's gradient.
void BlockRunner::backward_norm(const Pass& pass, const BlockOperation& operation) {
  const Matrix all = pass.gradient(operation.output);
  divides_tokens() ? sum_own_rows(all) : sum_rows(all);
  setup_.ops->token->rmsnorm_backward(
      divides_tokens() ? own_rows(all) : all, pass.slot(operation.inputs[0]),
      norm_weight(pass.layer, operation), pass.tensors.at[at(operation.statistic)],
      pass.gradient(operation.inputs[0]), Write::kAdd);
}

/// Of all tokens, also where this worker holds the residual stream of some.
Matrix BlockRunner::output_gradient(const Pass& pass, const BlockOperation& operation) {
  const Matrix own = pass.gradient(operation.output);
  if (!operation.has_residual || !divides_tokens()) return own;
  const Matrix all = pass.partial();
  setup_.device->copy_on_device(
      *setup_.stream, own_rows(all).data, own.data,
      static_cast<size_t>(own.rows) * static_cast<size_t>(own.stride) * sizeof(float));
  gather_rows(all);
  return all;
}

/// forward: y = x W^T + scale (x A^T) B^T; backward: dA, dB add, dx = dy W + (scale dy B) A.
void BlockRunner::backward_linear(const Pass& pass, const BlockOperation& operation,
                                  bool input_needs, Write write) {
  const device::WeightHandle& weight = setup_.weights->projection(pass.layer, operation.projection);
  const AdapterRange* const range = adapted_range(pass, operation.projection);
  const AdapterLinear* const adapter =
      range == nullptr ? nullptr : &pass.adapter(*range, operation.projection);
  // With dropout the adapter's share of dx passes the mask; a gradient that takes the memory of x
  // overwrites what dA still needs. Otherwise dxa is computed on the way, and dA after it.
  const bool shares = pass.step.dropout <= 0;
  const bool on_the_way =
      adapter != nullptr && shares && input_needs &&
      pass.gradient(operation.inputs[0]).data != pass.slot(operation.inputs[0]).data;
  if (adapter == nullptr && !input_needs) return;
  const Matrix dy = output_gradient(pass, operation);
  if (adapter != nullptr && !on_the_way) {
    backward_activation(pass, *range, *adapter, dy);
    backward_adapter(pass, *range, *adapter, operation, dy);
  }
  if (!input_needs) return;
  device::LowRank low_rank;
  if (adapter != nullptr && shares) {
    low_rank = low_rank_of(*adapter, weight);
    low_rank.xa = matrix(pass.tensors.d_low_rank, range->num_rows, adapter->rank);
    if (on_the_way) low_rank.activation = device::LowRank::Activation::kComputed;
  }
  setup_.ops->linear->backward_input(dy, weight, low_rank.xa.rows > 0 ? &low_rank : nullptr,
                                     pass.gradient(operation.inputs[0]), write);
  if (adapter == nullptr) return;
  if (on_the_way) backward_adapter(pass, *range, *adapter, operation, dy);
  if (!shares) backward_dropped(pass, *range, *adapter, operation);
}

/// Training has one adapter for all rows, or none.
const AdapterRange* BlockRunner::adapted_range(const Pass& pass, Projection projection) const {
  for (const AdapterRange& range : pass.step.adapters) {
    if (pass.adapter(range, projection).rank == 0) continue;
    GALLEY_CHECK(range.num_rows == pass.step.num_tokens);
    return &range;
  }
  return nullptr;
}

/// dxa = scale dy B into d_low_rank.
void BlockRunner::backward_activation(const Pass& pass, const AdapterRange& range,
                                      const AdapterLinear& adapter, const Matrix& d_output) {
  const Matrix dy = rows_of(d_output, range.row, range.num_rows);
  const ConstMatrix b(adapter.b, dy.cols, adapter.rank, adapter.rank);
  setup_.ops->linear->matmul_nn(dy, b, adapter.scale,
                                matrix(pass.tensors.d_low_rank, range.num_rows, adapter.rank),
                                Write::kSet);
}

/// Adds dB = scale dy^T xa and dA = dxa^T x, with dxa in d_low_rank.
void BlockRunner::backward_adapter(const Pass& pass, const AdapterRange& range,
                                   const AdapterLinear& adapter, const BlockOperation& operation,
                                   const Matrix& d_output) {
  device::LinearOps& linear = *setup_.ops->linear;
  const Matrix dy = rows_of(d_output, range.row, range.num_rows);
  const Matrix xa = pass.low_rank(operation.projection, range, adapter.rank);
  const Matrix dxa = matrix(pass.tensors.d_low_rank, range.num_rows, adapter.rank);
  const Matrix d_b{adapter.d_b, dy.cols, adapter.rank, adapter.rank};
  linear.matmul_tn(dy, xa, adapter.scale, d_b, Write::kAdd);
  const ConstMatrix x = adapter_input(pass, range, operation);
  const Matrix d_a{adapter.d_a, adapter.rank, x.cols, x.cols};
  linear.matmul_tn(dxa, x, 1.0f, d_a, Write::kAdd);
}

/// With dropout the adapter's share of dx passes the mask: dx += mask(dxa A) / (1 - p).
void BlockRunner::backward_dropped(const Pass& pass, const AdapterRange& range,
                                   const AdapterLinear& adapter, const BlockOperation& operation) {
  const Matrix dx = rows_of(pass.gradient(operation.inputs[0]), range.row, range.num_rows);
  GALLEY_CHECK(pass.tensors.d_dropped != nullptr);
  const Matrix share = matrix(pass.tensors.d_dropped, dx.rows, dx.cols);
  const Matrix dxa = matrix(pass.tensors.d_low_rank, range.num_rows, adapter.rank);
  const ConstMatrix a(adapter.a, adapter.rank, dx.cols, dx.cols);
  setup_.ops->linear->matmul_nn(dxa, a, 1.0f, share, Write::kSet);
  setup_.ops->token->dropout(share, mask(pass, range, operation), dx, Write::kAdd);
}

void BlockRunner::backward_attention(const Pass& pass) {
  const Matrix dk = pass.gradient(Slot::kK);
  const Matrix dv = pass.gradient(Slot::kV);
  const auto bytes = static_cast<size_t>(dk.rows * dk.stride) * sizeof(float);
  setup_.device->fill_zero(*setup_.stream, dk.data, bytes);
  setup_.device->fill_zero(*setup_.stream, dv.data, bytes);
  setup_.ops->attention->backward(attention_shape(), pass.step.attention, pass.slot(Slot::kQ),
                                  pass.slot(Slot::kK), pass.slot(Slot::kV),
                                  pass.slot(Slot::kAttention), pass.tensors.at[at(Slot::kLse)],
                                  pass.gradient(Slot::kAttention), pass.gradient(Slot::kQ), dk, dv);
}

const float* BlockRunner::norm_weight(int layer, const BlockOperation& operation) const {
  if (operation.output == Slot::kQ) return setup_.weights->q_norm(layer);
  if (operation.output == Slot::kK) return setup_.weights->k_norm(layer);
  return operation.output == Slot::kAttentionNorm ? setup_.weights->attention_norm(layer)
                                                  : setup_.weights->mlp_norm(layer);
}

device::AttentionShape BlockRunner::attention_shape() const {
  const model::WorkerShape& shape = setup_.shape;
  return {.num_heads = shape.num_heads,
          .num_kv_heads = shape.num_kv_heads,
          .head_dim = shape.head_dim,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim))),
          .heads_per_kv = shape.heads_per_kv,
          .first_in_group = shape.first_in_group(),
          .window = setup_.sliding_window,
          .operands = device::attention_operands(setup_.weights->dtype())};
}

uint64_t BlockRunner::dropout_stream(int layer, Projection projection) const {
  return dropout_streams_[static_cast<size_t>(layer)][at(projection)];
}

}  // namespace galley::nn
