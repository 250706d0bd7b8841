// Fine-tuning runs of the reference folders: batches in, gradients, losses and logits out. The loop
// (normalisation, clipping, schedules) is written here by the formulas of the folders' READMEs.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/json.h"
#include "engine/model/adapter_file.h"
#include "tests/engine/nn/small_model.h"

namespace galley::testing {

struct LoadOptions {
  int threads = 1;
  device::KernelSet kernels = device::KernelSet::kAuto;
  std::optional<DType> dtype;  // of the packed weights; none: as the model is stored
};

/// A model folder loaded on a device.
struct LoadedModel {
  explicit LoadedModel(const std::string& folder, const LoadOptions& options = {});
  /// Products may round their left operand to bf16.
  bool rounds() const;
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
  double loss_after = 0;  // of the first batch in the order, after the last step of a whole run
};
LoraRun run_case(LoadedModel& loaded, const LoraCase& lora, const model::Adapter& adapter,
                 const std::function<void(model::MemorySettings*)>& change = {});

/// Largest and mean absolute difference of two equally long lists; infinite when one has a NaN.
struct Difference {
  double largest = 0, mean = 0;
};
Difference difference(const std::vector<float>& a, const std::vector<float>& b);
double largest_difference(const std::vector<float>& a, const std::vector<float>& b);
/// Norm of a - b / norm of b.
template <typename A, typename B>
double norm_error(const A* a, const B* b, size_t count) {
  double error = 0, size = 0;
  for (size_t i = 0; i < count; ++i) {
    const double gap = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    error += gap * gap;
    size += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return size > 0 ? std::sqrt(error / size) : std::sqrt(error);
}

}  // namespace galley::testing
