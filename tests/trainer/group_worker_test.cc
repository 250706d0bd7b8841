// What a group's workers must keep: bytes as planned, equal bits of what several hold, no worker
// left behind; and shapes that are odd: more replicas than rows, rows without targets, rings
// shorter than a message.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/core/error.h"
#include "engine/model/memory_plan.h"
#include "tests/trainer/group_job.h"
#include "trainer/batch_split.h"
#include "trainer/throttle.h"

namespace galley::trainer {
namespace {

using testing::adapter_values;
using testing::curve_of;
using testing::expect_same_curve;
using testing::FakeEvents;
using testing::gap;
using testing::GroupBench;
using testing::GroupBenchSettings;
using testing::GroupRun;
using testing::layout_of;
using testing::make_toy_job;
using testing::run_on;
using testing::ToyJob;

Reason reason_of(const std::exception_ptr& failure) {
  if (failure == nullptr) return Reason::kOk;
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.reason();
  }
}

/// A toy with more layers than its like.
ToyJob make_deep_job(const std::string& name) {
  ToyJob job = make_toy_job(name);
  model::testing::write_toy_folder(job.assignment.spec.model, model::testing::toy_config_json().set(
                                                                  "num_hidden_layers", int64_t{5}));
  job.assignment.spec.max_steps = 8;
  return job;
}

/// Runs a job alone and in each layout; curves and adapters must be the same.
void expect_like_alone(const std::function<ToyJob(const std::string&)>& make,
                       const std::vector<model::ParallelLayout>& layouts, size_t ring_bytes) {
  const ToyJob alone = make("worker_alone");
  ASSERT_EQ(run_on(alone, {}).failure, nullptr);
  for (const model::ParallelLayout& layout : layouts) {
    SCOPED_TRACE(model::to_text(layout));
    const ToyJob job = make("worker_group");
    ASSERT_EQ(run_on(job, layout, -1, {}, ring_bytes).failure, nullptr);
    expect_same_curve(curve_of(job), curve_of(alone));
    EXPECT_LE(gap(job, adapter_values(job), adapter_values(alone)), 1e-3);
  }
}

TEST(GroupWorker, stages_of_any_sizes_over_rings_shorter_than_a_message) {
  model::ParallelLayout uneven = layout_of(2, 3, 1);
  uneven.stage_layers = {1, 3, 1};
  uneven.sequence_parallel = model::SequenceParallel::kYes;
  expect_like_alone(make_deep_job,
                    {layout_of(1, 3, 1), layout_of(1, 5, 1), layout_of(1, 2, 2), uneven}, 4096);
}

TEST(GroupWorker, stages_below_and_above_the_adapted_layers) {
  for (const int layer : {0, 2, 4}) {
    SCOPED_TRACE(layer);
    expect_like_alone(
        [&](const std::string& name) {
          ToyJob job = make_deep_job(name);
          job.assignment.spec.lora.layers = {layer};
          return job;
        },
        {layout_of(1, 3, 1), layout_of(2, 5, 1)}, 4096);
  }
}

TEST(GroupWorker, more_replicas_than_rows) {
  expect_like_alone(
      [](const std::string& name) {
        ToyJob job = make_toy_job(name);
        job.assignment.spec.global_batch = 2;
        return job;
      },
      {layout_of(1, 1, 3), layout_of(1, 2, 3), layout_of(2, 1, 3)}, 1 << 16);
}

TEST(GroupWorker, rows_without_targets) {
  expect_like_alone(
      [](const std::string& name) {
        ToyJob job = make_toy_job(name);
        for (size_t i = 0; i < job.sets[0].size(); i += 2) {
          std::fill(job.sets[0][i].mask.begin(), job.sets[0][i].mask.end(), uint8_t{0});
        }
        job.write_tokens();
        job.assignment.micro_batch_tokens = 26;  // some micro batches have none
        return job;
      },
      {layout_of(2, 1, 1), layout_of(1, 2, 1), layout_of(1, 1, 2), layout_of(2, 2, 2)}, 1 << 16);
}

TEST(GroupWorker, a_slowed_worker_computes_the_same_bits) {
  const ToyJob plain = make_toy_job("not_slowed");
  ASSERT_EQ(run_on(plain, layout_of(1, 2, 2)).failure, nullptr);
  const ToyJob slowed = make_toy_job("slowed");
  const auto slow_down = [](int rank, TrainAssignment* assignment, FakeEvents*) {
    assignment->slowdown = rank == 2 ? 3 : 1;
  };
  ASSERT_EQ(run_on(slowed, layout_of(1, 2, 2), -1, slow_down, 4096).failure, nullptr);
  EXPECT_EQ(slowed.adapter_text(), plain.adapter_text());
}

TEST(GroupWorker, throttle_sleeps_for_what_was_worked_only) {
  const WorkerGroup group({}, 0, nullptr);
  Throttle none(1, group), throttle(4, group);
  for (Throttle* one : {&none, &throttle}) {
    one->begin();
    volatile double sum = 0;
    for (int i = 0; i < 1000000; ++i) sum = sum + i;
    one->end();
  }
  EXPECT_EQ(none.slept_s(), 0);
  EXPECT_GT(throttle.slept_s(), 0);
}

/// What run_job asks of memory_plan.
model::MemorySettings memory_of(const TrainAssignment& assignment) {
  const text::TokenFile tokens = text::TokenFile::open(assignment.token_file);
  model::MemorySettings settings;
  settings.linears =
      model::adapted_linears(model::read_model_config(assignment.spec.model), assignment.spec.lora);
  settings.micro_batch_tokens = assignment.micro_batch_tokens;
  settings.micro_batch_rows = assignment.spec.global_batch;
  settings.max_position = static_cast<int64_t>(tokens.summary().longest);
  settings.dropout = assignment.spec.lora.dropout > 0;
  settings.recompute_blocks = assignment.recompute_blocks;
  return settings;
}

TEST(GroupWorker, every_worker_allocates_what_the_plan_says) {
  for (const bool recompute : {false, true}) {
    ToyJob job = make_toy_job("group_planned");
    job.assignment.recompute_blocks = recompute;
    job.assignment.spec.max_steps = 2;
    const model::ParallelLayout layout = layout_of(2, 2, 2);
    const auto config = model::read_model_config(job.assignment.spec.model);
    const auto settings = memory_of(job.assignment);
    const auto traits =
        device::host_device_traits({.capacity_bytes = job.assignment.capacity_bytes});
    const auto plan = [&](int rank, TrainAssignment* assignment, FakeEvents*) {
      assignment->planned_bytes =
          model::memory_plan(config, layout, model::worker_position(layout, rank), settings, traits)
              .total_bytes();
    };
    const GroupRun run = run_on(job, layout, -1, plan);
    ASSERT_EQ(run.failure, nullptr);
    for (const JobResult& result : run.results) {
      EXPECT_EQ(result.allocated_bytes, result.planned_bytes);
    }
  }
}

TEST(GroupWorker, a_wrong_plan_of_one_ends_all) {
  const ToyJob job = make_toy_job("group_planned_wrong");
  const GroupRun run =
      run_on(job, layout_of(2, 2, 1), -1, [](int rank, TrainAssignment* assignment, FakeEvents*) {
        if (rank == 2) assignment->planned_bytes = 64;
      });
  for (size_t rank = 0; rank < run.failures.size(); ++rank) {
    EXPECT_EQ(reason_of(run.failures[rank]), rank == 2 ? Reason::kInternal : Reason::kWorkerDied);
  }
}

void expect_all_fail(const GroupRun& run, Reason of_leader) {
  for (size_t rank = 0; rank < run.failures.size(); ++rank) {
    EXPECT_EQ(reason_of(run.failures[rank]), rank == 0 ? of_leader : Reason::kWorkerDied) << rank;
  }
}

TEST(GroupWorker, a_leader_that_cannot_write_ends_all) {
  for (const char* what : {"checkpoint 20", "write the adapter"}) {
    SCOPED_TRACE(what);
    const ToyJob job = make_toy_job("group_disk_full");
    const GroupRun run =
        run_on(job, layout_of(2, 1, 2), -1, [&](int rank, TrainAssignment*, FakeEvents* events) {
          if (rank != 0) return;
          events->on_alive = [what](const std::string& sign) {
            if (sign == what) throw Error(Reason::kDiskFull, "on purpose");
          };
        });
    expect_all_fail(run, Reason::kDiskFull);
    const GroupRun again = run_on(job, layout_of(1, 2, 1));
    EXPECT_EQ(again.failure, nullptr);
  }
}

TEST(GroupWorker, numbers_that_are_not_finite_end_all_alike) {
  ToyJob job = make_toy_job("group_not_finite");
  job.assignment.spec.learning_rate = 1e30;
  job.assignment.spec.clip_norm = 0;
  const GroupRun run = run_on(job, layout_of(2, 2, 2));
  std::string first;
  for (const std::exception_ptr& failure : run.failures) {
    try {
      ASSERT_NE(failure, nullptr);
      std::rethrow_exception(failure);
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kNumerics) << error.what();
      if (first.empty()) first = error.what();
      EXPECT_EQ(error.what(), first);
    }
  }
}

TEST(GroupWorker, only_the_leader_stops_a_group) {
  const ToyJob job = make_toy_job("group_stop");
  const auto all_but_leader = [](int rank, TrainAssignment*, FakeEvents* events) {
    if (rank != 0) events->stop_at = 0;
  };
  const GroupRun run = run_on(job, layout_of(1, 2, 1), -1, all_but_leader);
  ASSERT_EQ(run.failure, nullptr);
  EXPECT_EQ(run.results[0].outcome, JobResult::Outcome::kFinished);
  // And a stop that was there before the first step.
  const ToyJob stopped = make_toy_job("group_stop_first");
  const GroupRun none = run_on(stopped, layout_of(1, 2, 2), 0);
  ASSERT_EQ(none.failure, nullptr);
  for (const JobResult& result : none.results) {
    EXPECT_EQ(result.outcome, JobResult::Outcome::kStopped);
    EXPECT_EQ(result.last.step, 0);
  }
  EXPECT_EQ(newest_checkpoint_step(stopped.assignment.job_directory), -1);
}

TEST(GroupWorker, a_checkpoint_that_the_leader_is_asked_for_does_not_depend_on_the_shape) {
  const ToyJob job = make_toy_job("group_asked");
  const GroupRun run =
      run_on(job, layout_of(2, 2, 1), -1, [](int rank, TrainAssignment*, FakeEvents* events) {
        if (rank == 0) events->checkpoint_at = 7;
      });
  ASSERT_EQ(run.failure, nullptr);
  EXPECT_EQ(run.leader.checkpoints, (std::vector<int64_t>{8, 20}));
}

/// Steps of a group of workers on the toy's rows.
struct Steps {
  explicit Steps(const model::ParallelLayout& layout)
      : job(make_toy_job("group_steps")), tokens(text::TokenFile::open(job.assignment.token_file)) {
    settings.folder = job.assignment.spec.model;
    settings.layout = layout;
    settings.linears =
        model::adapted_linears(model::read_model_config(settings.folder), job.assignment.spec.lora);
    settings.values = model::initial_adapter(settings.linears, model::LoraInit::kDefault, 1);
    settings.tokens = 40;
    settings.dropout = 0.1;
    rows.resize(tokens.num_rows());
    std::iota(rows.begin(), rows.end(), 0u);
    for (const uint32_t row : rows) lengths.push_back(tokens.row_length(row));
  }
  ToyJob job;
  text::TokenFile tokens;
  GroupBenchSettings settings;
  std::vector<uint32_t> rows, lengths;
};

TEST(GroupWorker, what_several_workers_hold_stays_equal_to_the_bit) {
  const Steps steps(layout_of(2, 2, 2));
  std::vector<std::vector<float>> replicated(8), all(8);
  testing::run_bench_group(steps.settings, [&](GroupBench& bench) {
    BatchSplit split(2, {2, 1}, static_cast<int64_t>(steps.rows.size()));
    MicroBatcher batcher(steps.tokens, 40, static_cast<int64_t>(steps.rows.size()));
    const auto batches =
        batcher.cut(split.take(steps.rows, steps.lengths, bench.group.position().dp_rank), {});
    for (int64_t step = 1; step <= 6; ++step) {
      train_step(bench.work_of(batches, 100), {.clip_norm = 0.1}, step, 1e-2, [](size_t) {});
    }
    const float* own = bench.network->parameters();
    const auto rank = static_cast<size_t>(bench.group.rank());
    all[rank].assign(own, own + bench.network->num_trainable());
    replicated[rank].assign(own, own + bench.network->shards().num_replicated);
    EXPECT_GT(replicated[rank].size(), 0u);
  });
  for (size_t rank = 0; rank < 8; rank += 2) EXPECT_EQ(replicated[rank], replicated[rank + 1]);
  for (size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(all[rank], all[rank + 4]);
}

TEST(GroupWorker, split_of_small_batches) {
  BatchSplit split(4, {}, 8);
  const std::vector<uint32_t> rows = {7, 9}, lengths = {5, 5};
  size_t taken = 0;
  for (int replica = 0; replica < 4; ++replica) taken += split.take(rows, lengths, replica).size();
  EXPECT_EQ(taken, 2u);
  for (int replica = 0; replica < 4; ++replica) EXPECT_TRUE(split.take({}, {}, replica).empty());
}

TEST(GroupWorker, pain_P065_shares_follow_the_speeds_whatever_the_rows) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    Random random(seed, 1);
    std::vector<uint32_t> rows(200), lengths;
    for (size_t i = 0; i < rows.size(); ++i) {
      lengths.push_back(static_cast<uint32_t>(1 + random.below(i % 5 == 0 ? 500 : 40)));
    }
    std::iota(rows.begin(), rows.end(), 0u);
    const std::vector<double> shares = {1, 2.5, 1.5};
    BatchSplit split(3, shares, 200);
    const double total = std::accumulate(lengths.begin(), lengths.end(), 0.0);
    for (int replica = 0; replica < 3; ++replica) {
      double tokens = 0;
      for (const BatchRow& row : split.take(rows, lengths, replica)) tokens += lengths[row.place];
      EXPECT_NEAR(tokens / total, shares[static_cast<size_t>(replica)] / 5, 0.004) << seed;
    }
  }
}

}  // namespace
}  // namespace galley::trainer
