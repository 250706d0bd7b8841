#include "engine/model/adapter_config.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::model {
namespace {

// Keys that do not change what the adapter computes.
constexpr std::string_view kHarmless[] = {"auto_mapping",       "base_model_name_or_path",
                                          "revision",           "peft_version",
                                          "inference_mode",     "megatron_core",
                                          "qalora_group_size",  "lora_dropout",
                                          "runtime_config",     "eva_config",
                                          "ensure_weight_tying"};
// Keys that are read below.
constexpr std::string_view kRead[] = {"peft_type",        "task_type",           "r",
                                      "lora_alpha",       "use_rslora",          "bias",
                                      "rank_pattern",     "alpha_pattern",       "target_modules",
                                      "exclude_modules",  "layers_to_transform", "layers_pattern",
                                      "init_lora_weights"};
// Keys whose presence needs more than plain LoRA; the text says what it is.
struct Feature {
  std::string_view key, what;
};
constexpr Feature kFeatures[] = {
    {"use_dora", "DoRA"},
    {"modules_to_save", "whole modules inside an adapter (modules_to_save)"},
    {"trainable_token_indices", "trained token rows (trainable_token_indices)"},
    {"lora_bias", "a bias in the low-rank part (lora_bias)"},
    {"fan_in_fan_out", "transposed weights (fan_in_fan_out)"},
    {"layer_replication", "repeated layers (layer_replication)"},
    {"alora_invocation_tokens", "activated LoRA (alora_invocation_tokens)"},
    {"target_parameters", "LoRA on bare parameters (target_parameters)"},
    {"loftq_config", "LoftQ (loftq_config)"},
    {"use_qalora", "QALoRA (use_qalora)"},
    {"use_bdlora", "block-diagonal LoRA (use_bdlora)"}};

class ConfigReader {
 public:
  ConfigReader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  [[noreturn]] void bad(std::string_view key, std::string_view what) const {
    throw Error(Reason::kBadCheckpoint, cat(where_, ": \"", key, "\" ", what));
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    throw Error(Reason::kUnsupported, cat(where_, ": ", what, " is not supported"));
  }
  const Json* find(std::string_view key) const {
    const Json* value = json_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  std::string text(std::string_view key, std::string_view fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return std::string(fallback);
    if (!value->is_string()) bad(key, "must be a string");
    return value->as_string();
  }
  double number(std::string_view key, double fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number() || !std::isfinite(value->as_double())) bad(key, "must be a number");
    return value->as_double();
  }
  /// An object of numbers, in its order.
  template <typename Value, typename Read>
  std::vector<std::pair<std::string, Value>> pattern(std::string_view key, const Read& read) const {
    std::vector<std::pair<std::string, Value>> rows;
    const Json* value = find(key);
    if (value == nullptr) return rows;
    if (!value->is_object()) bad(key, "must be an object of numbers");
    for (const auto& [name, number] : value->as_object()) rows.emplace_back(name, read(number));
    return rows;
  }
  /// A list of names, or one string: a regular expression over the whole path.
  void modules(std::string_view key, std::vector<std::string>* names, std::string* pattern) const {
    const Json* value = find(key);
    if (value == nullptr) return;
    if (value->is_string()) {
      *pattern = value->as_string();
      return;
    }
    if (!value->is_array()) bad(key, "must be a list of names or one string");
    for (const Json& name : value->as_array()) {
      if (!name.is_string() || name.as_string().empty()) bad(key, "must be a list of names");
      names->push_back(name.as_string());
    }
  }
  const Json& json() const { return json_; }

 private:
  const Json& json_;
  std::string where_;
};

/// null, false, 0, "", [] and {} all mean "not used" in these files.
bool is_unused(const Json& value) {
  switch (value.kind()) {
    case Json::Kind::kNull:
      return true;
    case Json::Kind::kBool:
      return !value.as_bool();
    case Json::Kind::kInt:
    case Json::Kind::kDouble:
      return value.as_double() == 0;
    case Json::Kind::kString:
      return value.as_string().empty();
    case Json::Kind::kArray:
      return value.as_array().empty();
    case Json::Kind::kObject:
      return value.as_object().empty();
  }
  return false;
}

void refuse_features(const ConfigReader& reader) {
  const std::string type = reader.text("peft_type", "");
  if (type.empty()) reader.bad("peft_type", "is missing");
  if (type != "LORA") reader.unsupported(cat("an adapter of type ", type, " (only LORA)"));
  const std::string task = reader.text("task_type", "CAUSAL_LM");
  if (task != "CAUSAL_LM") reader.unsupported(cat("task_type ", task, " (only CAUSAL_LM)"));
  const std::string bias = reader.text("bias", "none");
  if (bias != "none") reader.unsupported(cat("trained biases (bias ", bias, ")"));
  for (const Feature& feature : kFeatures) {
    const Json* value = reader.find(feature.key);
    if (value != nullptr && !is_unused(*value)) reader.unsupported(std::string(feature.what));
  }
  const auto known = [](const auto& list, std::string_view key) {
    return std::find(std::begin(list), std::end(list), key) != std::end(list);
  };
  for (const auto& [key, value] : reader.json().as_object()) {
    const bool feature = std::any_of(std::begin(kFeatures), std::end(kFeatures),
                                     [&](const Feature& row) { return row.key == key; });
    if (feature || known(kHarmless, key) || known(kRead, key) || is_unused(value)) continue;
    reader.unsupported(cat("\"", key, "\" with the value ", value.dump()));
  }
}

/// Some starts move part of the base weights into the adapter; such adapters fit a changed base
/// only.
LoraInit read_init(const ConfigReader& reader) {
  const Json* value = reader.find("init_lora_weights");
  if (value == nullptr || value->is_bool()) return LoraInit::kDefault;
  if (!value->is_string()) reader.bad("init_lora_weights", "must be true, false or a name");
  const std::string& name = value->as_string();
  if (name == "gaussian") return LoraInit::kGaussian;
  if (name == "eva" || name == "orthogonal") return LoraInit::kDefault;
  reader.unsupported(cat("init_lora_weights \"", name,
                         "\" (its adapter fits a changed base model; convert it to plain LoRA)"));
}

std::vector<int64_t> read_layers(const ConfigReader& reader) {
  std::vector<int64_t> layers;
  constexpr std::string_view kKey = "layers_to_transform";
  const Json* value = reader.find(kKey);
  if (value == nullptr) return layers;
  const Json::Array one = value->is_array() ? value->as_array() : Json::Array{*value};
  for (const Json& layer : one) {
    if (!layer.is_int() || layer.as_int() < 0)
      reader.bad(kKey, "must be a layer or a list of layers");
    layers.push_back(layer.as_int());
  }
  const Json* pattern = reader.find("layers_pattern");
  if (pattern == nullptr || is_unused(*pattern)) return layers;
  const Json::Array names = pattern->is_array() ? pattern->as_array() : Json::Array{*pattern};
  for (const Json& name : names) {
    if (name.is_string() && name.as_string() == "layers") return layers;
  }
  reader.unsupported(
      cat("layers_pattern ", pattern->dump(), " (layers of this model are \"layers\")"));
}

void read_targets(const ConfigReader& reader, LoraSettings* settings) {
  reader.modules("target_modules", &settings->targets, &settings->target_pattern);
  reader.modules("exclude_modules", &settings->exclude, &settings->exclude_pattern);
  if (settings->targets.empty() && settings->target_pattern.empty()) {
    reader.bad("target_modules", "is missing or empty");
  }
  if (settings->target_pattern == "all-linear") settings->target_pattern.clear();
}

}  // namespace

LoraSettings parse_adapter_config(const Json& json, const std::string& where,
                                  std::string* base_model) {
  if (!json.is_object()) throw Error(Reason::kBadCheckpoint, where + ": an object is needed");
  const ConfigReader reader(json, where);
  refuse_features(reader);
  LoraSettings settings;
  const Json* rank = reader.find("r");
  if (rank == nullptr || !rank->is_int() || rank->as_int() < 1) {
    reader.bad("r", "must be an integer of at least 1");
  }
  settings.rank = rank->as_int();
  if (reader.find("lora_alpha") == nullptr) reader.bad("lora_alpha", "is missing");
  settings.alpha = reader.number("lora_alpha", 0);
  settings.dropout = reader.number("lora_dropout", 0);
  if (const Json* rslora = reader.find("use_rslora")) {
    if (!rslora->is_bool()) reader.bad("use_rslora", "must be true or false");
    settings.rslora = rslora->as_bool();
  }
  settings.init = read_init(reader);
  read_targets(reader, &settings);
  settings.layers = read_layers(reader);
  settings.rank_pattern = reader.pattern<int64_t>("rank_pattern", [&](const Json& value) {
    if (!value.is_int() || value.as_int() < 1)
      reader.bad("rank_pattern", "must hold integers of at least 1");
    return value.as_int();
  });
  settings.alpha_pattern = reader.pattern<double>("alpha_pattern", [&](const Json& value) {
    if (!value.is_number()) reader.bad("alpha_pattern", "must hold numbers");
    return value.as_double();
  });
  *base_model = reader.text("base_model_name_or_path", "");
  return settings;
}

namespace {

/// 32 rather than 32.0, as PEFT's own files have it.
Json plain_number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return Json(static_cast<int64_t>(value));
  return Json(value);
}

Json names_json(const std::vector<std::string>& names) {
  Json list = Json::array();
  for (const std::string& name : names) list.push(name);
  return list;
}

Json targets_json(const LoraSettings& settings) {
  if (!settings.target_pattern.empty()) return Json(settings.target_pattern);
  if (!settings.targets.empty()) return names_json(settings.targets);
  Json list = Json::array();
  for (int i = 0; i < kNumProjections; ++i) list.push(projection_name(static_cast<Projection>(i)));
  return list;
}

}  // namespace

Json adapter_config_json(const LoraSettings& settings, const std::string& base_model) {
  Json ranks = Json::object(), alphas = Json::object(), layers = Json();
  for (const auto& [key, rank] : settings.rank_pattern) ranks.set(key, rank);
  for (const auto& [key, alpha] : settings.alpha_pattern) alphas.set(key, plain_number(alpha));
  for (const int64_t layer : settings.layers) layers.push(layer);
  Json json = Json::object();
  json.set("alpha_pattern", std::move(alphas))
      .set("auto_mapping", nullptr)
      .set("base_model_name_or_path", base_model)
      .set("bias", "none");
  if (!settings.exclude_pattern.empty()) {
    json.set("exclude_modules", settings.exclude_pattern);
  } else if (!settings.exclude.empty()) {
    json.set("exclude_modules", names_json(settings.exclude));
  }
  json.set("fan_in_fan_out", false)
      .set("inference_mode", true)
      .set("init_lora_weights",
           settings.init == LoraInit::kGaussian ? Json("gaussian") : Json(true))
      .set("layers_pattern", nullptr)
      .set("layers_to_transform", std::move(layers))
      .set("loftq_config", Json::object())
      .set("lora_alpha", plain_number(settings.alpha))
      .set("lora_dropout", settings.dropout)
      .set("megatron_config", nullptr)
      .set("megatron_core", "megatron.core")
      .set("modules_to_save", nullptr)
      .set("peft_type", "LORA")
      .set("r", settings.rank)
      .set("rank_pattern", std::move(ranks))
      .set("revision", nullptr)
      .set("target_modules", targets_json(settings))
      .set("task_type", "CAUSAL_LM")
      .set("use_dora", false)
      .set("use_rslora", settings.rslora);
  return json;
}

}  // namespace galley::model
