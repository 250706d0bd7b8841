#include <gtest/gtest.h>

#include <limits>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/model/safetensors.h"
#include "tests/trainer/toy_job.h"
#include "trainer/run_job.h"

namespace galley::trainer {
namespace {

using testing::FakeEvents;
using testing::make_toy_job;
using testing::ToyJob;

/// Multiplies the tensors whose name contains `part`.
void scale_weights(const std::string& folder, const std::string& part, float factor) {
  const std::string path = path_join(folder, "model.safetensors");
  std::vector<std::vector<float>> values;
  std::vector<model::TensorToWrite> tensors;
  const auto file = model::SafetensorsFile::open(path);
  for (const model::StoredTensor& tensor : file.tensors()) {
    std::vector<float>& data = values.emplace_back(tensor.to_f32());
    if (tensor.name.find(part) != std::string::npos) {
      for (float& value : data) value *= factor;
    }
    tensors.push_back({tensor.name, DType::kF32, tensor.shape, data.data()});
  }
  model::write_safetensors(path, tensors, file.metadata());
}

struct Ending {
  Reason reason = Reason::kOk;
  int exit_code = 0;
  std::string text;
  size_t steps = 0;
  bool adapter = false, checkpoint = false;
};
Ending run_to_the_end(ToyJob* job) {
  job->assignment.checkpoint_every_s = 0;
  FakeEvents events;
  Ending ending;
  try {
    run_job(job->assignment, events);
  } catch (const Error& error) {
    ending.reason = error.reason();
    ending.exit_code = error.exit_code();
    ending.text = error.what();
  }
  ending.steps = events.steps.size();
  ending.adapter = path_exists(path_join(job->assignment.job_directory, "adapter"));
  ending.checkpoint = newest_checkpoint_step(job->assignment.job_directory) >= 0;
  return ending;
}

TEST(Numerics, pain_P048_what_f16_cannot_hold_trains_as_ever) {
  // Activations far beyond 65504: nothing is ever held in f16, and norms sum in double precision.
  for (const char* part : {"embed_tokens", "down_proj"}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      SCOPED_TRACE(part);
      ToyJob job = make_toy_job("large");
      job.assignment.spec.max_steps = 3;
      job.assignment.weight_dtype = dtype;
      scale_weights(job.assignment.spec.model, part, 1e20f);
      const Ending ending = run_to_the_end(&job);
      EXPECT_EQ(ending.reason, Reason::kOk) << ending.text;
      EXPECT_TRUE(ending.adapter);
    }
  }
}

TEST(Numerics, pain_P048_overflow_ends_the_job_within_its_first_step) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const struct {
    const char* part;
    float factor;
  } cases[] = {{"q_proj", 1e20f},       {"norm", 1e25f},
               {"layernorm", 1e38f},    {"embed_tokens", infinity},
               {"down_proj", infinity}, {"layers.1.self_attn.v_proj", nan},
               {"lm_head", infinity},   {"final_nothing", 1.0f}};
  for (const auto& one : cases) {
    for (const std::string& kernels : device::kernel_set_names()) {
      if (kernels == "auto" || !device::kernel_set_usable(device::kernel_set_from_name(kernels))) {
        continue;
      }
      SCOPED_TRACE(cat(one.part, " ", kernels));
      ToyJob job = make_toy_job("overflow");
      job.assignment.spec.max_steps = 2;
      job.assignment.spec.kernels = kernels;
      if (device::kernel_set_rounds(device::kernel_set_from_name(kernels))) {
        job.assignment.weight_dtype = DType::kBf16;
        job.assignment.may_round_inputs = true;
      }
      scale_weights(job.assignment.spec.model, one.part, one.factor);
      const Ending ending = run_to_the_end(&job);
      if (one.factor == 1.0f) {  // the same path without a fault
        EXPECT_EQ(ending.reason, Reason::kOk) << ending.text;
        continue;
      }
      EXPECT_EQ(ending.reason, Reason::kNumerics) << ending.text;
      EXPECT_EQ(ending.exit_code, reason_traits(Reason::kNumerics).exit_code);
      EXPECT_NE(ending.text.find("step 1: "), std::string::npos) << ending.text;
      EXPECT_EQ(ending.steps, 0u);
      EXPECT_FALSE(ending.adapter);
      EXPECT_FALSE(ending.checkpoint);
    }
  }
}

TEST(Numerics, pain_P048_overflow_in_the_course_of_training_keeps_what_was_good) {
  ToyJob job = make_toy_job("later");
  job.assignment.spec.learning_rate = 1e36;
  job.assignment.spec.schedule = model::ScheduleKind::kConstant;
  job.assignment.spec.warmup_steps = 0;
  job.assignment.spec.warmup_fraction = 0;
  const Ending ending = run_to_the_end(&job);
  EXPECT_EQ(ending.reason, Reason::kNumerics) << ending.text;
  EXPECT_LT(ending.steps, 4u);
  EXPECT_FALSE(ending.adapter);
}

}  // namespace
}  // namespace galley::trainer
