// RandomWeights: weights of any model's shape for measurements, where values do not change the
// speed. One owner; must outlive the loads that take from it.
#pragma once

#include <vector>

#include "engine/model/weights.h"

namespace galley::nn {

class RandomWeights {
 public:
  explicit RandomWeights(const model::ModelConfig& config);
  /// Numbers around zero, ones for norms, in f32; a BaseWeights::Source. Any thread.
  model::StoredTensor get(const model::WeightId& id) const;
  /// What it holds at most, beside the weights that are made from it.
  static size_t bytes(const model::ModelConfig& config);

 private:
  const std::vector<model::WeightSpec> specs_;
  std::vector<float> values_, ones_;
};

}  // namespace galley::nn
