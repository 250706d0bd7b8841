#include "engine/model/model_config.h"

#include <array>
#include <cmath>
#include <numbers>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "engine/model/family.h"

namespace galley::model {
namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;

// Bounds beyond anything real; they keep every later product of sizes inside 64 bits.
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 65536;
constexpr int64_t kMaxPosition = int64_t{1} << 31;

/// Reads checked members of one JSON object and names file and key in every error.
class KeyReader {
 public:
  KeyReader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  [[noreturn]] void bad(std::string_view key, const std::string& what) const {
    throw Error(Reason::kBadModel, cat(where_, ": \"", key, "\" ", what));
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    throw Error(Reason::kUnsupported, cat(where_, ": ", what));
  }

  /// The member, or nullptr when it is missing or null.
  const Json* find(std::string_view key) const {
    const Json* value = object_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }

  int64_t size(std::string_view key, int64_t most) const {
    if (find(key) == nullptr) bad(key, "is missing");
    return size(key, most, 0);
  }
  int64_t size(std::string_view key, int64_t most, int64_t fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_int()) bad(key, cat("is ", value->kind_name(), ", an integer is needed"));
    if (value->as_int() < 1 || value->as_int() > most) {
      bad(key, cat("is ", value->as_int(), ", it must be between 1 and ", most));
    }
    return value->as_int();
  }
  double number(std::string_view key, double fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number()) bad(key, cat("is ", value->kind_name(), ", a number is needed"));
    return value->as_double();
  }
  double positive(std::string_view key, double fallback) const {
    const double value = number(key, fallback);
    if (!(value > 0) || !std::isfinite(value)) bad(key, cat("is ", value, ", it must be above 0"));
    return value;
  }
  bool flag(std::string_view key, bool fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_bool()) bad(key, cat("is ", value->kind_name(), ", true or false is needed"));
    return value->as_bool();
  }
  std::string text(std::string_view key, std::string_view fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return std::string(fallback);
    if (!value->is_string()) bad(key, cat("is ", value->kind_name(), ", a string is needed"));
    return value->as_string();
  }

  const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
};

const Family& read_family(const KeyReader& keys) {
  std::string named;
  if (const Json* list = keys.find("architectures")) {
    if (!list->is_array()) keys.bad("architectures", "must be a list of names");
    for (const Json& entry : list->as_array()) {
      if (!entry.is_string()) keys.bad("architectures", "must be a list of names");
      if (const Family* family = find_family(entry.as_string())) return *family;
      if (named.empty()) named = entry.as_string();
    }
  }
  const std::string model_type = keys.text("model_type", "");
  if (named.empty()) {
    if (const Family* family = find_family_by_model_type(model_type)) return *family;
    named = model_type;
  }
  if (named.empty()) keys.bad("architectures", "is missing: which model is this?");
  keys.unsupported(cat("architecture ", named, " is not supported; this version runs ",
                       join(family_names(), ", ")));
}

std::string read_rope_type(const KeyReader& keys) {
  std::string type = keys.text("rope_type", "");
  if (type.empty()) type = keys.text("type", "default");
  return type;
}

void read_llama3(const KeyReader& keys, const KeyReader& top, RopeConfig* rope) {
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    if (keys.find(key) == nullptr) keys.bad(key, "is missing");
  }
  rope->low_freq_factor = keys.positive("low_freq_factor", 1);
  rope->high_freq_factor = keys.positive("high_freq_factor", 4);
  if (rope->low_freq_factor >= rope->high_freq_factor) {
    keys.bad("low_freq_factor", "must be below \"high_freq_factor\"");
  }
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const KeyReader& holder = keys.find(kOriginal) != nullptr ? keys : top;
  rope->original_max_position = holder.size(kOriginal, kMaxPosition);
}

/// Old form: rope_theta beside rope_scaling {type or rope_type, ...} or null. Newer form:
/// rope_parameters {rope_type, rope_theta, ...}.
RopeConfig read_rope(const KeyReader& top) {
  RopeConfig rope;
  rope.theta = top.positive("rope_theta", 10000.0);
  const char* name = top.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const Json* parameters = top.find(name);
  double partial = top.number("partial_rotary_factor", 1.0);
  if (parameters != nullptr) {
    if (!parameters->is_object()) top.bad(name, "must be an object");
    const KeyReader keys(*parameters, cat(top.where(), ": ", name));
    rope.theta = keys.positive("rope_theta", rope.theta);
    partial = keys.number("partial_rotary_factor", partial);
    const std::string type = read_rope_type(keys);
    if (type == "linear" || type == "llama3") {
      rope.kind = type == "linear" ? RopeKind::kLinear : RopeKind::kLlama3;
      if (keys.find("factor") == nullptr) keys.bad("factor", "is missing");
      rope.factor = keys.positive("factor", 1.0);
      if (rope.factor < 1) keys.bad("factor", cat("is ", rope.factor, ", it must be at least 1"));
      if (rope.kind == RopeKind::kLlama3) read_llama3(keys, top, &rope);
    } else if (type != "default") {
      keys.unsupported(cat("RoPE scaling \"", type,
                           "\" is not supported; this version has default, linear, llama3"));
    }
  }
  if (partial != 1.0) {
    top.unsupported(cat("partial_rotary_factor ", partial, " is not supported, only 1"));
  }
  return rope;
}

DType read_dtype(const KeyReader& keys) {
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

/// A token id or a list of them; empty when the key is missing.
std::vector<int64_t> read_ids(const KeyReader& keys, std::string_view key) {
  std::vector<int64_t> ids;
  const Json* value = keys.find(key);
  if (value == nullptr) return ids;
  const Json::Array one = value->is_array() ? value->as_array() : Json::Array{*value};
  for (const Json& id : one) {
    if (!id.is_int() || id.as_int() < 0) keys.bad(key, "must be a token id or a list of token ids");
    ids.push_back(id.as_int());
  }
  return ids;
}

void read_heads(const KeyReader& keys, ModelConfig* config) {
  config->num_heads = keys.size("num_attention_heads", kMaxHeads);
  config->num_kv_heads = keys.size("num_key_value_heads", kMaxHeads, config->num_heads);
  if (config->num_heads % config->num_kv_heads != 0) {
    keys.bad("num_key_value_heads", cat("is ", config->num_kv_heads, ", it must divide the ",
                                        config->num_heads, " attention heads"));
  }
  if (keys.find("head_dim") == nullptr && config->hidden % config->num_heads != 0) {
    keys.bad("hidden_size",
             cat("is ", config->hidden, ", not a multiple of the ", config->num_heads,
                 " attention heads, and no \"head_dim\" is given"));
  }
  config->head_dim = keys.size("head_dim", kMaxWidth, config->hidden / config->num_heads);
  if (config->head_dim % 2 != 0) {
    keys.bad("head_dim", cat("is ", config->head_dim, ", rotary positions need an even number"));
  }
  if (config->q_width() > 4 * kMaxWidth) {
    keys.bad("head_dim", cat("times ", config->num_heads, " heads is ", config->q_width(),
                             ", more than any model of this kind has"));
  }
}

void read_generation_config(const std::string& path, ModelConfig* config) {
  if (!path_exists(path)) return;
  const Json json = parse_json_or_throw(read_file(path, kMaxConfigBytes), path, Reason::kBadModel);
  if (!json.is_object()) throw Error(Reason::kBadModel, path + ": an object is needed");
  const KeyReader keys(json, path);
  std::vector<int64_t> ids = read_ids(keys, "eos_token_id");
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
  const KeyReader keys(json, where);
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
  config.vocab_size = keys.size("vocab_size", kMaxVocabulary);
  config.hidden = keys.size("hidden_size", kMaxWidth);
  config.intermediate = keys.size("intermediate_size", kMaxWidth);
  config.num_layers = keys.size("num_hidden_layers", kMaxLayers);
  read_heads(keys, &config);
  config.max_position = keys.size("max_position_embeddings", kMaxPosition, 2048);
  config.rms_eps = keys.positive("rms_norm_eps", 1e-6);
  config.tied_embeddings = keys.flag("tie_word_embeddings", false);
  config.qkv_bias = config.o_bias = keys.flag("attention_bias", false);
  config.mlp_bias = keys.flag("mlp_bias", false);
  config.rope = read_rope(keys);
  config.stored_dtype = read_dtype(keys);
  config.eos_ids = read_ids(keys, "eos_token_id");
  if (const auto bos = read_ids(keys, "bos_token_id"); !bos.empty()) config.bos_id = bos[0];
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

namespace {

/// Angular frequency of rotary pair `i`, after scaling.
double rope_frequency(const ModelConfig& config, int64_t i) {
  const RopeConfig& rope = config.rope;
  const double frequency =
      std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
  if (rope.kind == RopeKind::kDefault) return frequency;
  if (rope.kind == RopeKind::kLinear) return frequency / rope.factor;
  const auto original = static_cast<double>(rope.original_max_position);
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  const double smooth = (original / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

void rope_tables(const ModelConfig& config, int64_t num_positions, float* cos, float* sin) {
  const int64_t half = config.head_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = rope_frequency(config, i);
    for (int64_t position = 0; position < num_positions; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      cos[position * half + i] = static_cast<float>(std::cos(angle));
      sin[position * half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace galley::model
