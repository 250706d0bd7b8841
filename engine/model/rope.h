// What a config says of rotary positions. Plain functions; any thread.
#pragma once

#include "engine/model/config_keys.h"
#include "engine/model/model_config.h"

namespace galley::model {

/// Old form: rope_theta beside rope_scaling {type or rope_type, ...} or null. Newer form:
/// rope_parameters {rope_type, rope_theta, ...}. Errors as read_model_config().
RopeConfig read_rope(const ConfigKeys& top, int64_t max_position);

}  // namespace galley::model
