#include "trainer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace galley::trainer {

double Schedule::at(int64_t step) const {
  const auto s = static_cast<double>(step - 1);
  const auto warmup = static_cast<double>(warmup_steps);
  if (s < warmup) return learning_rate * s / warmup;
  const double rest = std::max(1.0, static_cast<double>(total_steps) - warmup);
  switch (kind) {
    case model::ScheduleKind::kConstant:
      return learning_rate;
    case model::ScheduleKind::kLinear:
      return learning_rate * std::max(0.0, (static_cast<double>(total_steps) - s) / rest);
    case model::ScheduleKind::kCosine:
      return learning_rate *
             std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * (s - warmup) / rest)));
  }
  return learning_rate;
}

Schedule schedule_of(const model::TrainSpec& spec, int64_t total_steps) {
  Schedule schedule{.kind = spec.schedule,
                    .learning_rate = spec.learning_rate,
                    .warmup_steps = spec.warmup_steps,
                    .total_steps = total_steps};
  if (schedule.warmup_steps < 0) {
    schedule.warmup_steps =
        static_cast<int64_t>(std::ceil(static_cast<double>(total_steps) * spec.warmup_fraction));
  }
  return schedule;
}

}  // namespace galley::trainer
