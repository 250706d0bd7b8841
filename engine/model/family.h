// Model families: one row of a table for each architecture that the block can run.
//
// A row says how config.json names the architecture, which keys of it the family understands and
// what they are worth when they are missing, what its block has, and what its weights are called. A
// new family is a new row, plus what its block really does differently. Plain values.
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
  std::string_view q_norm, k_norm;                            // of families with qk_norm
  std::array<std::string_view, kNumProjections> projections;  // module paths inside a layer
};

/// Where a family says that linears of attention have biases.
enum class AttentionBias : uint8_t {
  kNone,   // none has, and no key says otherwise
  kQkv,    // q, k and v always, o never
  kByKey,  // "attention_bias": q, k, v and o
};
/// Where a family says that its layers see a window.
enum class WindowKeys : uint8_t {
  kNone,          // none does
  kWindow,        // "sliding_window" in every layer, null for none
  kSwitchWindow,  // the same where "use_sliding_window" is true, from layer "max_window_layers" on
};

/// Values of keys that are missing, as the family's own code has them; 0: from other keys.
struct ConfigDefaults {
  int64_t num_kv_heads = 0;  // 0: as many as query heads
  int64_t head_dim = 0;      // 0: hidden / heads
  int64_t max_position = 2048;
  int64_t sliding_window = 0, max_window_layers = 0;
};

struct Family {
  std::string_view architecture;  // entry of "architectures"
  std::string_view model_type;
  std::string_view activation;  // the only "hidden_act" of this family here
  AttentionBias attention_bias = AttentionBias::kNone;
  bool has_mlp_bias_key = false;  // "mlp_bias": gate, up and down
  bool qk_norm = false;
  WindowKeys window = WindowKeys::kNone;
  ConfigDefaults defaults;
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
