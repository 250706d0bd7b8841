// Fine-tuning of every toy of the reference on groups in all kinds of layouts: step-1 gradients and
// the loss of every step, against values that PyTorch made.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "engine/model/safetensors.h"
#include "tests/engine/nn/group_rig.h"
#include "tests/engine/nn/lora_case.h"
#include "tests/support/reference.h"

namespace galley::nn {
namespace {

using namespace galley::testing;

// As the README of the toys suggests.
constexpr double kGradients = 5e-5;  // of a tensor, relative to its largest entry
constexpr double kFirstLoss = 1e-5;
constexpr double kCurve = 1e-3;

model::ParallelLayout layout(int tp, int pp, int dp, std::vector<int> stage_layers = {},
                             model::SequenceParallel sequence = model::SequenceParallel::kNo) {
  model::ParallelLayout layout;
  layout.tp_size = tp;
  layout.pp_size = pp;
  layout.dp_size = dp;
  layout.stage_layers = std::move(stage_layers);
  layout.sequence_parallel = sequence;
  return layout;
}

/// Of those the ones that a model can be divided into.
std::vector<model::ParallelLayout> layouts_for(const model::ModelConfig& config) {
  const int layers = static_cast<int>(config.num_layers);
  const std::vector<model::ParallelLayout> all = {
      layout(2, 1, 1), layout(3, 1, 1),
      layout(4, 1, 1), layout(4, 1, 1, {}, model::SequenceParallel::kYes),
      layout(1, 2, 1), layout(1, 2, 1, {layers - 1, 1}),
      layout(1, 3, 1), layout(1, 1, 2),
      layout(1, 1, 3),  // one replica gets nothing
      layout(2, 2, 2)};
  std::vector<model::ParallelLayout> possible;
  for (const model::ParallelLayout& one : all) {
    try {
      model::require_layout(config, one);
      possible.push_back(one);
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kBadConfig) << error.what();
    }
  }
  return possible;
}

struct GroupCurve {
  std::vector<float> first_gradients;  // of the whole adapter
  std::vector<double> losses;
};

/// All steps of a case, as a group.
GroupCurve run_case_on(const GroupSettings& settings, const LoraCase& lora,
                       const std::vector<float>& values) {
  GroupCurve curve;
  curve.first_gradients.resize(values.size());
  std::mutex mutex;
  run_group(settings, [&](GroupWorker& worker) {
    nn::TrainNetwork& network = worker.network();
    const auto count = static_cast<int64_t>(network.num_trainable());
    worker.set_parameters(values);
    for (size_t s = 0; s < lora.order.size(); ++s) {
      const GlobalBatch& batch = lora.batches[lora.order[s]];
      const auto targets = static_cast<double>(num_targets(batch));
      std::vector<StepPlan> micro_batches;
      for (const MicroBatch& micro : batch) micro_batches.push_back(step_of(micro));
      network.zero_gradients();
      double loss = worker.run(worker.share_of(micro_batches), 1 / targets);
      network.reduce_gradients();
      if (worker.position().tp_rank > 0) loss = 0;  // each of them has it
      worker.group().all_reduce_host({&loss, 1});
      const device::AdamWStep step{.learning_rate = lora.learning_rate,
                                   .beta1 = lora.beta1,
                                   .beta2 = lora.beta2,
                                   .epsilon = lora.epsilon,
                                   .weight_decay = lora.weight_decay,
                                   .step = static_cast<int64_t>(s) + 1};
      {
        const std::lock_guard lock(mutex);
        if (s == 0) {
          model::put_shard(network.shards(), {network.gradients(), static_cast<size_t>(count)},
                           curve.first_gradients);
        }
        if (worker.rank() == 0) curve.losses.push_back(loss / targets);
      }
      if (count == 0) continue;
      worker.optimizer().adamw(network.parameters(), network.gradients(), network.first_moments(),
                               network.second_moments(), count, step);
    }
  });
  return curve;
}

void check_toy(const std::string& folder) {
  LoadedModel loaded(folder);
  const std::string golden = path_join(folder, "golden/lora");
  const LoraCase lora = read_toy_case(golden);
  ASSERT_TRUE(lora.schedule == "constant" && lora.clip_norm == 0);
  const auto adapter = model::read_adapter(path_join(golden, "adapter_init"), loaded.config);
  GroupSettings settings;
  settings.config = loaded.config;
  settings.weights = [&](const model::WeightId& id) { return loaded.stored.get(id); };
  settings.weight_dtype = loaded.weights->dtype();
  settings.memory.linears = adapter.linears;
  settings.memory.weight_dtype = settings.weight_dtype;
  for (const GlobalBatch& batch : lora.batches) {
    for (const MicroBatch& micro : batch) {
      const StepPlan step = step_of(micro);
      const auto tokens = static_cast<int64_t>(step.ids.size());
      model::MemorySettings& memory = settings.memory;
      memory.micro_batch_tokens = std::max(memory.micro_batch_tokens, tokens);
      memory.micro_batch_rows =
          std::max(memory.micro_batch_rows, static_cast<int64_t>(step.segments.size()));
      memory.max_position = std::max(memory.max_position, tokens);
    }
  }
  const auto gradients = model::SafetensorsFile::open(path_join(golden, "grads.safetensors"));
  const Json curve_file = parse_json_or_throw(read_file(path_join(golden, "curve.json")),
                                              path_join(golden, "curve.json"), Reason::kBadData);
  const auto& losses = curve_file.at("loss_before_step").as_array();
  for (const model::ParallelLayout& shape : layouts_for(loaded.config)) {
    SCOPED_TRACE(model::to_text(shape));
    settings.layout = shape;
    const GroupCurve curve = run_case_on(settings, lora, adapter.values);
    for (const model::TrainableTensor& tensor : model::trainable_tensors(adapter.linears)) {
      const model::StoredTensor* expected = gradients.find(tensor.name);
      ASSERT_NE(expected, nullptr) << tensor.name;
      const std::vector<float> values = expected->to_f32();
      EXPECT_LT(relative_error(curve.first_gradients.data() + tensor.offset, values.data(),
                               values.size()),
                kGradients)
          << tensor.name;
    }
    ASSERT_EQ(curve.losses.size(), losses.size());
    EXPECT_NEAR(curve.losses[0], losses[0].as_double(), kFirstLoss);
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(curve.losses[i], losses[i].as_double(), kCurve) << "step " << i + 1;
    }
  }
}

TEST(ParallelToys, reference_gradients_and_curves_in_every_layout) {
  GALLEY_NEED_REFERENCE(toys, "toys");
  CaseCount count("toys in groups");
  for (const std::string& name : list_directory(toys)) {
    const std::string folder = path_join(toys, name);
    if (!is_directory(folder)) continue;
    SCOPED_TRACE(name);
    try {
      check_toy(folder);
      count.pass();
    } catch (const Error& error) {
      // Which of them this version lacks: toys_reference_test.cc.
      EXPECT_EQ(error.reason(), Reason::kUnsupported) << error.what();
      count.refuse(name);
    }
  }
}

}  // namespace
}  // namespace galley::nn
