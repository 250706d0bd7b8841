// HeadRunner: the ends of the network: embedding, final norm, head, loss at chosen rows in chunks.
// Owned by the worker's thread; allocates nothing after it is made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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
};

class HeadRunner {
 public:
  HeadRunner(device::Device* device, device::Stream* stream, device::OpSet* ops,
             const BaseWeights* weights, int64_t hidden, int64_t vocab, float rms_eps,
             const HeadTensors& tensors);

  /// Sum of the losses of all targets. Without `d_stream` no gradient; else adds the gradient of
  /// gradient_scale * sum to rows of d_stream [T, h], which the caller has zeroed.
  double loss(float* stream, std::span<const int32_t> rows, std::span<const int32_t> targets,
              double gradient_scale, float* d_stream);
  /// Logits of `rows` of the stream [T, h] to host memory [rows, V], dense.
  void logits(float* stream, std::span<const int32_t> rows, float* host);

 private:
  /// Gathers rows, norms them and multiplies with the head: logits of one chunk.
  device::Matrix chunk_logits(float* stream, std::span<const int32_t> rows);
  void chunk_backward(std::span<const int32_t> rows, const device::Matrix& d_logits,
                      float* d_stream);
  device::Matrix hidden_rows(float* data, int64_t rows) const;

  device::Device* device_;
  device::Stream* stream_;
  device::OpSet* ops_;
  const BaseWeights* weights_;
  int64_t hidden_, vocab_;
  float rms_eps_;
  HeadTensors tensors_;
  std::vector<double> values_;  // host copy of one chunk's losses
};

}  // namespace galley::nn
