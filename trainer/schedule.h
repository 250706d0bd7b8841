// Schedule: the learning rate of an optimizer step, a pure function of the step.
//
// Steps are global optimizer steps, counted once per update whatever the number of GPUs or micro
// batches. Warm-up and decay are those of transformers' get_*_schedule_with_warmup.
#pragma once

#include <cstdint>

#include "engine/model/train_spec.h"

namespace galley::trainer {

struct Schedule {
  model::ScheduleKind kind = model::ScheduleKind::kCosine;
  double learning_rate = 0;  // the peak
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;

  /// Learning rate of optimizer step `step`, from 1. With s = step - 1, W warm-up and N total
  /// steps: s < W: lr s / W; then constant lr; linear lr (N - s) / (N - W); cosine lr (1 + cos(pi
  /// (s - W) / (N - W))) / 2. Never below 0.
  double at(int64_t step) const;
};

/// The schedule of a job with `total_steps` optimizer steps: warm-up is warmup_steps when given,
/// else ceil(total_steps * warmup_fraction).
Schedule schedule_of(const model::TrainSpec& spec, int64_t total_steps);

}  // namespace galley::trainer
