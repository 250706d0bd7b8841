// Weights of a model folder: which stored tensor is which weight of the network.
//
// Opens model.safetensors or the sharded index, checks all shards first, then names and shapes
// against the config: all missing or misshapen tensors are named in one error, surplus tensors are
// warnings. Only maps files; nothing is read until used.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/model/model_config.h"
#include "engine/model/safetensors.h"

namespace galley::model {

/// The place of a weight in the network.
enum class WeightRole : uint8_t {
  kEmbedding,
  kHead,
  kFinalNorm,  // layer = -1
  kAttentionNorm,
  kMlpNorm,  // [hidden]
  kProjection,
  kProjectionBias,  // with `projection`
};
struct WeightId {
  WeightRole role = WeightRole::kEmbedding;
  int layer = -1;
  Projection projection = Projection::kQ;
  bool operator==(const WeightId&) const = default;
};

/// One weight that the config demands: its Hugging Face name and shape.
struct WeightSpec {
  WeightId id;
  std::string name;
  std::vector<int64_t> shape;
};
/// All weights of a model, in a fixed order (embedding, layers, final norm, untied head).
std::vector<WeightSpec> weight_specs(const ModelConfig& config);

class ModelWeights {
 public:
  /// Error(kBadModel) listing everything that is wrong. `warnings` gets surplus tensors.
  static ModelWeights open(const std::string& model_folder, const ModelConfig& config,
                           std::vector<std::string>* warnings = nullptr);
  const StoredTensor& get(const WeightId& id) const;
  /// Fingerprint over names, shapes, dtypes, sizes and sampled bytes of all shards (fast).
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<std::pair<WeightId, StoredTensor>> tensors_;
  std::string fingerprint_;
};

}  // namespace galley::model
