#include "engine/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/core/strings.h"

namespace galley::model {
namespace {

constexpr const char* kOriginal = "original_max_position_embeddings";

struct Scaling {
  std::string_view name;
  RopeKind kind;
};
constexpr Scaling kScalings[] = {{"default", RopeKind::kDefault},
                                 {"linear", RopeKind::kLinear},
                                 {"llama3", RopeKind::kLlama3},
                                 {"yarn", RopeKind::kYarn}};

RopeKind read_kind(const ConfigKeys& keys) {
  std::string type = keys.text("rope_type", "");
  if (type.empty()) type = keys.text("type", "default");
  std::vector<std::string> names;
  for (const Scaling& scaling : kScalings) {
    if (scaling.name == type) return scaling.kind;
    names.emplace_back(scaling.name);
  }
  keys.unsupported(
      cat("RoPE scaling \"", type, "\" is not supported; this version has ", join(names, ", ")));
}

void read_llama3(const ConfigKeys& keys, const ConfigKeys& top, RopeConfig* rope) {
  for (const char* key : {"low_freq_factor", "high_freq_factor"}) {
    if (keys.find(key) == nullptr) keys.bad(key, "is missing");
  }
  rope->low_freq_factor = keys.positive("low_freq_factor", 1);
  rope->high_freq_factor = keys.positive("high_freq_factor", 4);
  if (rope->low_freq_factor >= rope->high_freq_factor) {
    keys.bad("low_freq_factor", "must be below \"high_freq_factor\"");
  }
  const ConfigKeys& holder = keys.find(kOriginal) != nullptr ? keys : top;
  rope->original_max_position = holder.size(kOriginal, kMaxPosition);
}

/// YaRN's scale of attention logits (its paper, section 3.4), as a factor of cos and sin.
double yarn_magnitude(double factor, double weight) {
  return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

void read_yarn(const ConfigKeys& keys, const ConfigKeys& top, int64_t max_position,
               RopeConfig* rope) {
  rope->beta_fast = keys.positive("beta_fast", 32);
  rope->beta_slow = keys.positive("beta_slow", 1);
  if (rope->beta_fast < rope->beta_slow) {
    keys.bad("beta_fast", "must not be below \"beta_slow\"");
  }
  if (rope->theta <= 1) keys.bad("rope_theta", "must be above 1 with YaRN");
  rope->round_bounds = keys.flag("truncate", true);
  const ConfigKeys& holder = keys.find(kOriginal) != nullptr ? keys : top;
  rope->original_max_position = holder.size(kOriginal, kMaxPosition, max_position);
  const bool two = keys.number("mscale", 0) != 0 && keys.number("mscale_all_dim", 0) != 0;
  const double magnitude =
      two ? yarn_magnitude(rope->factor, keys.positive("mscale", 1)) /
                yarn_magnitude(rope->factor, keys.positive("mscale_all_dim", 1))
          : yarn_magnitude(rope->factor, 1);
  rope->magnitude = keys.positive("attention_factor", magnitude);
}

/// Configs that give each kind of layer its own angles hold an object for each of them.
void require_one_rope(const ConfigKeys& keys) {
  for (const auto& [key, value] : keys.object().as_object()) {
    if (value.is_object()) {
      keys.unsupported(
          cat("\"", key, "\": RoPE that differs from layer to layer is not supported"));
    }
  }
  if (keys.find("mrope_section") != nullptr) {
    keys.unsupported("\"mrope_section\": positions of several axes are not supported");
  }
  // Programs disagree on it: some ignore it, some multiply with it.
  if (keys.find("attn_factor") != nullptr) {
    keys.unsupported(
        "\"attn_factor\" is not supported: write \"attention_factor\", which replaces the factor "
        "of "
        "cos and sin");
  }
}

/// Angular frequency of rotary pair `i` without scaling.
double plain_frequency(const ModelConfig& config, int64_t i) {
  return std::pow(config.rope.theta,
                  -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
}

double llama3_frequency(const RopeConfig& rope, double frequency) {
  const auto original = static_cast<double>(rope.original_max_position);
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  const double smooth = (original / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

/// YaRN: pairs that turn more than beta_fast times over the original length stay, those that turn
/// less than beta_slow times are divided by the factor, between them a ramp (paper, section 3.2).
double yarn_frequency(const ModelConfig& config, int64_t i, double frequency) {
  const RopeConfig& rope = config.rope;
  const auto dim = static_cast<double>(config.head_dim);
  const auto pair_of = [&](double turns) {
    const double length = static_cast<double>(rope.original_max_position);
    return dim * std::log(length / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(rope.theta));
  };
  double low = pair_of(rope.beta_fast), high = pair_of(rope.beta_slow);
  if (rope.round_bounds) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
  return frequency / rope.factor * ramp + frequency * (1.0 - ramp);
}

/// Angular frequency of rotary pair `i`, after scaling.
double rope_frequency(const ModelConfig& config, int64_t i) {
  const double frequency = plain_frequency(config, i);
  switch (config.rope.kind) {
    case RopeKind::kDefault:
      return frequency;
    case RopeKind::kLinear:
      return frequency / config.rope.factor;
    case RopeKind::kLlama3:
      return llama3_frequency(config.rope, frequency);
    case RopeKind::kYarn:
      return yarn_frequency(config, i, frequency);
  }
  return frequency;
}

}  // namespace

RopeConfig read_rope(const ConfigKeys& top, int64_t max_position) {
  RopeConfig rope;
  rope.theta = top.positive("rope_theta", 10000.0);
  const char* name = top.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const Json* parameters = top.find(name);
  double partial = top.number("partial_rotary_factor", 1.0);
  if (parameters != nullptr) {
    if (!parameters->is_object()) top.bad(name, "must be an object");
    const ConfigKeys keys(*parameters, cat(top.where(), ": ", name));
    require_one_rope(keys);
    rope.theta = keys.positive("rope_theta", rope.theta);
    partial = keys.number("partial_rotary_factor", partial);
    rope.kind = read_kind(keys);
    if (rope.kind != RopeKind::kDefault) {
      if (keys.find("factor") == nullptr) keys.bad("factor", "is missing");
      rope.factor = keys.positive("factor", 1.0);
      if (rope.factor < 1) keys.bad("factor", cat("is ", rope.factor, ", it must be at least 1"));
    }
    if (rope.kind == RopeKind::kLlama3) read_llama3(keys, top, &rope);
    if (rope.kind == RopeKind::kYarn) read_yarn(keys, top, max_position, &rope);
  }
  if (partial != 1.0) {
    top.unsupported(cat("partial_rotary_factor ", partial, " is not supported, only 1"));
  }
  return rope;
}

void rope_tables(const ModelConfig& config, int64_t num_positions, float* cos, float* sin) {
  const int64_t half = config.head_dim / 2;
  const double magnitude = config.rope.magnitude;
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = rope_frequency(config, i);
    for (int64_t position = 0; position < num_positions; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      cos[position * half + i] = static_cast<float>(magnitude * std::cos(angle));
      sin[position * half + i] = static_cast<float>(magnitude * std::sin(angle));
    }
  }
}

}  // namespace galley::model
