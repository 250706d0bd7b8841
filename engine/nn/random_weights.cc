#include "engine/nn/random_weights.h"

#include <algorithm>
#include <cstring>

#include "engine/core/error.h"
#include "engine/core/random.h"

namespace galley::nn {
namespace {

using model::WeightRole;

int64_t num_elements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

size_t largest_weight(const std::vector<model::WeightSpec>& specs) {
  size_t most = 0;
  for (const model::WeightSpec& spec : specs) {
    most = std::max(most, static_cast<size_t>(num_elements(spec.shape)));
  }
  return most;
}

bool is_norm(WeightRole role) {
  return role == WeightRole::kFinalNorm || role == WeightRole::kAttentionNorm ||
         role == WeightRole::kMlpNorm || role == WeightRole::kQNorm || role == WeightRole::kKNorm;
}

}  // namespace

RandomWeights::RandomWeights(const model::ModelConfig& config)
    : specs_(model::weight_specs(config)) {
  // Drawing a block once is enough: no kernel is faster for numbers that it has seen.
  constexpr size_t kBlock = size_t{1} << 16;
  values_.resize((largest_weight(specs_) + kBlock - 1) / kBlock * kBlock);
  Random random(1, random_stream("bench weights"));
  for (size_t i = 0; i < kBlock; ++i) values_[i] = 0.08f * (random.uniform_f32() - 0.5f);
  for (size_t begin = kBlock; begin < values_.size(); begin += kBlock) {
    std::memcpy(values_.data() + begin, values_.data(), kBlock * sizeof(float));
  }
  ones_.assign(static_cast<size_t>(std::max(config.hidden, config.head_dim)), 1.0f);
}

model::StoredTensor RandomWeights::get(const model::WeightId& id) const {
  const auto spec = std::find_if(specs_.begin(), specs_.end(),
                                 [&](const model::WeightSpec& s) { return s.id == id; });
  GALLEY_CHECK(spec != specs_.end());
  model::StoredTensor tensor;
  tensor.dtype = DType::kF32;
  tensor.shape = spec->shape;
  tensor.bytes =
      reinterpret_cast<const std::byte*>(is_norm(id.role) ? ones_.data() : values_.data());
  tensor.num_bytes = static_cast<uint64_t>(num_elements(spec->shape)) * sizeof(float);
  return tensor;
}

size_t RandomWeights::bytes(const model::ModelConfig& config) {
  return largest_weight(model::weight_specs(config)) * sizeof(float);
}

}  // namespace galley::nn
