#include "predictor/precision.h"

#include <gtest/gtest.h>

#include "engine/core/file.h"
#include "predictor/predictor.h"
#include "tests/engine/model/toy_folder.h"
#include "tests/support/example_jobs.h"
#include "tests/support/reference.h"

namespace galley::predictor {
namespace {

using model::Precision;
using testing::example_config;
using testing::example_data;
using testing::example_spec;

model::ModelConfig stored_as(DType dtype) {
  model::ModelConfig config = example_config();
  config.stored_dtype = dtype;
  return config;
}

constexpr Precision kAll[] = {Precision::kAuto, Precision::kF32, Precision::kBf16};

TEST(Precision, bf16_weights_stay_and_f32_never_rounds) {
  const model::ModelConfig config = stored_as(DType::kBf16);
  for (const PrecisionUse use : {PrecisionUse::kTraining, PrecisionUse::kInference}) {
    for (const Precision precision : kAll) {
      const ResolvedPrecision resolved = resolve_precision(config, precision, use);
      EXPECT_EQ(resolved.weight_dtype, DType::kBf16);
      EXPECT_EQ(resolved.note, "");
    }
    EXPECT_FALSE(resolve_precision(config, Precision::kF32, use).may_round_inputs);
    EXPECT_TRUE(resolve_precision(config, Precision::kBf16, use).may_round_inputs);
  }
  EXPECT_TRUE(
      resolve_precision(config, Precision::kAuto, PrecisionUse::kTraining).may_round_inputs);
  EXPECT_FALSE(
      resolve_precision(config, Precision::kAuto, PrecisionUse::kInference).may_round_inputs);
}

TEST(Precision, other_weights_are_rounded_on_request_only_and_that_is_said) {
  for (const DType stored : {DType::kF32, DType::kF16}) {
    const model::ModelConfig config = stored_as(stored);
    for (const PrecisionUse use : {PrecisionUse::kTraining, PrecisionUse::kInference}) {
      for (const Precision precision : {Precision::kAuto, Precision::kF32}) {
        const ResolvedPrecision resolved = resolve_precision(config, precision, use);
        EXPECT_EQ(resolved.weight_dtype, DType::kF32);
        EXPECT_FALSE(resolved.may_round_inputs);
        EXPECT_EQ(resolved.note, "");
      }
      const ResolvedPrecision rounded = resolve_precision(config, Precision::kBf16, use);
      EXPECT_EQ(rounded.weight_dtype, DType::kBf16);
      EXPECT_TRUE(rounded.may_round_inputs);
      EXPECT_NE(rounded.note.find("rounded to bf16 at load"), std::string::npos);
      EXPECT_NE(rounded.note.find(stored == DType::kF16 ? "f16" : "f32"), std::string::npos);
    }
  }
}

/// Types without bf16: the cards of the list, and a described one.
std::vector<GpuType> types_without_bf16() {
  std::vector<GpuType> types;
  for (const GpuType& type : gpu_table()) {
    if (!has_bf16(type)) types.push_back(type);
  }
  types.push_back(gpu_type_from_json(
      Json::object().set("name", "old").set("memory", "16GiB").set("bf16_tflops", 0), "test"));
  for (GpuType type : std::vector<GpuType>(types)) {
    type.emulated = true;
    types.push_back(type);
  }
  return types;
}

TEST(Precision, types_without_bf16_are_the_old_cards) {
  for (const char* name : {"v100-16gb", "v100-32gb", "t4-16gb", "rtx2080ti-11gb", "rtx6000-24gb"})
    EXPECT_FALSE(has_bf16(gpu_type_by_name(name))) << name;
  for (const char* name : {"a100-40gb", "rtx3090-24gb", "l4-24gb", "h100-80gb", "mi250-64gb"})
    EXPECT_TRUE(has_bf16(gpu_type_by_name(name))) << name;
  EXPECT_TRUE(has_bf16(host_gpu_type(uint64_t{8} << 30)));
}

TEST(Precision, pain_P046_a_card_without_bf16_computes_in_f32_with_an_f32_adapter) {
  for (const GpuType& gpu : types_without_bf16()) {
    for (const DType stored : {DType::kF32, DType::kF16, DType::kBf16}) {
      for (const Precision precision : kAll) {
        model::TrainSpec spec = example_spec();
        spec.precision = precision;
        const auto all = candidates(stored_as(stored), spec, example_data(), gpu, 1);
        ASSERT_FALSE(all.empty());
        for (const Candidate& candidate : all) {
          const PlanShape& shape = candidate.shape;
          EXPECT_FALSE(shape.may_round_inputs);
          // Nothing is rounded: what is stored in bf16 is, the rest is widened.
          EXPECT_EQ(shape.weight_dtype, stored == DType::kBf16 ? DType::kBf16 : DType::kF32);
          EXPECT_NE(shape.precision_note.find("computes in f32"), std::string::npos);
          EXPECT_NE(shape.precision_note.find("adapter in f32"), std::string::npos);
          EXPECT_NE(shape.precision_note.find(gpu.name), std::string::npos);
        }
      }
    }
  }
}

TEST(Precision, pain_P047_bf16_asked_for_where_there_is_none_is_said_before_any_work) {
  model::TrainSpec spec = example_spec();
  spec.precision = Precision::kBf16;
  for (const GpuType& gpu : types_without_bf16()) {
    for (const Candidate& candidate :
         candidates(stored_as(DType::kF16), spec, example_data(), gpu, 1)) {
      EXPECT_NE(candidate.shape.precision_note.find("instead of precision = \"bf16\""),
                std::string::npos)
          << candidate.shape.precision_note;
    }
  }
  for (const Candidate& candidate : candidates(stored_as(DType::kBf16), spec, example_data(),
                                               gpu_type_by_name("a100-40gb"), 1)) {
    EXPECT_TRUE(candidate.shape.may_round_inputs);
    EXPECT_EQ(candidate.shape.precision_note, "");
  }
}

TEST(Precision, bf16_is_a_remedy_only_where_it_exists) {
  model::TrainSpec spec = example_spec();
  spec.micro_batch_tokens = 512;
  const auto reason_on = [&](GpuType gpu) {
    gpu.emulated = true;
    // Too small for f32 weights of 135 million parameters, large enough for bf16 ones.
    gpu.memory_bytes = uint64_t{560} << 20;
    return candidates(example_config(), spec, example_data(), gpu, 1).back().prediction.reason;
  };
  EXPECT_NE(reason_on(gpu_type_by_name("a100-40gb")).find("precision = \"bf16\""),
            std::string::npos);
  EXPECT_EQ(reason_on(gpu_type_by_name("t4-16gb")).find("precision"), std::string::npos);
}

/// A toy whose matrices have these dtypes, in the order of the weights; config.json says another.
model::ModelConfig write_stored(const std::string& folder, const std::vector<DType>& dtypes,
                                const std::string& claimed) {
  Json json = model::testing::toy_config_json();
  json.set("torch_dtype", claimed);
  make_directories(folder);
  write_file_atomically(path_join(folder, "config.json"), json.dump());
  const model::ModelConfig config = model::read_model_config(folder);
  std::vector<std::vector<std::byte>> values;
  std::vector<model::TensorToWrite> tensors;
  size_t index = 0;
  for (const model::WeightSpec& spec : model::weight_specs(config)) {
    const DType dtype = spec.shape.size() == 2 ? dtypes[index++ % dtypes.size()] : DType::kF32;
    size_t count = dtype_bytes(dtype);
    for (const int64_t size : spec.shape) count *= static_cast<size_t>(size);
    values.emplace_back(count);
    tensors.push_back({spec.name, dtype, spec.shape, values.back().data()});
  }
  model::write_safetensors(path_join(folder, "model.safetensors"), tensors, {{"format", "pt"}});
  return config;
}

TEST(Precision, the_files_decide_what_is_stored) {
  const std::string root = galley::testing::scratch_directory("stored");
  const auto stored = [&](const std::vector<DType>& dtypes, const std::string& claimed) {
    const model::ModelConfig config = write_stored(root, dtypes, claimed);
    return stored_matrix_dtype(model::ModelWeights::open(root, config), config);
  };
  EXPECT_EQ(stored({DType::kF32}, "bfloat16"), DType::kF32);
  EXPECT_EQ(stored({DType::kBf16}, "float32"), DType::kBf16);
  EXPECT_EQ(stored({DType::kF16}, "bfloat16"), DType::kF16);
  EXPECT_EQ(stored({DType::kBf16, DType::kBf16, DType::kF32}, "bfloat16"), DType::kF32);
  EXPECT_EQ(stored({DType::kF16, DType::kBf16}, "bfloat16"), DType::kF32);
}

}  // namespace
}  // namespace galley::predictor
