#include "engine/nn/head_runner.h"

#include <algorithm>

#include "engine/core/error.h"

namespace galley::nn {

using device::Matrix;
using device::Write;

namespace {

/// Calls visit(first index, row, count) for each run of consecutive rows.
template <typename Visit>
void for_runs(std::span<const int32_t> rows, Visit visit) {
  size_t begin = 0;
  while (begin < rows.size()) {
    size_t end = begin + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
    visit(static_cast<int64_t>(begin), static_cast<int64_t>(rows[begin]),
          static_cast<int64_t>(end - begin));
    begin = end;
  }
}

}  // namespace

HeadRunner::HeadRunner(device::Device* device, device::Stream* stream, device::OpSet* ops,
                       const BaseWeights* weights, int64_t hidden, int64_t vocab, float rms_eps,
                       const HeadTensors& tensors)
    : device_(device),
      stream_(stream),
      ops_(ops),
      weights_(weights),
      hidden_(hidden),
      vocab_(vocab),
      rms_eps_(rms_eps),
      tensors_(tensors),
      values_(static_cast<size_t>(tensors.chunk_rows)) {}

Matrix HeadRunner::hidden_rows(float* data, int64_t rows) const {
  return {data, rows, hidden_, model::row_stride(hidden_)};
}

Matrix HeadRunner::chunk_logits(float* stream, std::span<const int32_t> rows) {
  const auto count = static_cast<int64_t>(rows.size());
  const Matrix hidden = hidden_rows(tensors_.hidden, count);
  for_runs(rows, [&](int64_t index, int64_t row, int64_t run) {
    device_->copy_on_device(*stream_, hidden.data + index * hidden.stride,
                            stream + row * hidden.stride,
                            static_cast<size_t>(run * hidden.stride) * sizeof(float));
  });
  const Matrix norm = hidden_rows(tensors_.norm, count);
  ops_->token->rmsnorm_forward(hidden, weights_->final_norm(), rms_eps_, norm, tensors_.rstd);
  const Matrix logits{tensors_.logits, count, vocab_, model::row_stride(vocab_)};
  ops_->linear->forward(norm, weights_->head(), nullptr, logits, Write::kSet);
  return logits;
}

void HeadRunner::chunk_backward(std::span<const int32_t> rows, const Matrix& d_logits,
                                float* d_stream) {
  const auto count = static_cast<int64_t>(rows.size());
  const Matrix d_norm = hidden_rows(tensors_.d_norm, count);
  ops_->linear->backward_input(d_logits, weights_->head(), nullptr, d_norm, Write::kSet);
  const Matrix d_hidden = hidden_rows(tensors_.norm, count);
  ops_->token->rmsnorm_backward(d_norm, hidden_rows(tensors_.hidden, count), weights_->final_norm(),
                                tensors_.rstd, d_hidden, Write::kSet);
  for_runs(rows, [&](int64_t index, int64_t row, int64_t run) {
    ops_->elementwise->add(hidden_rows(d_hidden.data + index * d_hidden.stride, run),
                           hidden_rows(d_stream + row * d_hidden.stride, run));
  });
}

double HeadRunner::loss(float* stream, std::span<const int32_t> rows,
                        std::span<const int32_t> targets, double gradient_scale, float* d_stream) {
  GALLEY_CHECK(rows.size() == targets.size());
  const auto chunk_rows = static_cast<size_t>(tensors_.chunk_rows);
  double sum = 0;
  for (size_t begin = 0; begin < rows.size(); begin += chunk_rows) {
    const size_t count = std::min(chunk_rows, rows.size() - begin);
    const auto chunk = rows.subspan(begin, count);
    const Matrix logits = chunk_logits(stream, chunk);
    device_->copy_to_device(*stream_, tensors_.targets, targets.data() + begin,
                            count * sizeof(int32_t));
    if (d_stream != nullptr) {
      ops_->loss->cross_entropy(logits, tensors_.targets, static_cast<float>(gradient_scale),
                                tensors_.values);
      chunk_backward(chunk, logits, d_stream);
    } else {
      ops_->loss->cross_entropy_loss_only(logits, tensors_.targets, tensors_.values);
    }
    device_->copy_to_host(*stream_, values_.data(), tensors_.values, count * sizeof(double));
    device_->synchronize(*stream_);
    for (size_t i = 0; i < count; ++i) sum += values_[i];
  }
  return sum;
}

void HeadRunner::logits(float* stream, std::span<const int32_t> rows, float* host) {
  const auto chunk_rows = static_cast<size_t>(tensors_.chunk_rows);
  const auto row_bytes = static_cast<size_t>(vocab_) * sizeof(float);
  for (size_t begin = 0; begin < rows.size(); begin += chunk_rows) {
    const size_t count = std::min(chunk_rows, rows.size() - begin);
    const Matrix logits = chunk_logits(stream, rows.subspan(begin, count));
    for (size_t i = 0; i < count; ++i) {
      device_->copy_to_host(*stream_, host + (begin + i) * static_cast<size_t>(vocab_),
                            logits.data + static_cast<int64_t>(i) * logits.stride, row_bytes);
    }
    device_->synchronize(*stream_);
  }
}

}  // namespace galley::nn
