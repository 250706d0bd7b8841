// Model families: one row of a table for each architecture that the block can run.
//
// A row says how config.json names the architecture, which activation it has, and what its weights
// are called. A new family is a new row, plus what its block really does differently. Plain values.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/model_config.h"

namespace galley::model {

/// Names inside a checkpoint. Layer names are LAYERS + "N." + name.
struct WeightNames {
  std::string_view embedding, head, final_norm, layers;
  std::string_view attention_norm, mlp_norm;
  std::string_view q_norm, k_norm;  // of families with qk_norm
  std::array<std::string_view, kNumProjections> projections;  // module paths inside a layer
};

struct Family {
  std::string_view architecture;  // entry of "architectures"
  std::string_view model_type;
  std::string_view activation;  // the only "hidden_act" of this family here
  WeightNames names;
};

/// The row of an architecture, or nullptr.
const Family* find_family(std::string_view architecture);
/// The row of a model_type (for configs without "architectures"), or nullptr.
const Family* find_family_by_model_type(std::string_view model_type);
/// The row of a config that was read; Error(kInternal) when there is none.
const Family& family_of(const ModelConfig& config);
/// Architectures that this version has.
std::vector<std::string> family_names();

/// "model.layers.3.self_attn.q_proj": a linear's module path, the same in all families here.
std::string module_path(int64_t layer, Projection projection);

}  // namespace galley::model
