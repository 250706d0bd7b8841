// adapter_config.json of PEFT: what it says, and what of it this version cannot apply.
//
// Plain functions on values.
#pragma once

#include <string>

#include "engine/core/json.h"
#include "engine/model/lora.h"

namespace galley::model {

/// Settings of a PEFT LoRA config. kBadCheckpoint naming file and key for nonsense, kUnsupported
/// naming what cannot be applied; a key that is not known here and not empty is refused too.
/// "all-linear" becomes the empty target list.
LoraSettings parse_adapter_config(const Json& json, const std::string& where,
                                  std::string* base_model);

/// The config that PEFT and vLLM read; only keys that old PEFT versions know too.
Json adapter_config_json(const LoraSettings& settings, const std::string& base_model);

}  // namespace galley::model
