#include "placement/pins.h"

#include <algorithm>

namespace galley::placement {

bool asks_for_group(const model::TrainSpec& spec) {
  return spec.tp > 1 || spec.pp > 1 || spec.dp > 1;
}

bool forbids_group(const model::TrainSpec& spec) {
  return spec.tp == 1 && spec.pp == 1 && spec.dp <= 1;
}

model::ParallelLayout pinned_layout(const model::TrainSpec& spec) {
  const auto size = [](int64_t pin) { return static_cast<int>(std::max<int64_t>(1, pin)); };
  model::ParallelLayout layout;
  layout.tp_size = size(spec.tp);
  layout.pp_size = size(spec.pp);
  layout.dp_size = size(spec.dp);
  for (const int64_t layers : spec.stage_layers)
    layout.stage_layers.push_back(static_cast<int>(layers));
  if (spec.sequence_parallel && layout.tp_size > 1)
    layout.sequence_parallel = model::SequenceParallel::kYes;
  return layout;
}

}  // namespace galley::placement
