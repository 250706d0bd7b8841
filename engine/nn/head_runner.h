// HeadRunner: the end of the network: final norm, head, loss at chosen rows in chunks.
//
// Of a divided vocabulary each tensor-parallel worker has the logits of its tokens: forward makes
// one loss of all parts, backward sums the gradient of the norm's output. Owned by the worker's
// thread; allocates nothing after it is made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/device/communicator.h"
#include "engine/device/ops.h"
#include "engine/nn/network.h"

namespace galley::nn {

/// Where its tensors lie (the plan's "loss.*"); those of the loss are null in inference.
struct HeadTensors {
  int64_t chunk_rows = 0;
  float* hidden = nullptr;     // [chunk, h] gathered rows of the residual stream
  float* norm = nullptr;       // [chunk, h]; backward reuses it for the rows' gradient
  float* rstd = nullptr;       // [chunk]
  float* logits = nullptr;     // [chunk, V], in place their gradient
  int32_t* targets = nullptr;  // [chunk]
  double* values = nullptr;    // [chunk]
  float* d_norm = nullptr;     // [chunk, h]
  // Divided vocabulary:
  double* parts = nullptr;        // [tp, chunk, 3]: see LossOps::cross_entropy_part
  double* log_sum_exp = nullptr;  // [chunk]
};

class HeadRunner {
 public:
  struct Setup {
    device::Device* device = nullptr;
    device::Stream* stream = nullptr;
    device::OpSet* ops = nullptr;
    const BaseWeights* weights = nullptr;
    model::WorkerShape shape;
    float rms_eps = 0;
    HeadTensors tensors;
    device::Communicator* tensor =
        nullptr;  // of the workers that share the vocabulary; null: alone
  };
  explicit HeadRunner(const Setup& setup);

  /// Rows of the residual stream: those of all tokens, or the share that this worker holds (rows
  /// are numbered from its first token).
  struct StreamRows {
    float* data = nullptr;
    model::IndexRange held;  // tokens whose rows are here
  };
  /// Sum of the losses of all targets. Without `d_stream` no gradient; else adds the gradient of
  /// gradient_scale * sum to the rows of d_stream, which the caller has zeroed.
  double loss(const StreamRows& stream, std::span<const int32_t> rows,
              std::span<const int32_t> targets, double gradient_scale, float* d_stream);
  /// Logits of `rows` of the stream [T, h] to host memory [rows, V], dense. Whole vocabulary only.
  void logits(float* stream, std::span<const int32_t> rows, float* host);

 private:
  /// Gathers rows, norms them and multiplies with the head: logits of one chunk.
  device::Matrix chunk_logits(const StreamRows& stream, std::span<const int32_t> rows);
  double chunk_loss(const device::Matrix& logits, double gradient_scale, bool with_gradient);
  double divided_chunk_loss(const device::Matrix& logits, double gradient_scale,
                            bool with_gradient);
  void chunk_backward(const StreamRows& stream, std::span<const int32_t> rows,
                      const device::Matrix& d_logits, float* d_stream);
  device::Matrix hidden_rows(float* data, int64_t rows) const;

  const Setup setup_;
  const HeadTensors& tensors_;
  const int64_t hidden_, vocab_;
  std::vector<double> values_;  // host copy of one chunk's losses, or log-sum-exps
  std::vector<double> parts_;   // host copy of all workers' parts
};

}  // namespace galley::nn
