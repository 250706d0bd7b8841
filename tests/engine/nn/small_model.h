// A small random model of any family for tests: its weights, the device that runs it, and a naive
// f64 forward pass written from the definition, with which gradients are checked by central
// differences.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/device/host/host_device.h"
#include "engine/model/lora.h"
#include "engine/model/model_config.h"
#include "engine/nn/network.h"

namespace galley::testing {

struct SmallShape {
  int64_t vocab = 37, hidden = 24, intermediate = 40, layers = 3;
  int64_t heads = 4, kv_heads = 2, head_dim = 6;
  bool tied = false, attention_bias = false, mlp_bias = false;
  bool qkv_bias = false;  // of q, k, v without that of o
  bool qk_norm = false;
  int64_t sliding_window = 0;
};
model::ModelConfig small_config(const SmallShape& shape);

/// All weights as f32, drawn from a seed.
class SmallWeights {
 public:
  SmallWeights(const model::ModelConfig& config, uint64_t seed);
  nn::BaseWeights::Source source() const;
  const std::vector<float>& get(const model::WeightId& id) const;

 private:
  struct Entry {
    model::WeightId id;
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  std::vector<Entry> entries_;
};

/// A host device with everything that networks need.
struct Rig {
  explicit Rig(int threads = 1, device::KernelSet kernels = device::KernelSet::kAuto);
  std::unique_ptr<device::HostDevice> device;
  std::unique_ptr<device::Stream> stream;
  device::OpSet ops;
  std::unique_ptr<nn::BaseWeights> load(const model::ModelConfig& config,
                                        const SmallWeights& weights, DType dtype = DType::kF32);
};

/// Rows of random ids; every position but the first of a row is a target with some probability.
struct Batch {
  std::vector<std::vector<int32_t>> rows;
  std::vector<std::vector<bool>> is_target;  // [row][position]; position 0 never
};
Batch random_batch(const std::vector<int>& lengths, int64_t vocab, uint64_t seed,
                   double share = 0.7);
/// Packed training step of rows [begin, end) of the batch; row_ids count tokens of the whole batch.
nn::StepPlan train_step(const Batch& batch, size_t begin, size_t end);
nn::StepPlan train_step(const Batch& batch);

/// Mask / (1 - p) of a linear's adapter input, or empty without dropout: [tokens, in] of one row.
using MaskSource = std::function<std::vector<float>(int layer, model::Projection projection,
                                                    size_t row, int64_t tokens, int64_t in)>;
/// Logits [tokens, vocab] of one row in f64, through the adapter.
std::vector<double> reference_logits(const model::ModelConfig& config, const SmallWeights& weights,
                                     const std::vector<model::AdaptedLinear>& linears,
                                     const std::vector<double>& parameters,
                                     const std::vector<int32_t>& ids, size_t row = 0,
                                     const MaskSource& mask = {});
/// Sum of the losses of all targets of the batch, in f64.
double reference_loss(const model::ModelConfig& config, const SmallWeights& weights,
                      const std::vector<model::AdaptedLinear>& linears,
                      const std::vector<double>& parameters, const Batch& batch,
                      const MaskSource& mask = {});

std::vector<model::AdaptedLinear> adapt(const model::ModelConfig& config,
                                        const std::vector<std::string>& targets,
                                        const std::vector<int64_t>& layers, int64_t rank = 3,
                                        double alpha = 5);
/// Values without zeros, so that no gradient vanishes.
std::vector<float> random_parameters(const std::vector<model::AdaptedLinear>& linears,
                                     uint64_t seed);
model::MemorySettings settings_for(const std::vector<model::AdaptedLinear>& linears,
                                   const nn::StepPlan& step);

/// Largest |a - b| / largest |b|.
template <typename A, typename B>
double relative_error(const A* a, const B* b, size_t count) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    worst = std::max(worst, difference < 0 ? -difference : difference);
    largest = std::max(largest, b[i] < 0 ? -static_cast<double>(b[i]) : static_cast<double>(b[i]));
    if (!(difference == difference)) return 1e30;
  }
  return largest > 0 ? worst / largest : worst;
}

}  // namespace galley::testing
