#include "engine/model/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

namespace galley::model {
namespace {

using Steps = std::vector<PipelineStep>;

Steps steps_of(const PipelineShape& shape) {
  Steps steps;
  pipeline_1f1b(shape, &steps);
  return steps;
}

std::vector<int> order_of(const Steps& steps, PipelineOp op) {
  std::vector<int> order;
  for (const PipelineStep& step : steps) {
    if (step.op == op) order.push_back(step.micro_batch);
  }
  return order;
}

template <typename Check>
void for_all_shapes(const Check& check) {
  for (int stages = 1; stages <= 5; ++stages) {
    for (int micro_batches = 1; micro_batches <= 11; ++micro_batches) {
      for (int first = 0; first <= stages; ++first) {
        SCOPED_TRACE(std::to_string(stages) + " stages, " + std::to_string(micro_batches) +
                     " micro batches, trained from " + std::to_string(first));
        std::vector<Steps> lists;
        for (int stage = 0; stage < stages; ++stage) {
          lists.push_back(steps_of({stages, stage, micro_batches, first}));
        }
        check(lists, micro_batches, first);
      }
    }
  }
}

TEST(PipelineTest, every_micro_batch_runs_forward_and_then_backward_in_its_slot) {
  for_all_shapes([](const std::vector<Steps>& lists, int micro_batches, int first) {
    const int stages = static_cast<int>(lists.size());
    for (int stage = 0; stage < stages; ++stage) {
      const bool has_backward = stage >= first || stage == stages - 1;
      const int slots = pipeline_slots(stages, stage);
      std::map<int, int> holder;  // slot: micro batch whose activations it keeps
      std::set<int> done;
      for (const PipelineStep& step : lists[static_cast<size_t>(stage)]) {
        EXPECT_GE(step.slot, 0);
        EXPECT_LT(step.slot, slots);
        if (step.op == PipelineOp::kForward) {
          EXPECT_FALSE(holder.contains(step.slot));
          if (has_backward) holder[step.slot] = step.micro_batch;
        } else if (step.op == PipelineOp::kBackward) {
          ASSERT_TRUE(holder.contains(step.slot));
          EXPECT_EQ(holder[step.slot], step.micro_batch);
          holder.erase(step.slot);
          done.insert(step.micro_batch);
        }
        EXPECT_LE(static_cast<int>(holder.size()), slots);
      }
      EXPECT_EQ(static_cast<int>(done.size()), has_backward ? micro_batches : 0);
      EXPECT_EQ(static_cast<int>(
                    order_of(lists[static_cast<size_t>(stage)], PipelineOp::kForward).size()),
                micro_batches);
    }
  });
}

TEST(PipelineTest, both_ends_of_a_link_have_the_same_messages_in_the_same_order) {
  for_all_shapes([](const std::vector<Steps>& lists, int micro_batches, int first) {
    for (size_t stage = 0; stage + 1 < lists.size(); ++stage) {
      const auto sent = order_of(lists[stage], PipelineOp::kSendOutput);
      EXPECT_EQ(sent, order_of(lists[stage + 1], PipelineOp::kReceiveInput));
      EXPECT_EQ(static_cast<int>(sent.size()), micro_batches);
      const auto gradients = order_of(lists[stage + 1], PipelineOp::kSendGradient);
      EXPECT_EQ(gradients, order_of(lists[stage], PipelineOp::kReceiveGradient));
      EXPECT_EQ(static_cast<int>(gradients.size()),
                static_cast<int>(stage) >= first ? micro_batches : 0);
    }
    EXPECT_TRUE(order_of(lists.front(), PipelineOp::kReceiveInput).empty());
    EXPECT_TRUE(order_of(lists.front(), PipelineOp::kSendGradient).empty());
    EXPECT_TRUE(order_of(lists.back(), PipelineOp::kSendOutput).empty());
  });
}

/// Runs the lists with mailboxes; false when all wait.
bool finishes(const std::vector<Steps>& lists) {
  std::vector<size_t> next(lists.size(), 0);
  std::vector<std::deque<int>> inputs(lists.size()), gradients(lists.size());
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t stage = 0; stage < lists.size(); ++stage) {
      while (next[stage] < lists[stage].size()) {
        const PipelineStep& step = lists[stage][next[stage]];
        if (step.op == PipelineOp::kSendOutput) inputs[stage + 1].push_back(step.micro_batch);
        if (step.op == PipelineOp::kSendGradient) gradients[stage - 1].push_back(step.micro_batch);
        if (step.op == PipelineOp::kReceiveInput || step.op == PipelineOp::kReceiveGradient) {
          auto& box = step.op == PipelineOp::kReceiveInput ? inputs[stage] : gradients[stage];
          if (box.empty() || box.front() != step.micro_batch) break;
          box.pop_front();
        }
        ++next[stage];
        moved = true;
      }
    }
  }
  for (size_t stage = 0; stage < lists.size(); ++stage) {
    if (next[stage] < lists[stage].size()) return false;
  }
  return true;
}

TEST(PipelineTest, no_stage_waits_for_ever) {
  for_all_shapes([](const std::vector<Steps>& lists, int, int) { EXPECT_TRUE(finishes(lists)); });
}

TEST(PipelineTest, one_stage_alternates) {
  EXPECT_EQ(steps_of({1, 0, 2, 0}), (Steps{{PipelineOp::kForward, 0, 0},
                                           {PipelineOp::kBackward, 0, 0},
                                           {PipelineOp::kForward, 1, 0},
                                           {PipelineOp::kBackward, 1, 0}}));
}

TEST(PipelineTest, the_list_is_written_into_the_same_storage) {
  Steps steps;
  pipeline_1f1b({4, 0, 16, 0}, &steps);
  const PipelineStep* storage = steps.data();
  const size_t size = steps.size();
  pipeline_1f1b({4, 0, 16, 0}, &steps);
  EXPECT_EQ(steps.data(), storage);
  EXPECT_EQ(steps.size(), size);
}

TEST(PipelineTest, text_shows_the_bubble) {
  EXPECT_EQ(pipeline_text(2, 2), "F0 F1 .  B0 .  B1\n.  F0 B0 F1 B1 .\n");
}

TEST(PipelineTest, even_stages_idle_as_the_closed_form_says) {
  for (int stages = 1; stages <= 6; ++stages) {
    for (int micro_batches = 1; micro_batches <= 13; ++micro_batches) {
      const std::vector<StageTimes> times(static_cast<size_t>(stages), StageTimes{1, 2});
      const double seconds = pipeline_seconds(times, micro_batches, 0);
      EXPECT_DOUBLE_EQ(seconds, 3.0 * (micro_batches + stages - 1));
      const double idle = 1 - 3.0 * micro_batches / seconds;
      EXPECT_NEAR(idle, (stages - 1.0) / (micro_batches + stages - 1), 1e-12);
    }
  }
}

TEST(PipelineTest, the_slowest_stage_decides_and_hand_overs_add) {
  const double even = pipeline_seconds({{1, 2}, {1, 2}, {1, 2}}, 8, 0);
  const double slow = pipeline_seconds({{1, 2}, {2, 4}, {1, 2}}, 8, 0);
  // Before and behind its eight micro batches of 6 one forward and one backward of the first stage,
  // and one unit of waiting for the first gradient.
  EXPECT_DOUBLE_EQ(slow, 8 * 6 + 1 + 2 + 1);
  EXPECT_GT(pipeline_seconds({{1, 2}, {1, 2}, {1, 2}}, 8, 0.1), even);
  // A single micro batch passes every link twice.
  EXPECT_NEAR(pipeline_seconds({{1, 2}, {1, 2}, {1, 2}}, 1, 0.25), 9 + 4 * 0.25, 1e-12);
}

TEST(PipelineTest, stages_below_the_adapter_wait_for_no_gradient) {
  // Forward of stage 0 runs ahead; only stage 1 works after it.
  EXPECT_DOUBLE_EQ(pipeline_seconds({{1, 0}, {1, 2}}, 4, 0), 1 + 4 * 3);
}

}  // namespace
}  // namespace galley::model
