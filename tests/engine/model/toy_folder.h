// A small random model folder for tests: config.json and model.safetensors, written by our own
// writer.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/json.h"
#include "engine/core/random.h"
#include "engine/model/model_config.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights.h"

namespace galley::model::testing {

inline Json toy_config_json() {
  return parse_json_or_throw(
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
          "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
          "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
          "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"})",
      "toy", Reason::kInternal);
}

/// The toy as another family; its own keys are not set.
inline Json toy_config_json(const char* architecture, const char* model_type) {
  return toy_config_json()
      .set("architectures", Json(Json::Array{Json(architecture)}))
      .set("model_type", model_type);
}

/// Writes the folder; `dropped` weights are left out.
inline ModelConfig write_toy_folder(const std::string& folder, const Json& json,
                                    const std::vector<std::string>& dropped = {}) {
  make_directories(folder);
  write_file_atomically(path_join(folder, "config.json"), json.dump_pretty());
  const ModelConfig config = read_model_config(folder);
  std::vector<std::vector<float>> values;
  std::vector<TensorToWrite> tensors;
  Random random(7, 1);
  for (const WeightSpec& spec : weight_specs(config)) {
    if (std::find(dropped.begin(), dropped.end(), spec.name) != dropped.end()) continue;
    int64_t count = 1;
    for (const int64_t size : spec.shape) count *= size;
    std::vector<float>& data = values.emplace_back(static_cast<size_t>(count));
    for (float& value : data) value = static_cast<float>(0.1 * random.normal());
    tensors.push_back({spec.name, DType::kF32, spec.shape, data.data()});
  }
  write_safetensors(path_join(folder, "model.safetensors"), tensors, {{"format", "pt"}});
  return config;
}

}  // namespace galley::model::testing
