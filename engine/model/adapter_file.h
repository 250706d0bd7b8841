// PEFT adapter folders: adapter_config.json and adapter_model.safetensors, both ways.
#pragma once

#include <string>
#include <vector>

#include "engine/model/lora.h"

namespace galley::model {

struct Adapter {
  LoraSettings settings;
  std::vector<AdaptedLinear> linears;
  std::vector<float> values;  // flat vector of trainable_tensors(linears)
  std::string base_model;     // base_model_name_or_path
};

/// Reads a folder for this base model. kMissingPath; kBadCheckpoint listing unmatched or missing
/// keys and wrong shapes (an adapter that changes nothing is an error); kUnsupported naming what
/// this version cannot apply (DoRA, modules_to_save, bias, other PEFT types, ...).
Adapter read_adapter(const std::string& folder, const ModelConfig& config);

/// Writes folder beside, reads it back, renames. kNumerics when a value is not finite: such an
/// adapter is never saved. Keys are exactly PEFT's; adapter_config.json loads in PEFT and vLLM.
void write_adapter(const std::string& folder, const Adapter& adapter);

}  // namespace galley::model
