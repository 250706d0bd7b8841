// A step allocates nothing: operator new is counted for this whole test program.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/nn/network.h"
#include "tests/engine/nn/small_model.h"
#include "tests/support/counted_new.h"

namespace galley::nn {
namespace {

using namespace galley::testing;

TEST(AllocationTest, a_training_step_allocates_nothing) {
  for (const bool recompute : {false, true}) {
    Rig rig(2);
    const model::ModelConfig config = small_config({});
    const SmallWeights values(config, 7);
    const auto weights = rig.load(config, values);
    const auto linears = adapt(config, {}, {});
    const StepPlan step = train_step(random_batch({30, 17, 41}, config.vocab_size, 3));
    model::MemorySettings settings = settings_for(linears, step);
    settings.recompute_blocks = recompute;
    settings.dropout = true;
    const auto network =
        TrainNetwork::create(*rig.device, *rig.stream, rig.ops, config, *weights, settings, 0.1, 1);
    const auto parameters = random_parameters(linears, 11);
    std::copy(parameters.begin(), parameters.end(), network->parameters());
    const auto run = [&] {
      network->zero_gradients();
      network->forward_backward(step, 1);
      device::AdamWStep adamw;
      rig.ops.optimizer->adamw(network->parameters(), network->gradients(),
                               network->first_moments(), network->second_moments(),
                               static_cast<int64_t>(network->num_trainable()), adamw);
    };
    run();
    const long before = num_allocations.load();
    for (int i = 0; i < 3; ++i) run();
    EXPECT_EQ(num_allocations.load() - before, 0);
  }
}

TEST(AllocationTest, a_decode_step_allocates_nothing) {
  Rig rig(2);
  const model::ModelConfig config = small_config({});
  const SmallWeights values(config, 7);
  const auto weights = rig.load(config, values);
  const auto network =
      InferenceNetwork::create(*rig.device, *rig.stream, rig.ops, config, *weights,
                               {.max_tokens = 4, .num_slots = 1, .max_positions = 20}, {});
  std::vector<float> logits(static_cast<size_t>(config.vocab_size));
  StepPlan step;
  step.ids = {3};
  step.target_rows = {0};
  step.segments.push_back({.kind = SegmentKind::kDecode, .num_tokens = 1, .adapter = -1});
  network->run(step, logits.data());
  const long before = num_allocations.load();
  for (int64_t position = 1; position < 10; ++position) {
    step.segments[0].position = position;
    network->run(step, logits.data());
  }
  EXPECT_EQ(num_allocations.load() - before, 0);
}

}  // namespace
}  // namespace galley::nn
