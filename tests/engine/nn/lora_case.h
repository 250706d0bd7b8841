// Fine-tuning runs of the reference folders: batches in, gradients, losses and logits out. The loop
// (normalisation, clipping, schedules) is written here by the formulas of the folders' READMEs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/json.h"
#include "engine/model/adapter_file.h"
#include "tests/engine/nn/small_model.h"

namespace galley::testing {

/// A model folder loaded on a device.
struct LoadedModel {
  LoadedModel(const std::string& folder, int threads, DType dtype);
  explicit LoadedModel(const std::string& folder, int threads = 1);
  model::ModelConfig config;
  model::ModelWeights stored;
  Rig rig;
  std::unique_ptr<nn::BaseWeights> weights;
};

/// Logits of all positions of `ids`, or of the last `last` ones, run in chunks of `chunk` tokens.
std::vector<float> logits_of(LoadedModel& loaded, const std::vector<int32_t>& ids,
                             const model::Adapter* adapter = nullptr, int64_t last = -1,
                             int64_t chunk = -1);

std::vector<int32_t> ids_of(const Json& list);

struct LabelledRow {
  std::vector<int32_t> ids, labels;  // labels aligned with ids, -100 = no target
};
using MicroBatch = std::vector<LabelledRow>;
using GlobalBatch = std::vector<MicroBatch>;
nn::StepPlan step_of(const MicroBatch& rows);
int64_t num_targets(const GlobalBatch& batch);

struct LoraCase {
  std::vector<GlobalBatch> batches;
  std::vector<size_t> order;  // batch of each step
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  std::string schedule = "constant";
  int64_t warmup_steps = 0, total_steps = 0;
  double clip_norm = 0;  // 0: none
};
/// toys/NAME/golden/lora and the folders of peft.
LoraCase read_toy_case(const std::string& folder);
/// smollm2/lora/CASE.
LoraCase read_smollm2_case(const std::string& folder);

struct LoraStep {
  double loss = 0, grad_norm = 0;
};
struct LoraRun {
  std::vector<LoraStep> steps;
  std::vector<float> first_gradients, final_values;
  double loss_after = 0;  // of the first batch in the order, after the last step
};
LoraRun run_case(LoadedModel& loaded, const LoraCase& lora, const model::Adapter& adapter,
                 const std::function<void(model::MemorySettings*)>& change = {});

/// Largest absolute difference of two equally long lists.
double largest_difference(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace galley::testing
