// What the pins of a job ([train.plan]) say of a group. Pure functions of values.
#pragma once

#include "engine/model/layout.h"
#include "engine/model/train_spec.h"

namespace galley::placement {

/// Whether the pins ask for more than one worker, or forbid it.
bool asks_for_group(const model::TrainSpec& spec);
bool forbids_group(const model::TrainSpec& spec);
/// The layout that the pins name; what they leave open is 1.
model::ParallelLayout pinned_layout(const model::TrainSpec& spec);

}  // namespace galley::placement
