#include "placement/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/core/random.h"
#include "tests/support/example_jobs.h"

namespace galley::placement {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

Gpu gpu(const std::string& type, uint64_t memory_mib, int index) {
  Gpu card;
  card.type = predictor::gpu_type_by_name("a100-40gb");
  card.type.name = type;
  card.type.memory_bytes = memory_mib * kMiB;
  card.type.emulated = true;
  card.local_index = index;
  return card;
}

/// One node with emulated GPUs of these sizes; the type's name is its size.
Cluster cluster_of(const std::vector<uint64_t>& memory_mib) {
  Cluster cluster;
  cluster.emulated = true;
  cluster.nodes = {{"n1"}};
  for (const uint64_t mib : memory_mib) {
    cluster.gpus.push_back(
        gpu("m" + std::to_string(mib), mib, static_cast<int>(cluster.gpus.size())));
  }
  return cluster;
}

QueuedJob job(const std::string& name, int64_t order, int64_t sequence = 512) {
  QueuedJob queued;
  queued.name = name;
  queued.order = order;
  queued.config = testing::example_config();
  queued.spec = testing::example_spec(sequence);
  queued.data = testing::example_data(sequence);
  return queued;
}

/// MiB that the smallest shape of a job needs.
uint64_t smallest_mib(const QueuedJob& queued) {
  const auto all = predictor::candidates(queued.config, queued.spec, queued.data,
                                         gpu("big", 1 << 20, 0).type, 1);
  return (all.back().prediction.high_bytes + kMiB - 1) / kMiB;
}

PlacementPlan plan(const Cluster& cluster, const std::vector<QueuedJob>& queue,
                   const std::vector<RunningJob>& running = {}) {
  return policy_best_fit()->plan(cluster, running, queue, 0);
}

TEST(BestFit, takes_the_smallest_gpu_that_fits) {
  const PlacementPlan result = plan(cluster_of({40000, 16000, 300}), {job("a", 0)});
  ASSERT_EQ(result.start.size(), 1u);
  EXPECT_EQ(result.start[0].gpus, std::vector<GpuIndex>{1});
  EXPECT_TRUE(result.start[0].candidate.prediction.fits);
  EXPECT_NE(result.start[0].explanation.find("best fit of 2"), std::string::npos);
}

TEST(BestFit, queues_what_finds_no_free_gpu_and_lets_later_jobs_pass) {
  const QueuedJob large = job("large", 0, 2048), small = job("small", 1, 64);
  const uint64_t need = smallest_mib(large) + 10;
  const Cluster cluster = cluster_of({need, smallest_mib(small) + 10});
  const PlacementPlan result = plan(cluster, {large, small}, {{"other", {0}}});
  EXPECT_EQ(result.waiting, std::vector<std::string>{"large"});
  ASSERT_EQ(result.start.size(), 1u);
  EXPECT_EQ(result.start[0].job, "small");
  EXPECT_TRUE(result.refused.empty());
}

TEST(BestFit, refuses_what_no_gpu_can_ever_hold) {
  const PlacementPlan result = plan(cluster_of({300, 200}), {job("a", 0)});
  ASSERT_EQ(result.refused.size(), 1u);
  EXPECT_NE(result.refused[0].reason.find("m300"), std::string::npos) << result.refused[0].reason;
  EXPECT_NE(result.refused[0].reason.find("m200"), std::string::npos);
  const PlacementPlan empty = plan(cluster_of({}), {job("a", 0)});
  ASSERT_EQ(empty.refused.size(), 1u);
  EXPECT_NE(empty.refused[0].reason.find("no GPU"), std::string::npos);
}

TEST(BestFit, priority_goes_first_then_the_order_of_the_file) {
  std::vector<QueuedJob> queue = {job("a", 0), job("b", 1), job("c", 2)};
  queue[2].priority = 5;
  PlacementPlan result = plan(cluster_of({16000}), queue);
  ASSERT_EQ(result.start.size(), 1u);
  EXPECT_EQ(result.start[0].job, "c");
  EXPECT_EQ(result.waiting, (std::vector<std::string>{"a", "b"}));
  std::reverse(queue.begin(), queue.end());
  queue[0].priority = 0;
  result = plan(cluster_of({16000}), queue);
  EXPECT_EQ(result.start[0].job, "a");
}

TEST(BestFit, a_pin_is_kept_or_refused) {
  QueuedJob pinned = job("a", 0);
  pinned.spec.gpu_type = "m40000";
  const Cluster cluster = cluster_of({16000, 40000});
  PlacementPlan result = plan(cluster, {pinned});
  ASSERT_EQ(result.start.size(), 1u);
  EXPECT_EQ(result.start[0].gpus, std::vector<GpuIndex>{1});
  EXPECT_EQ(plan(cluster, {pinned}, {{"other", {1}}}).waiting.size(), 1u);
  pinned.spec.gpu_type = "h100-80gb";
  result = plan(cluster, {pinned});
  ASSERT_EQ(result.refused.size(), 1u);
  for (const char* part : {"h100-80gb", "m16000", "m40000"}) {
    EXPECT_NE(result.refused[0].reason.find(part), std::string::npos) << part;
  }
}

TEST(BestFit, a_gpu_that_failed_the_job_is_the_last_choice) {
  QueuedJob queued = job("a", 0);
  queued.avoid = {0};
  const Cluster cluster = cluster_of({16000, 40000});
  EXPECT_EQ(plan(cluster, {queued}).start.at(0).gpus, std::vector<GpuIndex>{1});
  const PlacementPlan only = plan(cluster, {queued}, {{"other", {1}}});
  ASSERT_EQ(only.start.size(), 1u) << "nothing else is free";
  EXPECT_NE(only.start[0].explanation.find("failed this job before"), std::string::npos);
}

/// Many random clusters and queues: no GPU twice, every job in one list, what starts fits and is
/// free, what waits has a GPU that it fits, and the same input gives the same plan.
TEST(BestFit, property_no_gpu_is_used_twice) {
  Random draw(7, random_stream("planner test"));
  const std::vector<uint64_t> sizes = {300, 900, 1500, 4000, 16000, 40000};
  for (int round = 0; round < 60; ++round) {
    std::vector<uint64_t> memory;
    for (uint64_t i = draw.below(6); i > 0; --i) memory.push_back(sizes[draw.below(sizes.size())]);
    const Cluster cluster = cluster_of(memory);
    std::vector<RunningJob> running;
    std::set<GpuIndex> busy;
    for (size_t i = 0; i < memory.size(); ++i) {
      if (draw.below(3) != 0) continue;
      running.push_back({"r" + std::to_string(i), {static_cast<GpuIndex>(i)}});
      busy.insert(static_cast<GpuIndex>(i));
    }
    std::vector<QueuedJob> queue;
    for (int64_t i = 0; i < static_cast<int64_t>(draw.below(6)); ++i) {
      queue.push_back(job("j" + std::to_string(i), i, int64_t{64} << draw.below(6)));
      queue.back().priority = static_cast<int64_t>(draw.below(3));
    }
    const PlacementPlan result = plan(cluster, queue, running);
    EXPECT_EQ(result.start.size() + result.waiting.size() + result.refused.size(), queue.size());
    for (const Assignment& assignment : result.start) {
      ASSERT_EQ(assignment.gpus.size(), assignment.candidate.prediction.workers.size());
      EXPECT_TRUE(assignment.candidate.prediction.fits);
      for (size_t i = 0; i < assignment.gpus.size(); ++i) {
        EXPECT_TRUE(busy.insert(assignment.gpus[i]).second) << "a GPU is used twice";
        EXPECT_LE(assignment.candidate.prediction.workers[i].high_bytes,
                  cluster.gpus[static_cast<size_t>(assignment.gpus[i])].type.memory_bytes);
      }
    }
    EXPECT_TRUE(result.waiting.empty() || !busy.empty());
    EXPECT_EQ(to_json(plan(cluster, queue, running), cluster).dump(),
              to_json(result, cluster).dump());
  }
}

TEST(Forecast, gpus_are_used_again_as_jobs_end_and_never_overlap) {
  const Cluster cluster = cluster_of({16000, 40000});
  std::vector<QueuedJob> queue;
  for (int64_t i = 0; i < 5; ++i) {
    queue.push_back(job("j" + std::to_string(i), i));
    queue.back().spec.max_steps = 3 + 2 * i;
  }
  QueuedJob huge = job("huge", 5);
  huge.spec.gpu_type = "none";
  queue.push_back(huge);
  const Forecast result = forecast(*policy_best_fit(), cluster, queue);
  ASSERT_EQ(result.jobs.size(), 5u);
  ASSERT_EQ(result.refused.size(), 1u);
  std::map<GpuIndex, std::vector<std::pair<double, double>>> used;
  for (const ScheduledJob& scheduled : result.jobs) {
    EXPECT_LT(scheduled.start, scheduled.end);
    used[scheduled.assignment.gpus.at(0)].emplace_back(scheduled.start, scheduled.end);
  }
  EXPECT_EQ(used.size(), 2u);
  for (auto& [index, spans] : used) {
    std::sort(spans.begin(), spans.end());
    for (size_t i = 1; i < spans.size(); ++i) EXPECT_GE(spans[i].first, spans[i - 1].second);
  }
}

TEST(Forecast, a_job_that_is_half_done_takes_half_the_time) {
  const Cluster cluster = cluster_of({40000});
  QueuedJob whole = job("a", 0), half = job("a", 0);
  half.remaining_fraction = 0.5;
  const double full = forecast(*policy_best_fit(), cluster, {whole}).jobs.at(0).end;
  EXPECT_NEAR(forecast(*policy_best_fit(), cluster, {half}).jobs.at(0).end, full / 2, full * 1e-9);
}

}  // namespace
}  // namespace galley::placement
