// Weights of a model folder: which stored tensor is which weight of the network.
//
// Opens model.safetensors or the sharded index, checks all shards first, then names and shapes
// against the config: all missing or misshapen tensors are named in one error, surplus tensors are
// warnings. Opening reads headers and a few sampled bytes of each tensor; the rest is read when
// used, and get() lets the system fetch the weights that follow in the order of weight_specs().
// Immutable for its users; any thread may call.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
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
  kQNorm,
  kKNorm,  // [head_dim], models with qk_norm
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
  void read_ahead_of(size_t index) const;

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<StoredTensor> tensors_;  // in the order of weight_specs()
  std::unordered_map<uint64_t, size_t> index_;
  // Tensors below are fetched, or on their way. A hint: two threads may do it twice.
  std::unique_ptr<std::atomic<size_t>> ahead_ = std::make_unique<std::atomic<size_t>>(0);
  std::string fingerprint_;
};

}  // namespace galley::model
