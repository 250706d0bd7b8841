// The planner's groups: jobs that fit no GPU alone, pins, unlike GPUs, what waits and what is
// refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "engine/core/random.h"
#include "engine/core/strings.h"
#include "placement/describe.h"
#include "placement/planner.h"
#include "tests/support/example_jobs.h"

namespace galley::placement {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

struct GpuGroup {
  uint64_t memory_mib = 0;
  int count = 1;
  double slowdown = 1;
};

/// Emulated GPUs; the type's name is its memory. One vector for each node.
Cluster cluster_of(const std::vector<std::vector<GpuGroup>>& nodes) {
  Cluster cluster;
  cluster.emulated = true;
  for (size_t node = 0; node < nodes.size(); ++node) {
    cluster.nodes.push_back({"n" + std::to_string(node + 1)});
    int local_index = 0;
    for (const GpuGroup& group : nodes[node]) {
      for (int i = 0; i < group.count; ++i) {
        Gpu gpu;
        gpu.type = predictor::gpu_type_by_name("a100-40gb");
        gpu.type.name = "m" + std::to_string(group.memory_mib);
        gpu.type.memory_bytes = group.memory_mib * kMiB;
        gpu.type.emulated = true;
        gpu.type.slowdown = group.slowdown;
        gpu.node = static_cast<int>(node);
        gpu.local_index = local_index++;
        cluster.gpus.push_back(gpu);
      }
    }
  }
  return cluster;
}

/// Cards of the table; one vector of (name, count) for each node.
Cluster cards(const std::vector<std::vector<std::pair<std::string, int>>>& nodes) {
  Cluster cluster;
  for (size_t node = 0; node < nodes.size(); ++node) {
    cluster.nodes.push_back({"n" + std::to_string(node + 1)});
    int local_index = 0;
    for (const auto& [name, count] : nodes[node]) {
      for (int i = 0; i < count; ++i) {
        Gpu gpu;
        gpu.type = predictor::gpu_type_by_name(name);
        gpu.node = static_cast<int>(node);
        gpu.local_index = local_index++;
        cluster.gpus.push_back(gpu);
      }
    }
  }
  return cluster;
}

/// A Llama of 8 or 70 billion parameters, stored in bf16.
model::ModelConfig large_config(int num_layers, int64_t hidden) {
  model::ModelConfig config = testing::example_config();
  config.vocab_size = 128256;
  config.hidden = hidden;
  config.intermediate = hidden * 7 / 2;
  config.num_layers = num_layers;
  config.num_heads = hidden / 128;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.tied_embeddings = false;
  config.stored_dtype = DType::kBf16;
  return config;
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

QueuedJob large_job(const std::string& name, int num_layers, int64_t hidden) {
  QueuedJob queued = job(name, 0, 2048);
  queued.config = large_config(num_layers, hidden);
  return queued;
}

/// MiB that the smallest shape of a job needs on one GPU.
uint64_t smallest_mib(const QueuedJob& queued) {
  predictor::GpuType type = predictor::gpu_type_by_name("a100-40gb");
  type.emulated = true;
  type.memory_bytes = uint64_t{1} << 50;
  const auto all = predictor::candidates(queued.config, queued.spec, queued.data, type, 1);
  return all.back().prediction.high_bytes / kMiB + 1;
}

PlacementPlan plan(const Cluster& cluster, const std::vector<QueuedJob>& queue,
                   const std::vector<RunningJob>& running = {}) {
  return policy_best_fit()->plan(cluster, running, queue, 0);
}

const predictor::PlanShape& shape_of(const Assignment& assignment) {
  return assignment.candidate.shape;
}

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

/// What holds of every assignment: GPUs in rank order, each once, tensor-parallel workers on one
/// node, and bytes for each of them that fit.
void expect_sound(const Assignment& assignment, const Cluster& cluster, std::set<GpuIndex>* busy) {
  const model::ParallelLayout& layout = shape_of(assignment).layout;
  ASSERT_EQ(static_cast<int>(assignment.gpus.size()), layout.num_workers());
  ASSERT_EQ(assignment.candidate.prediction.workers.size(), assignment.gpus.size());
  for (size_t rank = 0; rank < assignment.gpus.size(); ++rank) {
    const GpuIndex gpu = assignment.gpus[rank];
    EXPECT_TRUE(busy->insert(gpu).second) << "GPU " << gpu << " is used twice";
    const predictor::WorkerNeed& need = assignment.candidate.prediction.workers[rank];
    EXPECT_LE(need.high_bytes, cluster.gpus[static_cast<size_t>(gpu)].type.memory_bytes);
    const model::WorkerPosition at = model::worker_position(layout, static_cast<int>(rank));
    const int first = model::group_rank(layout, {0, at.pp_rank, at.dp_rank});
    EXPECT_EQ(cluster.gpus[static_cast<size_t>(gpu)].node,
              cluster.gpus[static_cast<size_t>(assignment.gpus[static_cast<size_t>(first)])].node)
        << "tensor-parallel workers of a stage on two nodes";
  }
  EXPECT_TRUE(assignment.candidate.prediction.fits);
  EXPECT_FALSE(assignment.explanation.empty());
}

TEST(GroupPlanner, a_job_that_fits_one_gpu_gets_one) {
  const PlacementPlan result = plan(cluster_of({{{16000, 4}}}), {job("a", 0)});
  ASSERT_EQ(result.start.size(), 1u);
  EXPECT_EQ(result.start[0].gpus, std::vector<GpuIndex>{0});
}

TEST(GroupPlanner, a_job_that_fits_no_gpu_gets_the_smallest_group) {
  const QueuedJob queued = job("a", 0);
  const uint64_t mib = smallest_mib(queued);
  const Cluster cluster = cluster_of({{{mib * 7 / 10, 4}}});
  const PlacementPlan result = plan(cluster, {queued});
  ASSERT_EQ(result.start.size(), 1u) << (result.refused.empty() ? "" : result.refused[0].reason);
  std::set<GpuIndex> busy;
  expect_sound(result.start[0], cluster, &busy);
  EXPECT_EQ(result.start[0].gpus.size(), 2u);
  expect_in(result.start[0].explanation, "no GPU holds it alone");
}

TEST(GroupPlanner, tensor_parallel_stays_on_a_node_and_pipelines_cross) {
  const QueuedJob queued = job("a", 0);
  const uint64_t mib = smallest_mib(queued) * 7 / 10;
  const Cluster cluster = cluster_of({{{mib}}, {{mib}}});
  const PlacementPlan result = plan(cluster, {queued});
  ASSERT_EQ(result.start.size(), 1u);
  EXPECT_EQ(shape_of(result.start[0]).layout.tp_size, 1);
  EXPECT_EQ(shape_of(result.start[0]).layout.pp_size, 2);
  QueuedJob pinned = queued;
  pinned.spec.tp = 2;
  // Who insists gets it, and is told what it costs.
  const PlacementPlan across = plan(cluster, {pinned});
  ASSERT_EQ(across.start.size(), 1u);
  EXPECT_EQ(shape_of(across.start[0]).layout.tp_size, 2);
  expect_in(across.start[0].explanation, "cross the network");
  const PlacementPlan inside = plan(cluster_of({{{mib, 2}}}), {pinned});
  EXPECT_LT(across.start.at(0).candidate.prediction.tokens_per_second,
            inside.start.at(0).candidate.prediction.tokens_per_second);
  // Where a node has enough, the job waits for it instead.
  const Cluster roomy = cluster_of({{{mib, 2}}, {{mib}}});
  const PlacementPlan waits =
      policy_best_fit()->plan(roomy, {{.name = "busy", .gpus = {0}}}, {pinned}, 0);
  EXPECT_EQ(waits.waiting, std::vector<std::string>{"a"});
}

TEST(GroupPlanner, pins_are_honoured_in_every_combination) {
  const Cluster cluster = cluster_of({{{16000, 4}}, {{16000, 4}}});
  for (const int64_t tp : {-1, 1, 2, 3}) {
    for (const int64_t pp : {-1, 1, 2}) {
      for (const int64_t dp : {-1, 1, 2}) {
        if (tp == 3 && pp == 2 && dp == 2) continue;  // 12 GPUs
        QueuedJob pinned = job("a", 0);
        pinned.spec.tp = tp;
        pinned.spec.pp = pp;
        pinned.spec.dp = dp;
        SCOPED_TRACE(cat("tp ", tp, " pp ", pp, " dp ", dp));
        const PlacementPlan result = plan(cluster, {pinned});
        ASSERT_EQ(result.start.size(), 1u);
        std::set<GpuIndex> busy;
        expect_sound(result.start[0], cluster, &busy);
        const model::ParallelLayout& layout = shape_of(result.start[0]).layout;
        EXPECT_EQ(layout.tp_size, std::max<int64_t>(1, tp));
        EXPECT_EQ(layout.pp_size, std::max<int64_t>(1, pp));
        EXPECT_EQ(layout.dp_size, std::max<int64_t>(1, dp));
      }
    }
  }
}

TEST(GroupPlanner, stages_and_sequence_parallel_are_pins_too) {
  QueuedJob pinned = job("a", 0);
  pinned.spec.pp = 3;
  pinned.spec.stage_layers = {20, 6, 4};
  pinned.spec.tp = 2;
  pinned.spec.sequence_parallel = true;
  const PlacementPlan result = plan(cluster_of({{{16000, 6}}}), {pinned});
  ASSERT_EQ(result.start.size(), 1u);
  const model::ParallelLayout& layout = shape_of(result.start[0]).layout;
  EXPECT_EQ(layout.stage_layers, (std::vector<int>{20, 6, 4}));
  EXPECT_EQ(layout.sequence_parallel, model::SequenceParallel::kYes);
}

TEST(GroupPlanner, a_pin_to_one_worker_forbids_a_group) {
  QueuedJob pinned = job("a", 0);
  pinned.spec.tp = pinned.spec.pp = pinned.spec.dp = 1;
  const uint64_t mib = smallest_mib(pinned) * 7 / 10;
  EXPECT_EQ(plan(cluster_of({{{mib, 4}}}), {pinned}).refused.size(), 1u);
}

TEST(GroupPlanner, unlike_gpus_make_uneven_stages_with_the_large_one_first) {
  const QueuedJob queued = job("a", 0);
  const uint64_t mib = smallest_mib(queued);
  // The large GPU is last in the cluster, and neither holds the job alone.
  const Cluster cluster = cluster_of({{{mib * 5 / 10, 1, 3.0}, {mib * 9 / 10}}});
  QueuedJob pinned = queued;
  pinned.spec.pp = 2;
  const PlacementPlan result = plan(cluster, {pinned});
  ASSERT_EQ(result.start.size(), 1u) << (result.refused.empty() ? "" : result.refused[0].reason);
  EXPECT_EQ(result.start[0].gpus, (std::vector<GpuIndex>{1, 0}));
  const std::vector<int>& layers = shape_of(result.start[0]).layout.stage_layers;
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_GT(layers[0], layers[1]);
  expect_in(group_text(result.start[0]), cat("layers ", layers[0], " + ", layers[1]));
  expect_in(group_text(result.start[0]), "idle ");
}

TEST(GroupPlanner, pain_P058_one_large_and_two_small_cards) {
  // 48 layers of hidden 5120: about 32 GB of weights in bf16 are too much for 24 GB, fine for 80.
  QueuedJob small = large_job("fits-80", 40, 5120);
  const Cluster cluster = cards({{{"a100-80gb", 1}, {"rtx3090-24gb", 2}}});
  PlacementPlan result = plan(cluster, {small});
  ASSERT_EQ(result.start.size(), 1u) << (result.refused.empty() ? "" : result.refused[0].reason);
  EXPECT_EQ(result.start[0].gpus, std::vector<GpuIndex>{0}) << "the large card alone holds it";
  // More than 80 GB: all three as stages, each with what it holds, and the plan says that tp is
  // uniform.
  QueuedJob large = large_job("needs-all", 80, 6144);
  result = plan(cluster, {large});
  ASSERT_EQ(result.start.size(), 1u) << (result.refused.empty() ? "" : result.refused[0].reason);
  std::set<GpuIndex> busy;
  expect_sound(result.start[0], cluster, &busy);
  const model::ParallelLayout& layout = shape_of(result.start[0]).layout;
  EXPECT_EQ(layout.tp_size, 1);
  EXPECT_GE(layout.pp_size, 2);
  EXPECT_EQ(result.start[0].gpus.front(), 0) << "the large card holds the first stage";
  EXPECT_GT(layout.stage_layers.front(), 2 * layout.stage_layers.back());
  expect_in(result.start[0].explanation, "all stages have one GPU");
  expect_in(result.start[0].explanation, "a100-80gb");
}

TEST(GroupPlanner, pain_P065_the_plan_prints_the_share_of_each_replica) {
  QueuedJob pinned = job("a", 0);
  pinned.spec.dp = 2;
  const Cluster cluster = cluster_of({{{16000, 1, 1.0}, {8000, 1, 2.0}}});
  const PlacementPlan result = plan(cluster, {pinned});
  ASSERT_EQ(result.start.size(), 1u);
  expect_in(group_text(result.start[0]), "rows 67 % + 33 %");
  expect_in(result.start[0].explanation, "rows 67 % + 33 %");
  const Json json = to_json(result.start[0], cluster);
  ASSERT_EQ(json.at("replica_shares").as_array().size(), 2u);
  EXPECT_NEAR(json.at("replica_shares").as_array().at(0).as_double(), 2.0 / 3, 0.02);
}

TEST(GroupPlanner, pain_P056_pins_that_the_model_cannot_be_divided_into) {
  const auto begin = std::chrono::steady_clock::now();
  QueuedJob pinned = job("a", 0);
  pinned.spec.tp = 16;
  const PlacementPlan result = plan(cluster_of({{{16000, 16}}}), {pinned});
  ASSERT_EQ(result.refused.size(), 1u);
  expect_in(result.refused[0].reason, "16");
  expect_in(result.refused[0].reason, "9");
  pinned.spec.tp = -1;
  pinned.spec.pp = 31;
  const PlacementPlan stages = plan(cluster_of({{{16000, 32}}}), {pinned});
  ASSERT_EQ(stages.refused.size(), 1u);
  expect_in(stages.refused[0].reason, "30");
  pinned.spec.pp = 2;
  pinned.spec.stage_layers = {20, 11};
  EXPECT_EQ(plan(cluster_of({{{16000, 2}}}), {pinned}).refused.size(), 1u);
  // Two seconds are the promise; a machine under load may take its time, a search without end not.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(GroupPlanner, a_refusal_names_the_smallest_plan_and_what_would_fit) {
  const QueuedJob huge = large_job("huge", 80, 8192);  // 140 GB in bf16
  const Cluster cluster = cards({{{"a100-40gb", 2}}});
  const PlacementPlan result = plan(cluster, {huge});
  ASSERT_EQ(result.refused.size(), 1u);
  const std::string& reason = result.refused[0].reason;
  expect_in(reason, "a100-40gb has");
  expect_in(reason, "the smallest plan needs ");
  expect_in(reason, " on each of 2 x a100-40gb (");
  expect_in(reason, "more GPUs, or larger ones");
  QueuedJob pinned = job("a", 0);
  pinned.spec.tp = 2;
  pinned.spec.dp = 3;
  const PlacementPlan few = plan(cluster_of({{{16000, 4}}}), {pinned});
  ASSERT_EQ(few.refused.size(), 1u);
  expect_in(few.refused[0].reason, "needs 6 GPUs, the allocation has 4");
}

TEST(GroupPlanner, a_refused_group_may_fit_with_shorter_rows) {
  QueuedJob queued = job("a", 0, 4096);
  queued.spec.pp = 2;
  const Cluster roomy = cluster_of({{{64000, 2}}});
  const PlacementPlan fits = plan(roomy, {queued});
  ASSERT_EQ(fits.start.size(), 1u);
  queued.spec.recompute = model::Recompute::kNone;
  const PlacementPlan none = plan(cluster_of({{{1800, 2}}}), {queued});
  ASSERT_EQ(none.refused.size(), 1u);
  expect_in(none.refused[0].reason, "what would fit there: batch.sequence = ");
}

TEST(GroupPlanner, seventy_billion_parameters_find_eight_cards) {
  const QueuedJob huge = large_job("huge", 80, 8192);
  const Cluster cluster = cards({{{"a100-40gb", 4}}, {{"a100-40gb", 4}}});
  const PlacementPlan result = plan(cluster, {huge});
  ASSERT_EQ(result.start.size(), 1u) << (result.refused.empty() ? "" : result.refused[0].reason);
  std::set<GpuIndex> busy;
  expect_sound(result.start[0], cluster, &busy);
  EXPECT_LE(shape_of(result.start[0]).layout.tp_size, 4);
  EXPECT_GE(result.start[0].gpus.size(), 4u);
}

TEST(GroupPlanner, a_group_waits_for_named_gpus_and_free_ones_are_kept_for_it) {
  QueuedJob pinned = job("group", 0);
  pinned.spec.tp = 2;
  const Cluster cluster = cluster_of({{{16000, 2}}});
  const PlacementPlan result = plan(cluster, {pinned, job("small", 1)}, {{"other", {0}}});
  EXPECT_TRUE(result.start.empty()) << "the small job would starve the group";
  EXPECT_EQ(result.waiting, (std::vector<std::string>{"group", "small"}));
  expect_in(result.waits_for.at("group"), "n1:gpu0 to come free");
  expect_in(result.waits_for.at("group"), "n1:gpu1 kept for it");
  expect_in(to_json(result, cluster).at("waits_for").get_string("group"), "2 GPUs");
  const PlacementPlan after = plan(cluster, {pinned, job("small", 1)});
  ASSERT_EQ(after.start.size(), 1u);
  EXPECT_EQ(after.start[0].job, "group");
}

TEST(GroupPlanner, gpus_that_failed_the_job_or_are_lost_are_not_taken) {
  QueuedJob pinned = job("a", 0);
  pinned.spec.pp = 2;
  pinned.avoid = {0};
  const Cluster cluster = cluster_of({{{16000, 3}}});
  const PlacementPlan result = plan(cluster, {pinned});
  ASSERT_EQ(result.start.size(), 1u);
  EXPECT_EQ(std::set<GpuIndex>(result.start[0].gpus.begin(), result.start[0].gpus.end()),
            (std::set<GpuIndex>{1, 2}));
  const PlacementPlan only = plan(cluster, {pinned}, {{"other", {1}}});
  ASSERT_EQ(only.start.size(), 1u) << "nothing else is free";
  expect_in(only.start[0].explanation, "failed this job before");
  const PlacementPlan lost = plan(cluster, {pinned}, {{"", {1, 2}}});
  EXPECT_EQ(lost.refused.size(), 1u) << "two GPUs will never come back";
}

TEST(GroupPlanner, json_and_texts_tell_every_worker) {
  QueuedJob pinned = job("a", 0);
  pinned.spec.tp = 2;
  const Cluster cluster = cluster_of({{{16000, 3}}});
  const PlacementPlan result = plan(cluster, {pinned});
  ASSERT_EQ(result.start.size(), 1u);
  const Json json = to_json(result.start[0], cluster);
  EXPECT_EQ(json.get_int("tp"), 2);
  const Json::Array& workers = json.at("workers").as_array();
  ASSERT_EQ(workers.size(), 2u);
  EXPECT_EQ(workers[1].get_int("tp_rank"), 1);
  EXPECT_EQ(workers[1].get_string("gpu_name"), "n1:gpu1");
  EXPECT_GT(workers[1].get_int("planned_bytes"), 0);
  EXPECT_EQ(model::layout_from_json(json.at("layout")), shape_of(result.start[0]).layout);
  EXPECT_EQ(runs_on_text(cluster, result.start[0]), "n1:gpu0-1  m16000 (tp 2)");
  expect_in(need_text(result.start[0].candidate.prediction), "(fullest of 2)");
  EXPECT_EQ(gpus_text(cluster, {2, 0, 1}), "n1:gpu2, n1:gpu0-1");
}

/// Random clusters and queues: no GPU twice, tensor parallelism within nodes, every job in one
/// list, the same input gives the same plan.
TEST(GroupPlanner, property_sound_and_deterministic) {
  Random draw(5, random_stream("group planner test"));
  const uint64_t mib = smallest_mib(job("a", 0));
  const std::vector<uint64_t> sizes = {mib * 4 / 10, mib * 6 / 10, mib * 9 / 10, mib * 2};
  int groups = 0;
  for (int round = 0; round < 25; ++round) {
    std::vector<std::vector<GpuGroup>> nodes;
    for (uint64_t node = 0; node <= draw.below(3); ++node) {
      nodes.emplace_back();
      for (uint64_t i = 0; i <= draw.below(2); ++i) {
        nodes.back().push_back({sizes[draw.below(sizes.size())],
                                1 + static_cast<int>(draw.below(3)),
                                draw.below(2) == 0 ? 1.0 : 2.0});
      }
    }
    const Cluster cluster = cluster_of(nodes);
    std::set<GpuIndex> busy;
    std::vector<RunningJob> running;
    for (size_t i = 0; i < cluster.gpus.size(); ++i) {
      if (draw.below(4) != 0) continue;
      running.push_back({"r" + std::to_string(i), {static_cast<GpuIndex>(i)}});
      busy.insert(static_cast<GpuIndex>(i));
    }
    std::vector<QueuedJob> queue;
    for (int64_t i = 0; i <= static_cast<int64_t>(draw.below(3)); ++i) {
      queue.push_back(job("j" + std::to_string(i), i, int64_t{128} << draw.below(3)));
      if (draw.below(3) == 0) queue.back().spec.tp = 2;
      if (draw.below(3) == 0) queue.back().spec.dp = 2;
      if (draw.below(4) == 0) queue.back().spec.pp = 2;
    }
    const PlacementPlan result = plan(cluster, queue, running);
    EXPECT_EQ(result.start.size() + result.waiting.size() + result.refused.size(), queue.size());
    for (const Assignment& assignment : result.start) {
      expect_sound(assignment, cluster, &busy);
      groups += assignment.gpus.size() > 1 ? 1 : 0;
    }
    for (const std::string& waiting : result.waiting)
      EXPECT_TRUE(result.waits_for.contains(waiting));
    EXPECT_EQ(to_json(plan(cluster, queue, running), cluster).dump(),
              to_json(result, cluster).dump());
  }
  EXPECT_GT(groups, 5);
}

TEST(GroupPlanner, forecast_runs_groups_one_after_the_other) {
  std::vector<QueuedJob> queue;
  for (int64_t i = 0; i < 3; ++i) {
    queue.push_back(job("j" + std::to_string(i), i));
    queue.back().spec.tp = 2;
  }
  const Forecast result = forecast(*policy_best_fit(), cluster_of({{{16000, 3}}}), queue);
  ASSERT_EQ(result.jobs.size(), 3u);
  for (size_t i = 1; i < 3; ++i) EXPECT_GE(result.jobs[i].start, result.jobs[i - 1].end);
}

}  // namespace
}  // namespace galley::placement
