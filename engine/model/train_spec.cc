#include "engine/model/train_spec.h"

#include <array>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/hash.h"
#include "engine/core/strings.h"

namespace galley::model {
namespace {

template <typename Value>
struct EnumRow {
  Value value;
  std::string_view name;
};

constexpr EnumRow<LossKind> kLossNames[] = {{LossKind::kAssistant, "assistant"},
                                            {LossKind::kCompletion, "completion"},
                                            {LossKind::kAll, "all"}};
constexpr EnumRow<Truncation> kTruncationNames[] = {{Truncation::kKeepStart, "keep_start"},
                                                    {Truncation::kKeepEnd, "keep_end"}};
constexpr EnumRow<ScheduleKind> kScheduleNames[] = {{ScheduleKind::kConstant, "constant"},
                                                    {ScheduleKind::kLinear, "linear"},
                                                    {ScheduleKind::kCosine, "cosine"}};
constexpr EnumRow<Precision> kPrecisionNames[] = {
    {Precision::kAuto, "auto"}, {Precision::kF32, "f32"}, {Precision::kBf16, "bf16"}};
constexpr EnumRow<Recompute> kRecomputeNames[] = {
    {Recompute::kAuto, "auto"}, {Recompute::kNone, "none"}, {Recompute::kBlock, "block"}};
constexpr EnumRow<LoraInit> kInitNames[] = {{LoraInit::kDefault, "default"},
                                            {LoraInit::kGaussian, "gaussian"}};

template <typename Value, size_t kCount>
Json name_of(const EnumRow<Value> (&rows)[kCount], Value value) {
  for (const auto& row : rows) {
    if (row.value == value) return Json(row.name);
  }
  throw Error(Reason::kInternal, "value without a name in a job record");
}

template <typename Value, size_t kCount>
Value value_named(const EnumRow<Value> (&rows)[kCount], std::string_view name,
                  std::string_view key) {
  for (const auto& row : rows) {
    if (row.name == name) return row.value;
  }
  throw Error(Reason::kInternal, cat("job record: \"", name, "\" is no value of \"", key, "\""));
}

template <typename Value, size_t kCount>
Value value_of(const EnumRow<Value> (&rows)[kCount], const Json& json, std::string_view key) {
  return value_named(rows, json.at(key).as_string(), key);
}

/// 64-bit seeds do not fit a JSON number.
Json seed_json(uint64_t seed) { return Json(std::to_string(seed)); }
uint64_t seed_value(const Json& json) { return std::stoull(json.as_string()); }

Json strings_json(const std::vector<std::string>& values) {
  Json list = Json::array();
  for (const std::string& value : values) list.push(value);
  return list;
}
std::vector<std::string> strings_value(const Json& json) {
  std::vector<std::string> values;
  for (const Json& entry : json.as_array()) values.push_back(entry.as_string());
  return values;
}

template <typename Value>
Json pattern_json(const std::vector<std::pair<std::string, Value>>& rows) {
  Json object = Json::object();
  for (const auto& [key, value] : rows) object.set(key, value);
  return object;
}

Json lora_json(const LoraSettings& lora) {
  Json layers = Json::array();
  for (const int64_t layer : lora.layers) layers.push(layer);
  Json json = Json::object();
  json.set("rank", lora.rank)
      .set("alpha", lora.alpha)
      .set("dropout", lora.dropout)
      .set("rslora", lora.rslora)
      .set("init", name_of(kInitNames, lora.init))
      .set("targets", strings_json(lora.targets))
      .set("target_pattern", lora.target_pattern)
      .set("exclude", strings_json(lora.exclude))
      .set("exclude_pattern", lora.exclude_pattern)
      .set("layers", std::move(layers))
      .set("rank_pattern", pattern_json(lora.rank_pattern))
      .set("alpha_pattern", pattern_json(lora.alpha_pattern));
  return json;
}

LoraSettings lora_value(const Json& json) {
  LoraSettings lora;
  lora.rank = json.at("rank").as_int();
  lora.alpha = json.at("alpha").as_double();
  lora.dropout = json.at("dropout").as_double();
  lora.rslora = json.at("rslora").as_bool();
  lora.init = value_of(kInitNames, json, "init");
  lora.targets = strings_value(json.at("targets"));
  lora.target_pattern = json.at("target_pattern").as_string();
  lora.exclude = strings_value(json.at("exclude"));
  lora.exclude_pattern = json.at("exclude_pattern").as_string();
  for (const Json& layer : json.at("layers").as_array()) lora.layers.push_back(layer.as_int());
  for (const auto& [key, value] : json.at("rank_pattern").as_object()) {
    lora.rank_pattern.emplace_back(key, value.as_int());
  }
  for (const auto& [key, value] : json.at("alpha_pattern").as_object()) {
    lora.alpha_pattern.emplace_back(key, value.as_double());
  }
  return lora;
}

/// What decides the values of a run; everything else of a job is place, name or wish.
Json result_json(const TrainSpec& spec) {
  Json data = Json::array();
  for (const DataSource& source : spec.data) {
    data.push(Json::object().set("path", source.path).set("weight", source.weight));
  }
  Json json = Json::object();
  json.set("model", spec.model)
      .set("data", std::move(data))
      .set("lora", lora_json(spec.lora))
      .set("learning_rate", spec.learning_rate)
      .set("beta1", spec.beta1)
      .set("beta2", spec.beta2)
      .set("epsilon", spec.epsilon)
      .set("weight_decay", spec.weight_decay)
      .set("clip_norm", spec.clip_norm)
      .set("schedule", name_of(kScheduleNames, spec.schedule))
      .set("warmup_steps", spec.warmup_steps)
      .set("warmup_fraction", spec.warmup_fraction)
      .set("global_batch", spec.global_batch)
      .set("sequence", spec.sequence)
      .set("epochs", spec.epochs)
      .set("max_steps", spec.max_steps)
      .set("seed", seed_json(spec.seed))
      .set("precision", name_of(kPrecisionNames, spec.precision))
      .set("loss", name_of(kLossNames, spec.loss))
      .set("truncation", name_of(kTruncationNames, spec.truncation))
      .set("special_tokens_in_messages", spec.special_tokens_in_messages)
      .set("chat_template", spec.chat_template);
  return json;
}

/// Records of runs begun before groups have none of them.
void read_layout_pins(const Json& json, TrainSpec* spec) {
  spec->tp = json.get_int("tp", -1);
  spec->pp = json.get_int("pp", -1);
  spec->dp = json.get_int("dp", -1);
  if (const Json* stages = json.find("stage_layers")) {
    for (const Json& layers : stages->as_array()) spec->stage_layers.push_back(layers.as_int());
  }
  spec->sequence_parallel = json.get_bool("sequence_parallel", false);
}

}  // namespace

Precision precision_from_name(std::string_view name) {
  return value_named(kPrecisionNames, name, "precision");
}

Json to_json(const TrainSpec& spec) {
  Json stages = Json::array();
  for (const int64_t layers : spec.stage_layers) stages.push(layers);
  Json json = Json::object();
  json.set("name", spec.name);
  const Json result = result_json(spec);
  for (const auto& [key, value] : result.as_object()) json.set(key, value);
  json.set("recompute", name_of(kRecomputeNames, spec.recompute))
      .set("priority", spec.priority)
      .set("gpu_type", spec.gpu_type)
      .set("tp", spec.tp)
      .set("pp", spec.pp)
      .set("dp", spec.dp)
      .set("stage_layers", std::move(stages))
      .set("sequence_parallel", spec.sequence_parallel)
      .set("micro_batch_tokens", spec.micro_batch_tokens)
      .set("threads", spec.threads)
      .set("kernels", spec.kernels);
  return json;
}

TrainSpec train_spec_from_json(const Json& json) {
  TrainSpec spec;
  spec.name = json.at("name").as_string();
  spec.model = json.at("model").as_string();
  for (const Json& source : json.at("data").as_array()) {
    spec.data.push_back({source.at("path").as_string(), source.at("weight").as_double()});
  }
  spec.lora = lora_value(json.at("lora"));
  spec.learning_rate = json.at("learning_rate").as_double();
  spec.beta1 = json.at("beta1").as_double();
  spec.beta2 = json.at("beta2").as_double();
  spec.epsilon = json.at("epsilon").as_double();
  spec.weight_decay = json.at("weight_decay").as_double();
  spec.clip_norm = json.at("clip_norm").as_double();
  spec.schedule = value_of(kScheduleNames, json, "schedule");
  spec.warmup_steps = json.at("warmup_steps").as_int();
  spec.warmup_fraction = json.at("warmup_fraction").as_double();
  spec.global_batch = json.at("global_batch").as_int();
  spec.sequence = json.at("sequence").as_int();
  spec.epochs = json.at("epochs").as_double();
  spec.max_steps = json.at("max_steps").as_int();
  spec.seed = seed_value(json.at("seed"));
  spec.precision = value_of(kPrecisionNames, json, "precision");
  spec.loss = value_of(kLossNames, json, "loss");
  spec.truncation = value_of(kTruncationNames, json, "truncation");
  spec.special_tokens_in_messages = json.at("special_tokens_in_messages").as_bool();
  spec.chat_template = json.at("chat_template").as_string();
  spec.recompute = value_of(kRecomputeNames, json, "recompute");
  spec.priority = json.at("priority").as_int();
  spec.gpu_type = json.at("gpu_type").as_string();
  read_layout_pins(json, &spec);
  spec.micro_batch_tokens = json.at("micro_batch_tokens").as_int();
  spec.threads = json.at("threads").as_int();
  spec.kernels = json.at("kernels").as_string();
  return spec;
}

std::string spec_hash(const TrainSpec& spec) { return hash128_hex(result_json(spec).dump()); }

}  // namespace galley::model
