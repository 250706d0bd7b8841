// Models, settings and checks that the tests of memory plans share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "engine/model/memory_plan.h"

namespace galley::model {

inline ModelConfig llama(int64_t vocab, int64_t hidden, int64_t intermediate, int64_t layers,
                         int64_t heads, int64_t kv_heads, bool tied) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab_size = vocab;
  config.hidden = hidden;
  config.intermediate = intermediate;
  config.num_layers = layers;
  config.num_heads = heads;
  config.num_kv_heads = kv_heads;
  config.head_dim = hidden / heads;
  config.tied_embeddings = tied;
  return config;
}
inline ModelConfig smollm2() { return llama(49152, 576, 1536, 30, 9, 3, true); }

inline std::vector<AdaptedLinear> adapt(const ModelConfig& config,
                                        const std::vector<std::string>& targets,
                                        const std::vector<int64_t>& layers = {},
                                        int64_t rank = 16) {
  LoraSettings settings;
  settings.rank = rank;
  settings.targets = targets;
  settings.layers = layers;
  return adapted_linears(config, settings);
}

inline DeviceTraits traits() {
  DeviceTraits traits;
  traits.gemm_workspace_bytes = 4096;
  traits.attention_workspace_bytes = 8192;
  return traits;
}

inline MemorySettings settings_for(const std::vector<AdaptedLinear>& linears, int64_t tokens) {
  MemorySettings settings;
  settings.linears = linears;
  settings.micro_batch_tokens = tokens;
  settings.micro_batch_rows = 4;
  settings.max_position = 512;
  return settings;
}

inline bool has(const MemoryPlan& plan, const std::string& name) {
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.name == name) return true;
  }
  return false;
}

/// Every tensor inside its arena, aligned, named once; live tensors of an arena never overlap.
inline void check_plan(const MemoryPlan& plan, uint32_t alignment) {
  std::set<std::string> names;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const PlannedTensor& a = plan.tensors[i];
    EXPECT_TRUE(names.insert(a.name).second) << a.name;
    EXPECT_EQ(a.offset % alignment, 0u) << a.name;
    EXPECT_GT(a.bytes, 0u) << a.name;
    EXPECT_LE(a.first_moment, a.last_moment) << a.name;
    EXPECT_LT(static_cast<size_t>(a.last_moment), plan.moments.size()) << a.name;
    const uint64_t arena = a.arena == ArenaKind::kWeights     ? plan.weights_bytes
                           : a.arena == ArenaKind::kTrainable ? plan.trainable_bytes
                                                              : plan.activations_bytes;
    EXPECT_LE(a.offset + a.bytes, arena) << a.name;
    for (size_t j = 0; j < i; ++j) {
      const PlannedTensor& b = plan.tensors[j];
      if (a.arena != b.arena) continue;
      if (a.first_moment > b.last_moment || b.first_moment > a.last_moment) continue;
      EXPECT_TRUE(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset)
          << a.name << " and " << b.name;
    }
  }
  uint64_t peak = 0;
  for (const Moment& moment : plan.moments) peak = std::max(peak, moment.live_bytes);
  EXPECT_EQ(plan.moments[static_cast<size_t>(plan.peak_moment)].live_bytes, peak);
  EXPECT_GE(plan.weights_bytes + plan.trainable_bytes + plan.activations_bytes, peak);
}

}  // namespace galley::model
