#include "engine/model/lora.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/core/error.h"
#include "engine/core/hash.h"
#include "engine/core/random.h"
#include "engine/core/strings.h"
#include "engine/model/family.h"
#include "engine/model/module_match.h"

namespace galley::model {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";

std::vector<std::string> projection_names() {
  std::vector<std::string> names;
  for (int i = 0; i < kNumProjections; ++i) {
    names.emplace_back(projection_name(static_cast<Projection>(i)));
  }
  return names;
}

/// Chooses the adapted modules of one set of settings.
class Selection {
 public:
  explicit Selection(const LoraSettings& settings) : settings_(settings) {
    if (!settings.target_pattern.empty()) {
      target_.emplace(settings.target_pattern, ModulePattern::Extent::kWholePath);
    }
    if (!settings.exclude_pattern.empty()) {
      exclude_.emplace(settings.exclude_pattern, ModulePattern::Extent::kWholePath);
    }
  }

  bool includes(int64_t layer, const std::string& path) const {
    if (exclude_ ? exclude_->matches(path) : ends_with_any(path, settings_.exclude)) return false;
    if (target_) return target_->matches(path);
    if (!settings_.targets.empty() && !ends_with_any(path, settings_.targets)) return false;
    return settings_.layers.empty() || std::find(settings_.layers.begin(), settings_.layers.end(),
                                                 layer) != settings_.layers.end();
  }

 private:
  static bool ends_with_any(const std::string& path, const std::vector<std::string>& ends) {
    return std::any_of(ends.begin(), ends.end(),
                       [&](const std::string& end) { return path_ends_with(path, end); });
  }

  const LoraSettings& settings_;
  std::optional<ModulePattern> target_, exclude_;
};

/// rank_pattern or alpha_pattern: the value of the first key that matches a module.
template <typename Value>
class PatternTable {
 public:
  explicit PatternTable(const std::vector<std::pair<std::string, Value>>& rows) {
    for (const auto& [key, value] : rows) {
      rows_.push_back({ModulePattern(key, ModulePattern::Extent::kPathEnd), value});
    }
  }
  Value find(const std::string& path, Value fallback) const {
    for (const Row& row : rows_) {
      if (row.pattern.matches(path)) return row.value;
    }
    return fallback;
  }

 private:
  struct Row {
    ModulePattern pattern;
    Value value;
  };
  std::vector<Row> rows_;
};

[[noreturn]] void bad(const std::string& what) { throw Error(Reason::kBadConfig, what); }

void check_settings(const ModelConfig& config, const LoraSettings& settings) {
  if (settings.rank < 1) bad(cat("lora rank ", settings.rank, " must be at least 1"));
  if (!(settings.alpha > 0) || !std::isfinite(settings.alpha)) {
    bad(cat("lora alpha ", settings.alpha, " must be above 0"));
  }
  if (!(settings.dropout >= 0 && settings.dropout < 1)) {
    bad(cat("lora dropout ", settings.dropout, " must be at least 0 and below 1"));
  }
  for (const int64_t layer : settings.layers) {
    if (layer < 0 || layer >= config.num_layers) {
      bad(cat("there is no layer ", layer, " to adapt; the model has layers 0 to ",
              config.num_layers - 1));
    }
  }
}

/// A target that is no end of any linear's path is a mistake, even beside good ones.
void check_target(const ModelConfig& config, const std::string& target) {
  if (target == "lm_head" || path_ends_with(target, "embed_tokens")) {
    throw Error(Reason::kUnsupported, cat("LoRA on ", target, " is not supported; targets are ",
                                          join(projection_names(), ", ")));
  }
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (int i = 0; i < kNumProjections; ++i) {
      if (path_ends_with(module_path(layer, static_cast<Projection>(i)), target)) return;
    }
  }
  const std::string hint = did_you_mean(target, projection_names());
  bad(cat("target \"", target, "\" matches no linear of ", config.architecture, hint,
          hint.empty() ? "; targets are " + join(projection_names(), ", ") : ""));
}

/// The same for the keys of rank_pattern and alpha_pattern.
template <typename Value>
void check_patterns(const ModelConfig& config, const char* name,
                    const std::vector<std::pair<std::string, Value>>& rows) {
  for (const auto& [key, unused] : rows) {
    const ModulePattern pattern(key, ModulePattern::Extent::kPathEnd);
    bool used = false;
    for (int64_t layer = 0; layer < config.num_layers && !used; ++layer) {
      for (int i = 0; i < kNumProjections && !used; ++i) {
        used = pattern.matches(module_path(layer, static_cast<Projection>(i)));
      }
    }
    if (!used) {
      bad(cat(name, " \"", key, "\" matches no linear of ", config.architecture,
              did_you_mean(key, projection_names())));
    }
  }
}

void check_rank(const AdaptedLinear& linear) {
  if (linear.rank < 1 || linear.rank > std::min(linear.in, linear.out)) {
    bad(cat("lora rank ", linear.rank, " does not suit ",
            module_path(linear.layer, linear.projection), " of ", linear.out, " x ", linear.in,
            "; it must be between 1 and ", std::min(linear.in, linear.out)));
  }
}

std::string tensor_name(const AdaptedLinear& linear, std::string_view part) {
  return cat(kPrefix, module_path(linear.layer, linear.projection), ".", part, ".weight");
}

}  // namespace

std::string AdaptedLinear::name_a() const { return tensor_name(*this, "lora_A"); }
std::string AdaptedLinear::name_b() const { return tensor_name(*this, "lora_B"); }

std::vector<AdaptedLinear> adapted_linears(const ModelConfig& config,
                                           const LoraSettings& settings) {
  check_settings(config, settings);
  for (const std::string& target : settings.targets) check_target(config, target);
  check_patterns(config, "rank_pattern", settings.rank_pattern);
  check_patterns(config, "alpha_pattern", settings.alpha_pattern);
  const Selection selection(settings);
  const PatternTable<int64_t> ranks(settings.rank_pattern);
  const PatternTable<double> alphas(settings.alpha_pattern);
  std::vector<AdaptedLinear> linears;
  for (int layer = 0; layer < static_cast<int>(config.num_layers); ++layer) {
    for (int i = 0; i < kNumProjections; ++i) {
      const auto projection = static_cast<Projection>(i);
      const std::string path = module_path(layer, projection);
      if (!selection.includes(layer, path)) continue;
      AdaptedLinear linear{.layer = layer, .projection = projection};
      linear.rank = ranks.find(path, settings.rank);
      linear.in = config.projection_in(projection);
      linear.out = config.projection_out(projection);
      check_rank(linear);
      const auto rank = static_cast<double>(linear.rank);
      const double alpha = alphas.find(path, settings.alpha);
      if (!(alpha > 0) || !std::isfinite(alpha)) bad(cat("lora alpha ", alpha, " of ", path));
      linear.scaling = alpha / (settings.rslora ? std::sqrt(rank) : rank);
      linears.push_back(linear);
    }
  }
  if (linears.empty()) {
    bad(cat("no linear of ", config.architecture, " is adapted by these targets",
            settings.target_pattern.empty() ? "" : " (\"" + settings.target_pattern + "\")",
            ": nothing would be trained"));
  }
  return linears;
}

uint64_t TrainableTensor::num_elements() const {
  uint64_t count = 1;
  for (const int64_t size : shape) count *= static_cast<uint64_t>(size);
  return count;
}

std::vector<TrainableTensor> trainable_tensors(const std::vector<AdaptedLinear>& linears) {
  std::vector<TrainableTensor> tensors;
  uint64_t offset = 0;
  const auto add = [&](std::string name, std::vector<int64_t> shape) {
    tensors.push_back({std::move(name), std::move(shape), offset});
    offset += tensors.back().num_elements();
  };
  for (const AdaptedLinear& linear : linears) {
    add(linear.name_a(), {linear.rank, linear.in});
    add(linear.name_b(), {linear.out, linear.rank});
  }
  return tensors;
}

uint64_t num_trainable(const std::vector<AdaptedLinear>& linears) {
  uint64_t count = 0;
  for (const AdaptedLinear& linear : linears) count += linear.num_parameters();
  return count;
}

std::vector<float> initial_adapter(const std::vector<AdaptedLinear>& linears, LoraInit init,
                                   uint64_t seed) {
  std::vector<float> values(num_trainable(linears), 0.0f);
  const std::vector<TrainableTensor> tensors = trainable_tensors(linears);
  for (size_t i = 0; i < linears.size(); ++i) {
    const TrainableTensor& a = tensors[2 * i];
    // kaiming_uniform with a = sqrt(5): the bound is sqrt(6 / ((1 + 5) in)) = 1 / sqrt(in).
    const double bound = 1.0 / std::sqrt(static_cast<double>(linears[i].in));
    const double deviation = 1.0 / static_cast<double>(linears[i].rank);
    Random random(seed, random_stream("lora_init", {hash64(a.name)}));
    for (uint64_t k = 0; k < a.num_elements(); ++k) {
      const double value = init == LoraInit::kGaussian ? deviation * random.normal()
                                                       : bound * (2.0 * random.uniform() - 1.0);
      values[a.offset + k] = static_cast<float>(value);
    }
  }
  return values;
}

}  // namespace galley::model
