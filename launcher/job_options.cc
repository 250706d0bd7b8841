#include "launcher/job_options.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/file.h"
#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "engine/device/host/host_device.h"

namespace galley::launcher {
namespace {

using model::TrainSpec;
using Kind = ConfigValue::Kind;

[[noreturn]] void fault(const std::string& message) { throw OptionFault{message}; }

const std::string& text_of(const ConfigValue& value) {
  if (value.kind != Kind::kString) fault(cat("must be a string, this is ", value.kind_name()));
  if (value.text.empty()) fault("must not be empty");
  return value.text;
}

int64_t integer_of(const ConfigValue& value, int64_t low, int64_t high) {
  if (value.kind != Kind::kInt) fault(cat("must be an integer, this is ", value.kind_name()));
  if (value.integer < low || value.integer > high) {
    fault(cat("must lie in ", low, " .. ", high, ", this is ", value.integer));
  }
  return value.integer;
}

enum class Bound { kClosed, kOpen };

double number_of(const ConfigValue& value, double low, Bound low_bound, double high) {
  if (value.kind != Kind::kInt && value.kind != Kind::kDouble) {
    fault(cat("must be a number, this is ", value.kind_name()));
  }
  const double number = value.number;
  const bool low_ok = low_bound == Bound::kClosed ? number >= low : number > low;
  if (!std::isfinite(number) || !low_ok || number > high) {
    fault(cat("must be ", low_bound == Bound::kClosed ? "at least " : "greater than ", low,
              high < 1e300 ? cat(" and at most ", high) : "", ", this is ", value.to_toml()));
  }
  return number;
}

bool boolean_of(const ConfigValue& value) {
  if (value.kind != Kind::kBool) fault(cat("must be true or false, this is ", value.kind_name()));
  return value.boolean;
}

/// Index of the value's text in `names`, or a fault with the nearest one.
size_t choice_of(const ConfigValue& value, const std::vector<std::string>& names) {
  const std::string& text = text_of(value);
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) {
    fault(cat("\"", text, "\" is not one of ", join(names, ", "), did_you_mean(text, names)));
  }
  return static_cast<size_t>(found - names.begin());
}

/// A choice where only the first `available` names work in this version.
size_t choice_with_future(const ConfigValue& value, const std::vector<std::string>& names,
                          size_t available) {
  const std::vector<std::string> offered(names.begin(),
                                         names.begin() + static_cast<long>(available));
  const std::string& text = text_of(value);
  const bool known = std::find(names.begin(), names.end(), text) != names.end();
  const size_t index = choice_of(value, known ? names : offered);
  if (index >= available) {
    throw OptionFault{
        cat("\"", names[index], "\" is not available in this version; use ", join(offered, " or ")),
        Reason::kNotAvailable};
  }
  return index;
}

std::string quoted(std::string_view text) { return json_quote(text); }
std::string printed(double value) { return format_double_repr(value); }
std::string printed(int64_t value) { return std::to_string(value); }
std::string printed(bool value) { return value ? "true" : "false"; }

const std::vector<std::string>& loss_names() {
  static const std::vector<std::string> names = {"assistant", "completion", "all"};
  return names;
}
const std::vector<std::string>& truncation_names() {
  static const std::vector<std::string> names = {"keep_start", "keep_end"};
  return names;
}
const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = {"constant", "linear", "cosine"};
  return names;
}
const std::vector<std::string>& precision_names() {
  static const std::vector<std::string> names = {"auto", "f32", "bf16"};
  return names;
}
const std::vector<std::string>& recompute_names() {
  static const std::vector<std::string> names = {"auto", "none", "block"};
  return names;
}

void read_data(const ConfigValue& value, const OptionContext& context, TrainSpec* spec) {
  spec->data.clear();
  const auto add = [&](const std::string& path) {
    spec->data.push_back({path_join(context.base_directory, path), 1.0});
  };
  const auto add_table = [&](const ConfigValue& table) {
    for (const auto& [key, member] : table.members) {
      if (key == "weight") {
        throw OptionFault{
            "\"weight\" of a data set is not available in this version; list the "
            "file as often as it should be read",
            Reason::kNotAvailable};
      }
      if (key != "path") fault(cat("unknown key \"", key, "\"", did_you_mean(key, {"path"})));
    }
    const ConfigValue* path = table.find("path");
    if (path == nullptr) fault("needs a \"path\"");
    add(text_of(*path));
  };
  if (value.kind == Kind::kString) {
    add(text_of(value));
  } else if (value.kind == Kind::kTable) {
    add_table(value);
  } else if (value.kind == Kind::kArray && !value.items.empty()) {
    for (const ConfigValue& item : value.items) {
      if (item.kind == Kind::kTable) {
        add_table(item);
      } else {
        add(text_of(item));
      }
    }
  } else {
    fault("must be a file, a list of files, or a list of { path = FILE }");
  }
}

std::string print_data(const TrainSpec& spec) {
  std::vector<std::string> paths;
  for (const model::DataSource& source : spec.data) paths.push_back(quoted(source.path));
  return paths.size() == 1 ? paths[0] : "[" + join(paths, ", ") + "]";
}

void read_targets(const ConfigValue& value, TrainSpec* spec) {
  spec->lora.targets.clear();
  if (value.kind == Kind::kString && value.text == "all-linear") return;
  if (value.kind == Kind::kString) {
    spec->lora.targets = {text_of(value)};
    return;
  }
  if (value.kind != Kind::kArray || value.items.empty()) {
    fault("must be \"all-linear\" or a list of projections such as [\"q_proj\", \"v_proj\"]");
  }
  for (const ConfigValue& item : value.items) spec->lora.targets.push_back(text_of(item));
}

std::string print_targets(const TrainSpec& spec) {
  if (spec.lora.targets.empty()) return "\"all-linear\"";
  std::vector<std::string> names;
  for (const std::string& target : spec.lora.targets) names.push_back(quoted(target));
  return "[" + join(names, ", ") + "]";
}

void read_layers(const ConfigValue& value, TrainSpec* spec) {
  spec->lora.layers.clear();
  if (value.kind == Kind::kString && value.text == "all") return;
  if (value.kind != Kind::kArray || value.items.empty()) {
    fault("must be \"all\" or a list of layer numbers");
  }
  for (const ConfigValue& item : value.items) {
    spec->lora.layers.push_back(integer_of(item, 0, 1000000));
  }
}

std::string print_layers(const TrainSpec& spec) {
  if (spec.lora.layers.empty()) return "\"all\"";
  std::vector<std::string> numbers;
  for (const int64_t layer : spec.lora.layers) numbers.push_back(std::to_string(layer));
  return "[" + join(numbers, ", ") + "]";
}

/// A table of regular expressions on module paths to numbers.
template <typename Map, typename Read>
void read_pattern(const ConfigValue& value, Map* map, const Read& read) {
  if (value.kind != Kind::kTable) fault("must be a table such as { \"q_proj\" = 8 }");
  map->clear();
  for (const auto& [pattern, number] : value.members) map->emplace_back(pattern, read(number));
}
template <typename Map>
std::string print_pattern(const Map& map) {
  if (map.empty()) return "{}";
  std::vector<std::string> parts;
  for (const auto& [pattern, number] : map)
    parts.push_back(quoted(pattern) + " = " + printed(number));
  return "{ " + join(parts, ", ") + " }";
}

void read_warmup(const ConfigValue& value, TrainSpec* spec) {
  if (value.kind == Kind::kInt) {
    spec->warmup_steps = integer_of(value, 0, std::numeric_limits<int64_t>::max());
    spec->warmup_fraction = 0;
    return;
  }
  const std::string& text = text_of(value);
  if (text.back() == '%') {
    const auto percent = parse_number(trim(std::string_view(text).substr(0, text.size() - 1)));
    if (!percent || *percent < 0 || *percent > 100)
      fault(cat("\"", text, "\" is no share of 0 % to 100 %"));
    spec->warmup_fraction = *percent / 100;
    spec->warmup_steps = -1;
    return;
  }
  const size_t blank = text.find(' ');
  const auto steps = parse_int(text.substr(0, blank));
  const std::string unit = blank == std::string::npos ? "" : text.substr(blank + 1);
  if (!steps || *steps < 0 || (unit != "steps" && unit != "step" && !unit.empty())) {
    fault(cat("\"", text, "\" is neither a share (\"3%\") nor a number of optimizer steps (100)"));
  }
  spec->warmup_steps = *steps;
  spec->warmup_fraction = 0;
}

std::string print_auto(int64_t value) { return value < 0 ? "\"auto\"" : printed(value); }

bool is_auto(const ConfigValue& value) {
  return value.kind == Kind::kString && value.text == "auto";
}

int64_t parallel_size(const ConfigValue& value) {
  return is_auto(value) ? -1 : integer_of(value, 1, 4096);
}

void read_stage_layers(const ConfigValue& value, TrainSpec* spec) {
  spec->stage_layers.clear();
  if (is_auto(value)) return;
  if (value.kind != Kind::kArray || value.items.empty()) {
    fault("must be \"auto\" or the layers of each pipeline stage, such as [20, 10]");
  }
  for (const ConfigValue& item : value.items) {
    spec->stage_layers.push_back(integer_of(item, 1, 1000000));
  }
}

std::string print_stage_layers(const TrainSpec& spec) {
  if (spec.stage_layers.empty()) return "\"auto\"";
  std::vector<std::string> numbers;
  for (const int64_t layers : spec.stage_layers) numbers.push_back(std::to_string(layers));
  return "[" + join(numbers, ", ") + "]";
}

std::vector<TrainOption> make_options() {
  constexpr double kHuge = 1e308;
  std::vector<TrainOption> t;
  const auto add = [&](std::string_view key, std::string_view help, auto read, auto print) {
    t.push_back({key, help, read, print});
  };
  using V = const ConfigValue&;
  using C = const OptionContext&;
  using S = TrainSpec*;
  using P = const TrainSpec&;
  add(
      "name", "name of the job; names its files",
      [](V v, C, S s) {
        if (!is_plain_name(text_of(v))) {
          fault(cat(json_quote(v.text),
                    " cannot name files: use letters, digits, '.', '_' and '-', "
                    "not starting with '.' or '-', at most 100 characters"));
        }
        s->name = v.text;
      },
      [](P s) { return quoted(s.name); });
  add(
      "model", "Hugging Face model folder",
      [](V v, C c, S s) { s->model = path_join(c.base_directory, text_of(v)); },
      [](P s) { return quoted(s.model); });
  add(
      "data", "JSON Lines or JSON file(s)", [](V v, C c, S s) { read_data(v, c, s); }, print_data);
  add(
      "adapter.method", "lora",
      [](V v, C, S) {
        choice_with_future(v, {"lora", "dora", "qlora", "ia3", "full"}, 1);
      },
      [](P) { return std::string("\"lora\""); });
  add(
      "adapter.rank", "LoRA rank", [](V v, C, S s) { s->lora.rank = integer_of(v, 1, 65536); },
      [](P s) { return printed(s.lora.rank); });
  add(
      "adapter.alpha", "LoRA alpha; the default is twice the rank",
      [](V v, C, S s) { s->lora.alpha = number_of(v, 0, Bound::kOpen, kHuge); },
      [](P s) { return printed(s.lora.alpha); });
  add(
      "adapter.targets", "projections to adapt, or \"all-linear\"",
      [](V v, C, S s) { read_targets(v, s); }, print_targets);
  add(
      "adapter.layers", "layers to adapt, or \"all\"", [](V v, C, S s) { read_layers(v, s); },
      print_layers);
  add(
      "adapter.dropout", "dropout on the adapter's input",
      [](V v, C, S s) {
        s->lora.dropout = number_of(v, 0, Bound::kClosed, 1);
        if (s->lora.dropout >= 1) fault("must be below 1");
      },
      [](P s) { return printed(s.lora.dropout); });
  add(
      "adapter.rslora", "scale by alpha / sqrt(rank)",
      [](V v, C, S s) { s->lora.rslora = boolean_of(v); },
      [](P s) { return printed(s.lora.rslora); });
  add(
      "adapter.init", "start of A: \"default\" or \"gaussian\"",
      [](V v, C, S s) {
        s->lora.init = static_cast<model::LoraInit>(choice_of(v, {"default", "gaussian"}));
      },
      [](P s) {
        return std::string(s.lora.init == model::LoraInit::kDefault ? "\"default\""
                                                                    : "\"gaussian\"");
      });
  add(
      "adapter.rank_pattern", "ranks of modules whose path ends with a pattern",
      [](V v, C, S s) {
        read_pattern(v, &s->lora.rank_pattern, [](V n) { return integer_of(n, 1, 65536); });
      },
      [](P s) { return print_pattern(s.lora.rank_pattern); });
  add(
      "adapter.alpha_pattern", "alphas of modules whose path ends with a pattern",
      [](V v, C, S s) {
        read_pattern(v, &s->lora.alpha_pattern,
                     [](V n) { return number_of(n, 0, Bound::kOpen, kHuge); });
      },
      [](P s) { return print_pattern(s.lora.alpha_pattern); });
  add(
      "optimizer.name", "adamw",
      [](V v, C, S) {
        choice_with_future(v, {"adamw", "sgd"}, 1);
      },
      [](P) { return std::string("\"adamw\""); });
  add(
      "optimizer.learning_rate", "peak learning rate",
      [](V v, C, S s) { s->learning_rate = number_of(v, 0, Bound::kOpen, 100); },
      [](P s) { return printed(s.learning_rate); });
  add(
      "optimizer.beta1", "decay of the first moment",
      [](V v, C, S s) { s->beta1 = number_of(v, 0, Bound::kClosed, 0.999999); },
      [](P s) { return printed(s.beta1); });
  add(
      "optimizer.beta2", "decay of the second moment",
      [](V v, C, S s) { s->beta2 = number_of(v, 0, Bound::kClosed, 0.9999999); },
      [](P s) { return printed(s.beta2); });
  add(
      "optimizer.epsilon", "added to the root of the second moment",
      [](V v, C, S s) { s->epsilon = number_of(v, 0, Bound::kOpen, 1); },
      [](P s) { return printed(s.epsilon); });
  add(
      "optimizer.weight_decay", "decoupled weight decay",
      [](V v, C, S s) { s->weight_decay = number_of(v, 0, Bound::kClosed, 100); },
      [](P s) { return printed(s.weight_decay); });
  add(
      "optimizer.clip_norm", "largest gradient norm; 0 turns clipping off",
      [](V v, C, S s) { s->clip_norm = number_of(v, 0, Bound::kClosed, kHuge); },
      [](P s) { return printed(s.clip_norm); });
  add(
      "schedule.name", "constant, linear or cosine",
      [](V v, C, S s) {
        s->schedule = static_cast<model::ScheduleKind>(choice_of(v, schedule_names()));
      },
      [](P s) { return quoted(schedule_names()[static_cast<size_t>(s.schedule)]); });
  add(
      "schedule.warmup", "warm-up: a share of all steps (\"3%\") or optimizer steps",
      [](V v, C, S s) { read_warmup(v, s); },
      [](P s) {
        return s.warmup_steps >= 0 ? printed(s.warmup_steps)
                                   : quoted(format("%.12g%%", s.warmup_fraction * 100));
      });
  add(
      "batch.global", "rows of one optimizer step",
      [](V v, C, S s) { s->global_batch = integer_of(v, 1, 1 << 24); },
      [](P s) { return printed(s.global_batch); });
  add(
      "batch.sequence", "longest row in tokens; longer ones are cut",
      [](V v, C, S s) { s->sequence = integer_of(v, 2, 1 << 24); },
      [](P s) { return printed(s.sequence); });
  add(
      "length.epochs", "passes over the data",
      [](V v, C, S s) {
        s->epochs = number_of(v, 0, Bound::kOpen, 1e6);
        s->max_steps = -1;
      },
      [](P s) { return printed(s.epochs); });
  add(
      "length.steps", "optimizer steps, instead of epochs",
      [](V v, C, S s) { s->max_steps = integer_of(v, 1, std::numeric_limits<int32_t>::max()); },
      [](P s) { return s.max_steps < 0 ? std::string("\"from epochs\"") : printed(s.max_steps); });
  add(
      "seed", "of order, start and dropout",
      [](V v, C, S s) {
        s->seed = static_cast<uint64_t>(integer_of(v, 0, std::numeric_limits<int64_t>::max()));
      },
      [](P s) { return std::to_string(s.seed); });
  add(
      "precision", "of products: f32 never rounds, bf16 may; auto goes by the stored weights",
      [](V v, C, S s) {
        if (v.kind == Kind::kString && (v.text == "fp16" || v.text == "f16" || v.text == "float16"))
          fault(cat("\"", v.text, "\" is no training precision here; use auto, f32 or bf16"));
        s->precision = static_cast<model::Precision>(choice_of(v, precision_names()));
      },
      [](P s) { return quoted(precision_names()[static_cast<size_t>(s.precision)]); });
  add(
      "loss", "tokens that are learnt: assistant, completion or all",
      [](V v, C, S s) { s->loss = static_cast<model::LossKind>(choice_of(v, loss_names())); },
      [](P s) { return quoted(loss_names()[static_cast<size_t>(s.loss)]); });
  add(
      "truncation", "which end of a long row is kept",
      [](V v, C, S s) {
        s->truncation = static_cast<model::Truncation>(choice_of(v, truncation_names()));
      },
      [](P s) { return quoted(truncation_names()[static_cast<size_t>(s.truncation)]); });
  add(
      "chat_template", "template file instead of the model's",
      [](V v, C c, S s) {
        s->chat_template = v.kind == Kind::kString && v.text == "model"
                               ? ""
                               : path_join(c.base_directory, text_of(v));
      },
      [](P s) { return quoted(s.chat_template.empty() ? "model" : s.chat_template); });
  add(
      "special_tokens", "special-token strings inside messages: \"text\" or \"parse\"",
      [](V v, C, S s) {
        s->special_tokens_in_messages = choice_of(v, {"text", "parse"}) == 1;
      },
      [](P s) { return std::string(s.special_tokens_in_messages ? "\"parse\"" : "\"text\""); });
  add(
      "priority", "higher goes first",
      [](V v, C, S s) { s->priority = integer_of(v, -1000000, 1000000); },
      [](P s) { return printed(s.priority); });
  add(
      "plan.gpu_type", "pin: GPU type",
      [](V v, C, S s) { s->gpu_type = is_auto(v) ? "" : text_of(v); },
      [](P s) { return quoted(s.gpu_type.empty() ? "auto" : s.gpu_type); });
  add(
      "plan.tp", "pin: tensor-parallel size", [](V v, C, S s) { s->tp = parallel_size(v); },
      [](P s) { return print_auto(s.tp); });
  add(
      "plan.pp", "pin: pipeline stages", [](V v, C, S s) { s->pp = parallel_size(v); },
      [](P s) { return print_auto(s.pp); });
  add(
      "plan.dp", "pin: data-parallel replicas", [](V v, C, S s) { s->dp = parallel_size(v); },
      [](P s) { return print_auto(s.dp); });
  add(
      "plan.stage_layers", "pin: layers of each pipeline stage",
      [](V v, C, S s) { read_stage_layers(v, s); }, print_stage_layers);
  add(
      "plan.sequence_parallel", "norms divided over the tensor-parallel workers by tokens",
      [](V v, C, S s) { s->sequence_parallel = boolean_of(v); },
      [](P s) { return printed(s.sequence_parallel); });
  add(
      "plan.micro_batch_tokens", "pin: most tokens of a micro batch",
      [](V v, C, S s) { s->micro_batch_tokens = is_auto(v) ? -1 : integer_of(v, 2, 1 << 24); },
      [](P s) { return print_auto(s.micro_batch_tokens); });
  add(
      "plan.recompute", "pin: auto, none or block",
      [](V v, C, S s) {
        s->recompute = static_cast<model::Recompute>(choice_of(v, recompute_names()));
      },
      [](P s) { return quoted(recompute_names()[static_cast<size_t>(s.recompute)]); });
  add(
      "plan.threads", "pin: threads of the host device",
      [](V v, C, S s) { s->threads = is_auto(v) ? -1 : integer_of(v, 1, 4096); },
      [](P s) { return print_auto(s.threads); });
  add(
      "plan.kernels", "pin: kernels of the host device, or auto: the fastest, measured",
      [](V v, C, S s) {
        choice_of(v, device::kernel_set_names());
        s->kernels = is_auto(v) ? "" : v.text;
      },
      [](P s) { return quoted(s.kernels.empty() ? "auto" : s.kernels); });
  return t;
}

}  // namespace

const std::vector<TrainOption>& train_options() {
  static const std::vector<TrainOption> options = make_options();
  return options;
}

const std::vector<UnavailableKey>& unavailable_train_keys() {
  static const std::vector<UnavailableKey> keys = {
      {"evaluate", "keep the evaluation set aside and use `galley generate` on it"},
      {"deadline", "use priority to order jobs"},
      {"sweep", "write one [[train]] for each setting"},
  };
  return keys;
}

std::vector<std::string> option_groups() {
  std::vector<std::string> groups;
  for (const TrainOption& option : train_options()) {
    const size_t dot = option.key.find('.');
    if (dot == std::string_view::npos) continue;
    const std::string group(option.key.substr(0, dot));
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }
  return groups;
}

}  // namespace galley::launcher
