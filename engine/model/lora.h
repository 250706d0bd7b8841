// LoRA: which linears are adapted, with which rank and scaling; the trainable set as tensors.
//
// Plain values. PEFT semantics (0.21): scaling = alpha / r, or alpha / sqrt(r) with rslora;
// rank_pattern and alpha_pattern are regular expressions on the module path's end, independent of
// each other.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/json.h"
#include "engine/model/model_config.h"

namespace galley::model {

enum class LoraInit {
  kDefault,
  kGaussian
};  // A kaiming-uniform(a = sqrt 5) / A normal(0, 1/r); B zero

struct LoraSettings {
  int64_t rank = 16;
  double alpha = 32;
  double dropout = 0;
  bool rslora = false;
  LoraInit init = LoraInit::kDefault;
  std::vector<std::string> targets;  // ends of module paths ("q_proj"); empty = all seven
  std::string target_pattern;        // instead of targets: regular expression over the whole path
  std::vector<std::string> exclude;  // ends of module paths that stay as they are
  std::string exclude_pattern;       // regular expression over the whole path
  std::vector<int64_t> layers;       // empty = all
  // In the order of their file: of several keys that match a module the first one counts.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  bool operator==(const LoraSettings&) const = default;
};

/// One adapted linear.
struct AdaptedLinear {
  int layer = 0;
  Projection projection = Projection::kQ;
  int64_t rank = 0;
  double scaling = 0;
  int64_t in = 0, out = 0;
  /// PEFT names: "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight" [rank, in].
  std::string name_a() const;
  std::string name_b() const;  // ...lora_B.weight [out, rank]
  uint64_t num_parameters() const { return static_cast<uint64_t>(rank * (in + out)); }
};

/// All adapted linears, ordered by layer, then projection. Error(kBadConfig) naming a target that
/// matches no linear, with the nearest names; a rank beyond the linear's widths; no target at all.
std::vector<AdaptedLinear> adapted_linears(const ModelConfig& config, const LoraSettings& settings);

/// The trainable set: tensors in one flat f32 vector, A then B of each linear, in order.
struct TrainableTensor {
  std::string name;
  std::vector<int64_t> shape;
  uint64_t offset = 0;  // elements into the flat vector
  uint64_t num_elements() const;
};
std::vector<TrainableTensor> trainable_tensors(const std::vector<AdaptedLinear>& linears);
uint64_t num_trainable(const std::vector<AdaptedLinear>& linears);

/// Initial values of the flat vector as PEFT draws them in distribution (seeded by tensor name, so
/// that they do not depend on order or layout).
std::vector<float> initial_adapter(const std::vector<AdaptedLinear>& linears, LoraInit init,
                                   uint64_t seed);

}  // namespace galley::model
