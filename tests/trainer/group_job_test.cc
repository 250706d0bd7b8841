// A job on a group: threads as workers. Every shape has the curve of one worker, and any shape
// continues any other.
#include "tests/trainer/group_job.h"

#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/model/adapter_file.h"
#include "trainer/batch_split.h"
#include "trainer/checkpoint.h"

namespace galley::trainer {
namespace {

using testing::adapter_values;
using testing::Curve;
using testing::curve_of;
using testing::expect_same_curve;
using testing::FakeEvents;
using testing::gap;
using testing::GroupRun;
using testing::layout_of;
using testing::make_toy_job;
using testing::run_on;
using testing::ToyJob;

struct GroupCase {
  std::string name;
  std::function<void(TrainAssignment*)> change = [](TrainAssignment*) {};
};

class GroupJob : public ::testing::TestWithParam<size_t> {
 public:
  static std::vector<GroupCase> cases() {
    return {{"dropout, accumulation, clipping"},
            {"recompute", [](TrainAssignment* a) { a->recompute_blocks = true; }},
            {"one linear, rows of their own", [](TrainAssignment* a) {
               a->spec.lora.targets = {"o_proj", "v_proj"};
               a->spec.lora.layers = {1};
               a->micro_batch_tokens = 26;
             }}};
  }
};

TEST_P(GroupJob, every_shape_has_the_curve_and_the_adapter_of_one_worker) {
  const GroupCase c = cases()[GetParam()];
  SCOPED_TRACE(c.name);
  ToyJob alone = make_toy_job(cat("group_alone_", GetParam()));
  c.change(&alone.assignment);
  ASSERT_EQ(run_on(alone, {}).failure, nullptr);
  const Curve curve = curve_of(alone);
  ASSERT_EQ(curve.losses.size(), 20u);
  int number = 0;
  for (const auto& shape : {layout_of(2, 1, 1), layout_of(1, 2, 1), layout_of(1, 1, 2),
                            layout_of(1, 1, 3), layout_of(2, 2, 2), layout_of(4, 1, 1)}) {
    SCOPED_TRACE(model::to_text(shape));
    ToyJob job = make_toy_job(cat("group_", GetParam(), "_", number++));
    c.change(&job.assignment);
    if (shape.dp_size == 3) job.assignment.replica_shares = {0.6, 0.3, 0.1};
    const GroupRun run = run_on(job, shape);
    ASSERT_EQ(run.failure, nullptr);
    expect_same_curve(curve_of(job), curve);
    EXPECT_LE(gap(job, adapter_values(job), adapter_values(alone)), 1e-3);
    for (const JobResult& result : run.results) {
      EXPECT_EQ(result.outcome, JobResult::Outcome::kFinished);
      EXPECT_EQ(result.last.step, 20);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GroupJob, ::testing::Range<size_t>(0, GroupJob::cases().size()));

TEST(GroupJobResume, pain_P055_any_shape_continues_any_other_within_one_epoch) {
  ToyJob alone = make_toy_job("elastic_alone");
  ASSERT_EQ(run_on(alone, {}).failure, nullptr);
  ToyJob job = make_toy_job("elastic");
  struct Part {
    model::ParallelLayout shape;
    int64_t stop_at;
  };
  const std::vector<Part> parts = {{layout_of(2, 1, 1), 1},  {layout_of(1, 2, 1), 3},
                                   {layout_of(1, 1, 1), 5},  {layout_of(1, 1, 3), 6},
                                   {layout_of(2, 2, 1), 12}, {layout_of(4, 1, 1), -1}};
  int64_t done = 0;
  for (const Part& part : parts) {
    SCOPED_TRACE(model::to_text(part.shape));
    const GroupRun run = run_on(job, part.shape, part.stop_at);
    ASSERT_EQ(run.failure, nullptr);
    EXPECT_EQ(run.leader.started_at, done);
    if (done > 0) {
      EXPECT_NE(run.leader.note.find("layout"), std::string::npos) << run.leader.note;
    }
    for (const JobResult& result : run.results) {
      EXPECT_EQ(result.last.step, run.results[0].last.step) << "all stop at the same step";
    }
    done = run.results[0].last.step;
    EXPECT_TRUE(part.stop_at < 0 ? done == 20
                                 : done > part.stop_at - 1 && done <= part.stop_at + 1);
  }
  expect_same_curve(curve_of(job), curve_of(alone));
  EXPECT_LE(gap(job, adapter_values(job), adapter_values(alone)), 1e-3);
}

TEST(GroupJobFaults, a_worker_that_fails_ends_all_and_leaves_the_checkpoint) {
  ToyJob job = make_toy_job("group_fault");
  ASSERT_EQ(run_on(job, layout_of(2, 2, 1), 3).failure, nullptr);
  const GroupRun run =
      run_on(job, layout_of(2, 2, 1), -1, [](int rank, TrainAssignment*, FakeEvents* events) {
        if (rank != 3) return;
        events->on_alive = [](const std::string& what) {
          if (what.rfind("step 7", 0) == 0) throw Error(Reason::kDeviceError, "on purpose");
        };
      });
  ASSERT_NE(run.failure, nullptr);
  EXPECT_EQ(newest_checkpoint_step(job.assignment.job_directory), 4);
  const GroupRun again = run_on(job, layout_of(1, 2, 1));
  ASSERT_EQ(again.failure, nullptr);
  EXPECT_EQ(again.leader.started_at, 4);
  ToyJob alone = make_toy_job("group_fault_alone");
  ASSERT_EQ(run_on(alone, {}).failure, nullptr);
  expect_same_curve(curve_of(job), curve_of(alone));
}

TEST(GroupJobFaults, a_loss_that_is_not_finite_ends_all_with_the_same_reason) {
  ToyJob job = make_toy_job("group_numerics");
  job.assignment.spec.learning_rate = 1e30;
  job.assignment.spec.clip_norm = 0;
  const GroupRun run = run_on(job, layout_of(2, 1, 2));
  ASSERT_NE(run.failure, nullptr);
  try {
    std::rethrow_exception(run.failure);
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kNumerics) << error.what();
  }
}

TEST(GroupJobFaults, the_same_command_finds_the_finished_job) {
  ToyJob job = make_toy_job("group_again");
  ASSERT_EQ(run_on(job, layout_of(1, 2, 1)).failure, nullptr);
  const std::string adapter = job.adapter_text();
  const GroupRun again = run_on(job, layout_of(2, 1, 2));
  ASSERT_EQ(again.failure, nullptr);
  EXPECT_EQ(again.leader.note, "already finished");
  EXPECT_EQ(job.adapter_text(), adapter);
}

TEST(GroupJobExport, pain_P062_tied_and_untied_models_export_the_same_way) {
  for (const bool tied : {true, false}) {
    SCOPED_TRACE(tied ? "tied" : "untied");
    ToyJob job = make_toy_job(cat("export_", tied));
    const std::string& folder = job.assignment.spec.model;
    model::testing::write_toy_folder(
        folder, model::testing::toy_config_json().set("tie_word_embeddings", tied));
    ASSERT_EQ(run_on(job, layout_of(2, 1, 1), 5).failure, nullptr);
    const std::string path = checkpoint_path(job.assignment.job_directory,
                                             newest_checkpoint_step(job.assignment.job_directory));
    const std::string out = job.root + "/peft";
    export_checkpoint(path, out);
    const auto exported = model::read_adapter(out, model::read_model_config(folder));
    EXPECT_EQ(exported.values, read_checkpoint(path).values);
    EXPECT_EQ(exported.linears.size(), read_checkpoint_record(path).linears.size());
  }
}

TEST(GroupJobShares, pain_P064_unequal_shares_of_a_batch_keep_the_token_mean) {
  std::vector<uint32_t> rows, lengths;
  for (uint32_t i = 0; i < 40; ++i) {
    rows.push_back(100 + i);
    lengths.push_back(1 + i * i % 37);
  }
  BatchSplit split(3, {3, 1, 2}, 40);
  std::vector<int> seen(40, 0);
  std::vector<double> tokens;
  for (int replica = 0; replica < 3; ++replica) {
    tokens.push_back(0);
    uint32_t last = 0;
    for (const BatchRow& row : split.take(rows, lengths, replica)) {
      EXPECT_EQ(row.row, rows[row.place]);
      EXPECT_TRUE(tokens.back() == 0 || row.place > last) << "in order";
      last = row.place;
      ++seen[row.place];
      tokens.back() += lengths[row.place];
    }
  }
  for (const int count : seen) EXPECT_EQ(count, 1);
  EXPECT_NEAR(tokens[0] / tokens[1], 3, 0.2);
  EXPECT_NEAR(tokens[2] / tokens[1], 2, 0.15);
}

}  // namespace
}  // namespace galley::trainer
