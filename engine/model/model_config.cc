#include "engine/model/model_config.h"

#include <array>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "engine/model/config_keys.h"
#include "engine/model/family.h"
#include "engine/model/rope.h"

namespace galley::model {
namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;

const Family& read_family(const ConfigKeys& keys) {
  std::string named;
  const std::string model_type = keys.text("model_type", "");
  const Family* typed = find_family_by_model_type(model_type);
  if (const Json* list = keys.find("architectures")) {
    if (!list->is_array()) keys.bad("architectures", "must be a list of names");
    for (const Json& entry : list->as_array()) {
      if (!entry.is_string()) keys.bad("architectures", "must be a list of names");
      if (const Family* family = find_family(entry.as_string())) {
        if (typed == nullptr || typed == family) return *family;
        keys.bad("model_type",
                 cat("is ", model_type, ", but \"architectures\" says ", family->architecture));
      }
      if (named.empty()) named = entry.as_string();
    }
  }
  if (named.empty()) {
    if (typed != nullptr) return *typed;
    named = model_type;
  }
  if (named.empty()) keys.bad("architectures", "is missing: which model is this?");
  keys.unsupported(cat("architecture ", named, " is not supported; this version runs ",
                       join(family_names(), ", ")));
}

DType read_dtype(const ConfigKeys& keys) {
  const char* key = keys.find("dtype") != nullptr ? "dtype" : "torch_dtype";
  std::string name = keys.text(key, "float32");
  if (name.starts_with("torch.")) name = name.substr(6);
  if (name == "float32") return DType::kF32;
  if (name == "bfloat16") return DType::kBf16;
  if (name == "float16") return DType::kF16;
  if (name == "auto") return DType::kF32;
  keys.unsupported(cat("\"", key, "\" ", name,
                       " is not supported; this version has float32, bfloat16, float16"));
}

void read_heads(const ConfigKeys& keys, const Family& family, ModelConfig* config) {
  const ConfigDefaults& defaults = family.defaults;
  config->num_heads = keys.size("num_attention_heads", kMaxHeads);
  const bool as_heads = defaults.num_kv_heads == 0 || keys.is_null("num_key_value_heads");
  config->num_kv_heads = keys.size("num_key_value_heads", kMaxHeads,
                                   as_heads ? config->num_heads : defaults.num_kv_heads);
  if (config->num_heads % config->num_kv_heads != 0) {
    keys.bad("num_key_value_heads", cat("is ", config->num_kv_heads, ", it must divide the ",
                                        config->num_heads, " attention heads"));
  }
  if (keys.find("head_dim") == nullptr && defaults.head_dim == 0 &&
      config->hidden % config->num_heads != 0) {
    keys.bad("hidden_size",
             cat("is ", config->hidden, ", not a multiple of the ", config->num_heads,
                 " attention heads, and no \"head_dim\" is given"));
  }
  const int64_t even = config->hidden / config->num_heads;
  config->head_dim =
      keys.size("head_dim", kMaxWidth, defaults.head_dim > 0 ? defaults.head_dim : even);
  if (config->head_dim % 2 != 0) {
    keys.bad("head_dim", cat("is ", config->head_dim, ", rotary positions need an even number"));
  }
  if (config->q_width() > 4 * kMaxWidth) {
    keys.bad("head_dim", cat("times ", config->num_heads, " heads is ", config->q_width(),
                             ", more than any model of this kind has"));
  }
}

/// Keys of models whose layers compute something else, and the value at which they say nothing
/// (null: any value does). Who ignored them would run another model.
void refuse_other_models(const ConfigKeys& keys) {
  static const std::pair<const char*, Json> kNeutral[] = {{"attn_logit_softcapping", nullptr},
                                                          {"final_logit_softcapping", nullptr},
                                                          {"query_pre_attn_scalar", nullptr},
                                                          {"attention_multiplier", nullptr},
                                                          {"embedding_multiplier", 1.0},
                                                          {"residual_multiplier", 1.0},
                                                          {"logits_scaling", 1.0},
                                                          {"no_rope_layers", nullptr},
                                                          {"attention_chunk_size", nullptr},
                                                          {"dual_chunk_attention_config", nullptr},
                                                          {"num_experts", 0},
                                                          {"num_local_experts", 0},
                                                          {"attention_dropout", 0},
                                                          {"use_mrope", false},
                                                          {"parallel_residual", false},
                                                          {"use_parallel_residual", false}};
  for (const auto& [key, neutral] : kNeutral) {
    const Json* value = keys.find(key);
    if (value == nullptr) continue;
    const bool same = value->is_number() && neutral.is_number()
                          ? value->as_double() == neutral.as_double()
                          : *value == neutral;
    if (!same) keys.unsupported(cat("\"", key, "\" ", value->dump(), " is not supported"));
  }
}

/// A switch that a family does not have must be off.
void require_off(const ConfigKeys& keys, const Family& family, std::string_view key) {
  if (!keys.flag(key, false)) return;
  keys.unsupported(cat("\"", key, "\" is not a key of ", family.architecture, " in this version"));
}

void read_biases(const ConfigKeys& keys, const Family& family, ModelConfig* config) {
  if (family.attention_bias == AttentionBias::kByKey) {
    config->qkv_bias = config->o_bias = keys.flag("attention_bias", false);
  } else {
    require_off(keys, family, "attention_bias");
    config->qkv_bias = family.attention_bias == AttentionBias::kQkv;
  }
  if (!family.has_mlp_bias_key) require_off(keys, family, "mlp_bias");
  config->mlp_bias = keys.flag("mlp_bias", false);
  config->qk_norm = family.qk_norm;
  if (!family.qk_norm) require_off(keys, family, "use_qk_norm");
}

enum class LayerTypes { kUnsaid, kFull, kSliding };

/// "layer_types": one of two words for each layer; all must be the same here.
LayerTypes read_layer_types(const ConfigKeys& keys, int64_t num_layers) {
  constexpr const char* kKey = "layer_types";
  const Json* list = keys.find(kKey);
  if (list == nullptr) return LayerTypes::kUnsaid;
  if (!list->is_array()) keys.bad(kKey, "must be a list of names");
  const Json::Array& types = list->as_array();
  if (static_cast<int64_t>(types.size()) != num_layers) {
    keys.bad(kKey, cat("has ", types.size(), " entries, the model has ", num_layers, " layers"));
  }
  int64_t num_sliding = 0;
  for (const Json& type : types) {
    if (!type.is_string()) keys.bad(kKey, "must be a list of names");
    const std::string& name = type.as_string();
    if (name != "full_attention" && name != "sliding_attention") {
      keys.unsupported(cat("\"", kKey, "\": ", name,
                           " is not supported; this version has full_attention and "
                           "sliding_attention"));
    }
    num_sliding += name == "sliding_attention" ? 1 : 0;
  }
  if (num_sliding == 0) return LayerTypes::kFull;
  if (num_sliding == num_layers) return LayerTypes::kSliding;
  keys.unsupported(cat("\"", kKey, "\": sliding_attention in ", num_sliding, " of ", num_layers,
                       " layers is not supported; all layers or none"));
}

/// What the switches of a family say of its layers when "layer_types" does not.
LayerTypes default_layer_types(const ConfigKeys& keys, const Family& family, int64_t num_layers) {
  if (family.window != WindowKeys::kSwitchWindow) return LayerTypes::kSliding;
  if (!keys.flag("use_sliding_window", false)) return LayerTypes::kFull;
  const int64_t first =
      keys.integer("max_window_layers", 0, kMaxLayers, family.defaults.max_window_layers);
  if (first == 0) return LayerTypes::kSliding;
  if (first >= num_layers) return LayerTypes::kFull;
  keys.unsupported(cat("\"max_window_layers\" ", first, " of ", num_layers,
                       " layers without a window, the others with one, is not supported; all "
                       "layers or none"));
}

int64_t read_window(const ConfigKeys& keys, const Family& family, int64_t num_layers) {
  constexpr const char* kKey = "sliding_window";
  const LayerTypes types = read_layer_types(keys, num_layers);
  if (family.window == WindowKeys::kNone) {
    require_off(keys, family, "use_sliding_window");
    if (keys.find(kKey) != nullptr || types == LayerTypes::kSliding) {
      keys.unsupported(cat("\"", keys.find(kKey) != nullptr ? kKey : "layer_types",
                           "\": a window of attention is not a part of ", family.architecture,
                           " in this version"));
    }
    return 0;
  }
  const bool has_switch = family.window == WindowKeys::kSwitchWindow;
  if (!has_switch) require_off(keys, family, "use_sliding_window");
  int64_t window =
      keys.is_null(kKey) ? 0 : keys.size(kKey, kMaxPosition, family.defaults.sliding_window);
  if (has_switch && !keys.flag("use_sliding_window", false)) window = 0;
  if (types == LayerTypes::kSliding && window == 0) {
    keys.bad("layer_types", "names sliding_attention, but no \"sliding_window\" is in use");
  }
  if (types == LayerTypes::kFull && window > 0 && !has_switch) {
    keys.bad("layer_types", cat("names full_attention, but \"sliding_window\" is ", window));
  }
  const LayerTypes layers =
      types == LayerTypes::kUnsaid ? default_layer_types(keys, family, num_layers) : types;
  return layers == LayerTypes::kSliding ? window : 0;
}

void read_generation_config(const std::string& path, ModelConfig* config) {
  if (!path_exists(path)) return;
  const Json json = parse_json_or_throw(read_file(path, kMaxConfigBytes), path, Reason::kBadModel);
  if (!json.is_object()) throw Error(Reason::kBadModel, path + ": an object is needed");
  const ConfigKeys keys(json, path);
  std::vector<int64_t> ids = keys.ids("eos_token_id");
  if (!ids.empty()) config->eos_ids = std::move(ids);
}

}  // namespace

std::string_view projection_name(Projection projection) {
  constexpr std::array<std::string_view, kNumProjections> kNames = {
      "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  return kNames[static_cast<size_t>(projection)];
}

int64_t ProjectionWidths::out(Projection projection) const {
  switch (projection) {
    case Projection::kQ:
      return q;
    case Projection::kK:
    case Projection::kV:
      return kv;
    case Projection::kGate:
    case Projection::kUp:
      return intermediate;
    case Projection::kO:
    case Projection::kDown:
      return hidden;
  }
  return 0;
}

int64_t ProjectionWidths::in(Projection projection) const {
  if (projection == Projection::kO) return q;
  return projection == Projection::kDown ? intermediate : hidden;
}

bool ModelConfig::projection_has_bias(Projection projection) const {
  if (projection == Projection::kO) return o_bias;
  return projection < Projection::kO ? qkv_bias : mlp_bias;
}

int64_t ModelConfig::num_parameters() const {
  int64_t layer = 2 * hidden + (qk_norm ? 2 * head_dim : 0);
  for (int i = 0; i < kNumProjections; ++i) {
    const auto projection = static_cast<Projection>(i);
    layer += projection_out(projection) * projection_in(projection);
    if (projection_has_bias(projection)) layer += projection_out(projection);
  }
  return vocab_size * hidden * (tied_embeddings ? 1 : 2) + num_layers * layer + hidden;
}

ModelConfig parse_model_config(const Json& json, const std::string& where) {
  if (!json.is_object()) throw Error(Reason::kBadModel, where + ": an object is needed");
  const ConfigKeys keys(json, where);
  const Family& family = read_family(keys);
  ModelConfig config;
  config.architecture = family.architecture;
  const std::string activation = keys.text("hidden_act", family.activation);
  if (activation != family.activation) {
    keys.unsupported(cat("\"hidden_act\" ", activation, " is not supported; ", family.architecture,
                         " has ", family.activation, " in this version"));
  }
  if (keys.find("quantization_config") != nullptr) {
    keys.unsupported(
        "\"quantization_config\": quantized weights are not supported; take the "
        "folder with float32, bfloat16 or float16 weights");
  }
  refuse_other_models(keys);
  config.vocab_size = keys.size("vocab_size", kMaxVocabulary);
  config.hidden = keys.size("hidden_size", kMaxWidth);
  config.intermediate = keys.size("intermediate_size", kMaxWidth);
  config.num_layers = keys.size("num_hidden_layers", kMaxLayers);
  read_heads(keys, family, &config);
  config.max_position =
      keys.size("max_position_embeddings", kMaxPosition, family.defaults.max_position);
  config.rms_eps = keys.positive("rms_norm_eps", 1e-6);
  config.tied_embeddings = keys.flag("tie_word_embeddings", false);
  read_biases(keys, family, &config);
  config.sliding_window = read_window(keys, family, config.num_layers);
  config.rope = read_rope(keys, config.max_position);
  config.stored_dtype = read_dtype(keys);
  config.eos_ids = keys.ids("eos_token_id");
  if (const auto bos = keys.ids("bos_token_id"); !bos.empty()) config.bos_id = bos[0];
  return config;
}

ModelConfig read_model_config(const std::string& model_folder) {
  if (!is_directory(model_folder)) {
    throw Error(Reason::kMissingPath,
                path_exists(model_folder)
                    ? cat(model_folder, " is a file; a model is a folder with config.json in it")
                    : cat("model folder ", model_folder,
                          " does not exist; galley downloads nothing: to use a model of a hub, "
                          "download it first, e.g. with `huggingface-cli download ORG/MODEL "
                          "--local-dir DIR`, and give the folder"));
  }
  const std::string path = path_join(model_folder, "config.json");
  if (!path_exists(path)) {
    throw Error(Reason::kMissingPath,
                cat(path, " is missing: a Hugging Face model folder has one"));
  }
  const std::string text = read_file(path, kMaxConfigBytes);
  ModelConfig config = parse_model_config(parse_json_or_throw(text, path, Reason::kBadModel), path);
  read_generation_config(path_join(model_folder, "generation_config.json"), &config);
  std::string folder = model_folder;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  config.name = path_name(folder);
  return config;
}

}  // namespace galley::model
