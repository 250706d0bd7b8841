#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/model/safetensors.h"
#include "tests/engine/nn/lora_case.h"
#include "tests/support/reference.h"

namespace galley::nn {
namespace {

using namespace galley::testing;

/// Architectures and rotary scalings that this version refuses.
const std::set<std::string>& refused_toys() {
  static const std::set<std::string> names = {
      "gemma2",          "gemma3_text",     "gemma_1",     "granite",      "llama_rope_dynamic",
      "llama_rope_yarn", "mistral_sliding", "mixtral_moe", "olmo2",        "phi3_fused",
      "qwen2_tied",      "qwen2_untied",    "qwen3_moe",   "qwen3_qknorm", "smollm3"};
  return names;
}

Json read_json(const std::string& path) {
  return parse_json_or_throw(read_file(path), path, Reason::kBadData);
}

/// Calls check for every model folder of toys that this version has; the others must be refused by
/// name. `toys` is the folder.
void for_toys(const std::string& toys, const std::string& what,
              const std::function<void(LoadedModel&, const std::string& golden)>& check) {
  CaseCount count("toys " + what);
  for (const std::string& name : list_directory(toys)) {
    const std::string folder = path_join(toys, name);
    if (!is_directory(folder)) continue;
    SCOPED_TRACE(name);
    try {
      LoadedModel loaded(folder);
      EXPECT_FALSE(refused_toys().contains(name)) << "is supported now: take it from the list";
      check(loaded, path_join(folder, "golden"));
      count.pass();
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kUnsupported) << error.what();
      EXPECT_TRUE(refused_toys().contains(name)) << error.what();
      count.refuse(name);
    }
  }
}

TEST(ToysReferenceTest, reference_logits) {
  GALLEY_NEED_REFERENCE(toys, "toys");
  for_toys(toys, "logits", [](LoadedModel& loaded, const std::string& golden) {
    const Json inputs = read_json(path_join(golden, "inputs.json"));
    const auto file = model::SafetensorsFile::open(path_join(golden, "logits.safetensors"));
    for (const model::StoredTensor& tensor : file.tensors()) {
      SCOPED_TRACE(tensor.name);
      const std::string input = tensor.name.substr(0, tensor.name.find('_'));
      const auto ids = ids_of(inputs.at(input));
      EXPECT_LT(largest_difference(logits_of(loaded, ids), tensor.to_f32()), 1e-4);
      // The same in chunks of five tokens.
      EXPECT_LT(largest_difference(logits_of(loaded, ids, nullptr, -1, 5), tensor.to_f32()), 1e-4);
    }
  });
}

struct Shown {
  std::vector<std::pair<std::string, std::vector<float>>> tensors;
};
void remember(void* user, const char* name, const float* data, int64_t rows, int64_t cols) {
  static_cast<Shown*>(user)->tensors.emplace_back(name,
                                                  std::vector<float>(data, data + rows * cols));
}

TEST(ToysReferenceTest, reference_hidden_states) {
  GALLEY_NEED_REFERENCE(toys, "toys");
  for_toys(toys, "hidden", [](LoadedModel& loaded, const std::string& golden) {
    const auto ids = ids_of(read_json(path_join(golden, "inputs.json")).at("len17"));
    const auto network = InferenceNetwork::create(
        *loaded.rig.device, *loaded.rig.stream, loaded.rig.ops, loaded.config, *loaded.weights,
        {.max_tokens = 17, .num_slots = 1, .max_positions = 17, .max_logit_rows = 1}, {});
    Shown shown;
    network->set_probe(remember, &shown);
    StepPlan step;
    step.ids = ids;
    step.segments.push_back({.kind = SegmentKind::kPrefill, .num_tokens = 17, .adapter = -1});
    network->run(step, nullptr);
    const auto file = model::SafetensorsFile::open(path_join(golden, "hidden.safetensors"));
    EXPECT_EQ(shown.tensors.size(), file.tensors().size());
    for (const auto& [name, values] : shown.tensors) {
      const model::StoredTensor* tensor = file.find(name);
      ASSERT_NE(tensor, nullptr) << name;
      const auto expected = tensor->to_f32();
      ASSERT_EQ(values.size(), expected.size());
      const size_t cols = expected.size() / 17;
      for (size_t row = 0; row < 17; ++row) {
        double error = 0, norm = 0;
        for (size_t i = row * cols; i < (row + 1) * cols; ++i) {
          error += std::pow(static_cast<double>(values[i]) - expected[i], 2);
          norm += std::pow(static_cast<double>(expected[i]), 2);
        }
        EXPECT_LT(std::sqrt(error), 1e-4 * std::sqrt(norm)) << name << " row " << row;
      }
    }
  });
}

TEST(ToysReferenceTest, reference_greedy) {
  GALLEY_NEED_REFERENCE(toys, "toys");
  for_toys(toys, "greedy", [](LoadedModel& loaded, const std::string& golden) {
    const Json greedy = read_json(path_join(golden, "greedy.json"));
    const auto prompt =
        ids_of(read_json(path_join(golden, "inputs.json")).at(greedy.at("prompt").as_string()));
    const auto expected = ids_of(greedy.at("tokens"));
    const auto length = static_cast<int64_t>(prompt.size());
    const auto network = InferenceNetwork::create(
        *loaded.rig.device, *loaded.rig.stream, loaded.rig.ops, loaded.config, *loaded.weights,
        {.max_tokens = length,
         .num_slots = 2,
         .max_positions = length + static_cast<int64_t>(expected.size()),
         .max_logit_rows = 1},
        {});
    std::vector<float> logits(static_cast<size_t>(loaded.config.vocab_size));
    StepPlan step;
    step.ids = prompt;
    step.segments.push_back(
        {.kind = SegmentKind::kPrefill, .num_tokens = length, .sequence_slot = 1, .adapter = -1});
    std::vector<int32_t> tokens;
    while (tokens.size() < expected.size()) {
      step.target_rows = {static_cast<int32_t>(step.ids.size()) - 1};
      network->run(step, logits.data());
      tokens.push_back(
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      const int64_t position = length + static_cast<int64_t>(tokens.size()) - 1;
      step.ids = {tokens.back()};
      step.segments[0] = {.kind = SegmentKind::kDecode,
                          .num_tokens = 1,
                          .position = position,
                          .sequence_slot = 1,
                          .adapter = -1};
    }
    EXPECT_EQ(tokens, expected);
  });
}

/// Step-1 gradients, losses of all steps, the loss after the last.
void check_lora_case(LoadedModel& loaded, const std::string& folder, const LoraCase& lora,
                     const model::Adapter& adapter) {
  const LoraRun run = run_case(loaded, lora, adapter);
  const auto grads = model::SafetensorsFile::open(path_join(folder, "grads.safetensors"));
  const auto tensors = model::trainable_tensors(adapter.linears);
  EXPECT_EQ(tensors.size(), grads.tensors().size());
  for (const model::TrainableTensor& tensor : tensors) {
    const model::StoredTensor* expected = grads.find(tensor.name);
    ASSERT_NE(expected, nullptr) << tensor.name;
    const auto values = expected->to_f32();
    ASSERT_EQ(values.size(), tensor.num_elements());
    EXPECT_LT(
        relative_error(run.first_gradients.data() + tensor.offset, values.data(), values.size()),
        5e-5)
        << tensor.name;
  }
  const Json curve = read_json(path_join(folder, "curve.json"));
  auto losses = curve.at("loss_before_step").as_array();
  if (lora.order.size() < losses.size()) losses.resize(lora.order.size());  // LoRA+: see below
  ASSERT_EQ(losses.size(), run.steps.size());
  EXPECT_NEAR(run.steps[0].loss, losses[0].as_double(), 1e-5);
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(run.steps[i].loss, losses[i].as_double(), 1e-3) << "step " << i + 1;
  }
  const Json* after = curve.find("loss_after_last_step");
  if (after != nullptr && lora.order.size() == static_cast<size_t>(lora.total_steps)) {
    EXPECT_NEAR(run.loss_after, after->as_double(), 1e-3);
  }
}

TEST(ToysReferenceTest, reference_lora_gradients_and_curve) {
  GALLEY_NEED_REFERENCE(toys, "toys");
  for_toys(toys, "lora", [](LoadedModel& loaded, const std::string& golden) {
    const std::string folder = path_join(golden, "lora");
    check_lora_case(loaded, folder, read_toy_case(folder),
                    model::read_adapter(path_join(folder, "adapter_init"), loaded.config));
  });
}

TEST(ToysReferenceTest, reference_lora_logits) {
  GALLEY_NEED_REFERENCE(toys, "toys");
  for_toys(toys, "lora logits", [](LoadedModel& loaded, const std::string& golden) {
    const std::string folder = path_join(golden, "lora");
    const auto ids = ids_of(read_json(path_join(golden, "inputs.json")).at("len17"));
    const auto file = model::SafetensorsFile::open(path_join(folder, "logits.safetensors"));
    for (const char* which : {"init", "final"}) {
      const auto adapter =
          model::read_adapter(path_join(folder, std::string("adapter_") + which), loaded.config);
      const auto* expected = file.find(std::string("len17_") + which + "_f64");
      ASSERT_NE(expected, nullptr);
      EXPECT_LT(largest_difference(logits_of(loaded, ids, &adapter), expected->to_f32()), 1e-4)
          << which;
    }
  });
}

/// Folders of peft that train something this version does not: other methods, other parts of the
/// model.
const std::set<std::string>& refused_peft() {
  static const std::set<std::string> names = {
      "bias_lora_only",       "dora",          "full_llama_tied",
      "full_qwen2_tied",      "ia3",           "lora_embedding_head",
      "modules_to_save",      "olora",         "pissa",
      "prefix_tuning",        "prompt_tuning", "trainable_tokens",
      "trainable_tokens_tied"};
  return names;
}

/// Gradients, curve and logits of one folder of peft, whose base is a toy.
void check_peft_folder(const std::string& reference, const std::string& folder) {
  const Json config = read_json(path_join(folder, "config.json"));
  const std::string base = path_join(reference, config.at("base_model").as_string());
  LoadedModel loaded(base);
  const auto adapter = model::read_adapter(path_join(folder, "adapter_init"), loaded.config);
  LoraCase lora = read_toy_case(folder);
  // LoRA+ has two learning rates: its first step's gradients and loss are ours, its curve is not.
  if (config.at("optimizer").contains("lr_B")) lora.order.resize(1);
  check_lora_case(loaded, folder, lora, adapter);
  const auto file = model::SafetensorsFile::open(path_join(folder, "logits.safetensors"));
  const auto* expected = file.find("len17_init_f64");
  ASSERT_NE(expected, nullptr);
  const auto ids = ids_of(read_json(path_join(base, "golden/inputs.json")).at("len17"));
  EXPECT_LT(largest_difference(logits_of(loaded, ids, &adapter), expected->to_f32()), 1e-4);
}

TEST(ToysReferenceTest, reference_peft_folders) {
  GALLEY_NEED_REFERENCE(peft, "peft");
  const std::string reference = path_directory(peft);
  CaseCount count("peft lora");
  for (const std::string& name : list_directory(peft)) {
    const std::string folder = path_join(peft, name);
    if (!path_exists(path_join(folder, "batches.json"))) continue;  // other kinds of goldens
    SCOPED_TRACE(name);
    if (!is_directory(path_join(folder, "adapter_init"))) {  // full fine-tuning: no adapter at all
      EXPECT_TRUE(refused_peft().contains(name));
      count.refuse(name);
      continue;
    }
    try {
      check_peft_folder(reference, folder);
      EXPECT_FALSE(refused_peft().contains(name)) << "is supported now: take it from the list";
      count.pass();
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kUnsupported) << error.what();
      EXPECT_TRUE(refused_peft().contains(name)) << error.what();
      count.refuse(name);
    }
  }
}

TEST(ToysReferenceTest, reference_packed_rows) {
  GALLEY_NEED_REFERENCE(packing, "peft/packing");
  GALLEY_NEED_REFERENCE(folder, "toys/llama_untied");
  LoadedModel loaded(folder);
  const Json inputs = read_json(path_join(packing, "inputs.json"));
  const auto network = InferenceNetwork::create(
      *loaded.rig.device, *loaded.rig.stream, loaded.rig.ops, loaded.config, *loaded.weights,
      {.max_tokens = 128, .num_slots = 4, .max_positions = 64, .max_logit_rows = 8}, {});
  StepPlan step;
  for (const Json& row : inputs.at("rows").as_array()) {
    const auto ids = ids_of(row);
    step.segments.push_back({.kind = SegmentKind::kPrefill,
                             .row = static_cast<int64_t>(step.ids.size()),
                             .num_tokens = static_cast<int64_t>(ids.size()),
                             .sequence_slot = static_cast<int64_t>(step.segments.size()),
                             .adapter = -1});
    step.ids.insert(step.ids.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(step.ids, ids_of(inputs.at("input_ids")));
  for (size_t i = 0; i < step.ids.size(); ++i) step.target_rows.push_back(static_cast<int32_t>(i));
  std::vector<float> logits(step.ids.size() * static_cast<size_t>(loaded.config.vocab_size));
  network->run(step, logits.data());
  const auto file = model::SafetensorsFile::open(path_join(packing, "logits.safetensors"));
  CaseCount count("packing");
  for (const model::StoredTensor& tensor : file.tensors()) {
    EXPECT_LT(largest_difference(logits, tensor.to_f32()), 1e-4) << tensor.name;
    count.pass();
  }
}

}  // namespace
}  // namespace galley::nn
