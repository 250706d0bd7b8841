// A small model and a job on it as values, for tests of deciders: no file is read.
#pragma once

#include "engine/model/model_config.h"
#include "engine/model/train_spec.h"
#include "predictor/predictor.h"

namespace galley::testing {

/// The shape of a 135 million parameter Llama.
inline model::ModelConfig example_config() {
  model::ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.name = "example";
  config.vocab_size = 49152;
  config.hidden = 576;
  config.intermediate = 1536;
  config.num_layers = 30;
  config.num_heads = 9;
  config.num_kv_heads = 3;
  config.head_dim = 64;
  config.max_position = 8192;
  config.tied_embeddings = true;
  return config;
}

inline model::TrainSpec example_spec(int64_t sequence = 512) {
  model::TrainSpec spec;
  spec.name = "job";
  spec.sequence = sequence;
  spec.lora.rank = 16;
  spec.lora.alpha = 32;
  return spec;
}

inline predictor::DataShape example_data(int64_t longest = 512, int64_t rows = 100) {
  predictor::DataShape data;
  data.num_rows = rows;
  data.longest_tokens = longest;
  data.mean_tokens = static_cast<double>(longest) / 2;
  data.target_fraction = 0.5;
  data.measured = true;
  return data;
}

}  // namespace galley::testing
