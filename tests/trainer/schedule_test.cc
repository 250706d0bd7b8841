#include "trainer/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/json.h"
#include "tests/support/reference.h"

namespace galley::trainer {
namespace {

using model::ScheduleKind;

TEST(Schedule, pain_P044_first_warm_up_and_last_step) {
  const Schedule cosine{ScheduleKind::kCosine, 1.0, 10, 110};
  EXPECT_EQ(cosine.at(1), 0.0);  // documented: transformers' first step has rate 0
  EXPECT_DOUBLE_EQ(cosine.at(6), 0.5);
  EXPECT_DOUBLE_EQ(cosine.at(11), 1.0);
  EXPECT_NEAR(cosine.at(61), 0.5, 1e-12);
  EXPECT_NEAR(cosine.at(110), 0.5 * (1 + std::cos(M_PI * 99 / 100)), 1e-12);
  EXPECT_NEAR(cosine.at(111), 0.0, 1e-12);  // zero right behind the last step, not before
  const Schedule linear{ScheduleKind::kLinear, 1.0, 10, 110};
  EXPECT_DOUBLE_EQ(linear.at(110), 0.01);
  EXPECT_EQ(linear.at(200), 0.0);
  const Schedule constant{ScheduleKind::kConstant, 1.0, 0, 110};
  EXPECT_EQ(constant.at(1), 1.0);
  EXPECT_EQ(constant.at(1000), 1.0);
}

TEST(Schedule, pain_P045_warm_up_counts_optimizer_steps) {
  model::TrainSpec spec;
  spec.warmup_steps = 10000;
  spec.learning_rate = 1.0;
  const Schedule schedule = schedule_of(spec, 200000);
  EXPECT_EQ(schedule.warmup_steps, 10000);
  EXPECT_LT(schedule.at(2501), 0.26);
  EXPECT_DOUBLE_EQ(schedule.at(10001), 1.0);
  spec.warmup_steps = -1;
  spec.warmup_fraction = 0.03;
  EXPECT_EQ(schedule_of(spec, 50).warmup_steps, 2);  // ceil(1.5)
}

TEST(Schedule, pain_P042_one_rate_per_optimizer_step) {
  // The rate is a function of the step alone: no state that several ranks could advance.
  const Schedule schedule{ScheduleKind::kCosine, 3e-4, 5, 50};
  const double first = schedule.at(20);
  for (int64_t step = 1; step <= 50; ++step) schedule.at(step);
  EXPECT_EQ(schedule.at(20), first);
}

// Settings of transformers that come later.
const std::set<std::string> kRefused = {"cosine_3_half_cycles",
                                        "cosine_with_restarts_3",
                                        "cosine_with_min_lr_rate",
                                        "cosine_with_min_lr",
                                        "polynomial",
                                        "polynomial_default",
                                        "inverse_sqrt",
                                        "inverse_sqrt_timescale",
                                        "warmup_stable_decay",
                                        "warmup_stable_decay_linear",
                                        "warmup_stable_decay_1_sqrt"};

/// The kind of this version for a schedule of transformers; false when there is none.
bool find_kind(const Json& entry, ScheduleKind* kind) {
  const std::string type = entry.get_string("lr_scheduler_type");
  if (!entry.at("lr_scheduler_kwargs").as_object().empty()) return false;
  if (type == "constant" || type == "constant_with_warmup") {
    *kind = ScheduleKind::kConstant;
  } else if (type == "linear") {
    *kind = ScheduleKind::kLinear;
  } else if (type == "cosine") {
    *kind = ScheduleKind::kCosine;
  } else {
    return false;
  }
  return true;
}

TEST(Schedule, reference_schedules_match_or_are_refused) {
  GALLEY_NEED_REFERENCE(path, "peft/optim/schedules.json");
  const Json json = parse_json_or_throw(read_file(path), path, Reason::kInternal);
  galley::testing::CaseCount count("learning rate schedules");
  for (const auto& [name, entry] : json.at("schedules").as_object()) {
    Schedule schedule;
    if (!find_kind(entry, &schedule.kind)) {
      EXPECT_TRUE(kRefused.contains(name)) << name;
      count.refuse(name);
      continue;
    }
    EXPECT_FALSE(kRefused.contains(name)) << name;
    schedule.learning_rate = json.at("base_lr").as_double();
    schedule.warmup_steps = entry.get_int("num_warmup_steps");
    schedule.total_steps = entry.at("num_training_steps").as_int();
    int64_t step = 1;
    for (const Json& rate : entry.at("lr").as_array()) {
      EXPECT_NEAR(schedule.at(step), rate.as_double(), 1e-15) << name << " step " << step;
      ++step;
    }
    count.pass();
  }
}

}  // namespace
}  // namespace galley::trainer
