#include "engine/nn/head_runner.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/error.h"

namespace galley::nn {

using device::Matrix;
using device::Write;

namespace {

constexpr size_t kPartValues = 3;  // largest logit, sum of exponentials, logit of the target

/// Calls visit(first index, row, count) for each run of consecutive rows among those held; rows are
/// counted from the first one held.
template <typename Visit>
void for_runs(std::span<const int32_t> rows, const model::IndexRange& held, Visit visit) {
  const auto is_held = [&](size_t i) { return rows[i] >= held.begin && rows[i] < held.end; };
  size_t begin = 0;
  while (begin < rows.size()) {
    if (!is_held(begin)) {
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1 && is_held(end)) ++end;
    visit(static_cast<int64_t>(begin), static_cast<int64_t>(rows[begin]) - held.begin,
          static_cast<int64_t>(end - begin));
    begin = end;
  }
}

}  // namespace

HeadRunner::HeadRunner(const Setup& setup)
    : setup_(setup),
      tensors_(setup_.tensors),
      hidden_(setup.shape.hidden),
      vocab_(setup.shape.vocab_size),
      values_(static_cast<size_t>(setup.tensors.chunk_rows)) {
  if (setup.tensor != nullptr) {
    parts_.resize(static_cast<size_t>(setup.shape.tp_size) * values_.size() * kPartValues);
  }
}

Matrix HeadRunner::hidden_rows(float* data, int64_t rows) const {
  return {data, rows, hidden_, model::row_stride(hidden_)};
}

Matrix HeadRunner::chunk_logits(const StreamRows& stream, std::span<const int32_t> rows) {
  const auto count = static_cast<int64_t>(rows.size());
  const Matrix hidden = hidden_rows(tensors_.hidden, count);
  const bool divided = setup_.shape.sequence_parallel == model::SequenceParallel::kYes;
  if (divided) {
    setup_.device->fill_zero(*setup_.stream, hidden.data,
                             static_cast<size_t>(count * hidden.stride) * sizeof(float));
  }
  for_runs(rows, stream.held, [&](int64_t index, int64_t row, int64_t run) {
    setup_.device->copy_on_device(*setup_.stream, hidden.data + index * hidden.stride,
                                  stream.data + row * hidden.stride,
                                  static_cast<size_t>(run * hidden.stride) * sizeof(float));
  });
  // Each row is with one worker, so the sum is the row.
  if (divided) setup_.tensor->all_reduce(hidden.data, count * hidden.stride);
  const Matrix norm = hidden_rows(tensors_.norm, count);
  setup_.ops->token->rmsnorm_forward(hidden, setup_.weights->final_norm(), setup_.rms_eps, norm,
                                     tensors_.rstd);
  const Matrix logits{tensors_.logits, count, vocab_, model::row_stride(vocab_)};
  setup_.ops->linear->forward(norm, setup_.weights->head(), nullptr, logits, Write::kSet);
  return logits;
}

void HeadRunner::chunk_backward(const StreamRows& stream, std::span<const int32_t> rows,
                                const Matrix& d_logits, float* d_stream) {
  const auto count = static_cast<int64_t>(rows.size());
  const Matrix d_norm = hidden_rows(tensors_.d_norm, count);
  setup_.ops->linear->backward_input(d_logits, setup_.weights->head(), nullptr, d_norm,
                                     Write::kSet);
  if (setup_.tensor != nullptr) setup_.tensor->all_reduce(d_norm.data, count * d_norm.stride);
  const Matrix d_hidden = hidden_rows(tensors_.norm, count);
  setup_.ops->token->rmsnorm_backward(d_norm, hidden_rows(tensors_.hidden, count),
                                      setup_.weights->final_norm(), tensors_.rstd, d_hidden,
                                      Write::kSet);
  for_runs(rows, stream.held, [&](int64_t index, int64_t row, int64_t run) {
    setup_.ops->elementwise->add(hidden_rows(d_hidden.data + index * d_hidden.stride, run),
                                 hidden_rows(d_stream + row * d_hidden.stride, run));
  });
}

double HeadRunner::chunk_loss(const Matrix& logits, double gradient_scale, bool with_gradient) {
  const auto count = static_cast<size_t>(logits.rows);
  if (with_gradient) {
    setup_.ops->loss->cross_entropy(logits, tensors_.targets, static_cast<float>(gradient_scale),
                                    tensors_.values);
  } else {
    setup_.ops->loss->cross_entropy_loss_only(logits, tensors_.targets, tensors_.values);
  }
  setup_.device->copy_to_host(*setup_.stream, values_.data(), tensors_.values,
                              count * sizeof(double));
  setup_.device->synchronize(*setup_.stream);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += values_[i];
  return sum;
}

/// The log-sum-exp over the whole vocabulary from every worker's part of it, in the order of ranks:
/// the same bits on each.
double HeadRunner::divided_chunk_loss(const Matrix& logits, double gradient_scale,
                                      bool with_gradient) {
  const auto count = static_cast<size_t>(logits.rows);
  const auto first_token = static_cast<int32_t>(setup_.shape.first_token);
  const auto workers = static_cast<size_t>(setup_.shape.tp_size);
  const size_t own = static_cast<size_t>(setup_.shape.tp_rank) * count * kPartValues;
  setup_.ops->loss->cross_entropy_part(logits, tensors_.targets, first_token, tensors_.parts + own);
  const std::span<double> parts(parts_.data(), workers * count * kPartValues);
  std::fill(parts.begin(), parts.end(), 0.0);
  setup_.device->copy_to_host(*setup_.stream, parts.data() + own, tensors_.parts + own,
                              count * kPartValues * sizeof(double));
  setup_.device->synchronize(*setup_.stream);
  setup_.tensor->all_reduce_host(parts);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto part = [&](size_t worker) {
      return parts.data() + (worker * count + i) * kPartValues;
    };
    double largest = part(0)[0], exponentials = 0, target = 0;
    for (size_t worker = 1; worker < workers; ++worker)
      largest = std::max(largest, part(worker)[0]);
    for (size_t worker = 0; worker < workers; ++worker) {
      exponentials += part(worker)[1] * std::exp(part(worker)[0] - largest);
      target += part(worker)[2];
    }
    values_[i] = largest + std::log(exponentials);
    sum += values_[i] - target;
  }
  if (!with_gradient) return sum;
  setup_.device->copy_to_device(*setup_.stream, tensors_.log_sum_exp, values_.data(),
                                count * sizeof(double));
  setup_.ops->loss->cross_entropy_apply(logits, tensors_.targets, first_token, tensors_.log_sum_exp,
                                        static_cast<float>(gradient_scale));
  return sum;
}

double HeadRunner::loss(const StreamRows& stream, std::span<const int32_t> rows,
                        std::span<const int32_t> targets, double gradient_scale, float* d_stream) {
  GALLEY_CHECK(rows.size() == targets.size());
  const auto chunk_rows = static_cast<size_t>(tensors_.chunk_rows);
  const bool with_gradient = d_stream != nullptr;
  double sum = 0;
  for (size_t begin = 0; begin < rows.size(); begin += chunk_rows) {
    const size_t count = std::min(chunk_rows, rows.size() - begin);
    const auto chunk = rows.subspan(begin, count);
    const Matrix logits = chunk_logits(stream, chunk);
    setup_.device->copy_to_device(*setup_.stream, tensors_.targets, targets.data() + begin,
                                  count * sizeof(int32_t));
    sum += setup_.tensor == nullptr ? chunk_loss(logits, gradient_scale, with_gradient)
                                    : divided_chunk_loss(logits, gradient_scale, with_gradient);
    if (with_gradient) chunk_backward(stream, chunk, logits, d_stream);
  }
  return sum;
}

void HeadRunner::logits(float* stream, std::span<const int32_t> rows, float* host) {
  GALLEY_CHECK(setup_.tensor == nullptr);
  const auto chunk_rows = static_cast<size_t>(tensors_.chunk_rows);
  const auto row_bytes = static_cast<size_t>(vocab_) * sizeof(float);
  const StreamRows all{stream, {0, std::numeric_limits<int32_t>::max()}};
  for (size_t begin = 0; begin < rows.size(); begin += chunk_rows) {
    const size_t count = std::min(chunk_rows, rows.size() - begin);
    const Matrix logits = chunk_logits(all, rows.subspan(begin, count));
    for (size_t i = 0; i < count; ++i) {
      setup_.device->copy_to_host(*setup_.stream, host + (begin + i) * static_cast<size_t>(vocab_),
                                  logits.data + static_cast<int64_t>(i) * logits.stride, row_bytes);
    }
    setup_.device->synchronize(*setup_.stream);
  }
}

}  // namespace galley::nn
