// Fine-tuning runs of a real model on groups: every shape has the stored losses and gradient norms.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <set>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/model/adapter_file.h"
#include "engine/model/safetensors.h"
#include "tests/support/reference.h"
#include "tests/trainer/group_bench.h"
#include "trainer/batch_split.h"
#include "trainer/schedule.h"

namespace galley::trainer {
namespace {

using testing::GroupBench;
using testing::layout_of;

Json read_json(const std::string& path) {
  return parse_json_or_throw(read_file(path), path, Reason::kInternal);
}

struct LabelledRow {
  std::vector<int32_t> ids, labels;
  size_t micro_batch = 0;
};
using GlobalBatch = std::vector<LabelledRow>;

struct ReferenceRun {
  std::vector<GlobalBatch> batches;
  std::vector<size_t> order;
  OptimizerSettings optimizer;
  Schedule schedule;
  Json curve;
  size_t longest = 0;  // tokens of a micro batch
};

std::vector<int32_t> numbers(const Json& list, size_t count) {
  std::vector<int32_t> values;
  for (size_t i = 0; i < count; ++i) {
    values.push_back(static_cast<int32_t>(list.as_array()[i].as_int()));
  }
  return values;
}

void add_micro_batch(const Json& micro, size_t index, ReferenceRun* run) {
  size_t tokens = 0;
  const auto& lengths = micro.at("lengths").as_array();
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto length = static_cast<size_t>(lengths[i].as_int());
    run->batches.back().push_back({numbers(micro.at("input_ids").as_array()[i], length),
                                   numbers(micro.at("labels").as_array()[i], length), index});
    tokens += length;
  }
  run->longest = std::max(run->longest, tokens);
}

ReferenceRun read_run(const std::string& folder) {
  ReferenceRun run;
  const Json config = read_json(path_join(folder, "config.json"));
  const Json& optimizer = config.at("optimizer");
  run.optimizer = {.beta1 = optimizer.at("betas").as_array()[0].as_double(),
                   .beta2 = optimizer.at("betas").as_array()[1].as_double(),
                   .epsilon = optimizer.at("eps").as_double(),
                   .weight_decay = optimizer.at("weight_decay").as_double(),
                   .clip_norm = config.get_double("max_grad_norm")};
  const Json& schedule = config.at("schedule");
  run.schedule = {schedule.at("name").as_string() == "cosine" ? model::ScheduleKind::kCosine
                                                              : model::ScheduleKind::kConstant,
                  optimizer.at("lr").as_double(), schedule.at("warmup_steps").as_int(),
                  schedule.at("total_steps").as_int()};
  run.curve = read_json(path_join(folder, "curve.json"));
  const Json batches = read_json(path_join(folder, "batches.json"));
  for (const Json& index : batches.at("order").as_array()) {
    run.order.push_back(static_cast<size_t>(index.as_int()));
  }
  for (const Json& global : batches.at("batches").as_array()) {
    run.batches.emplace_back();
    size_t index = 0;
    for (const Json& micro : global.as_array()) add_micro_batch(micro, index++, &run);
  }
  return run;
}

void add_row(const LabelledRow& row, MicroBatch* batch) {
  nn::Segment segment;
  segment.row = batch->num_tokens;
  segment.num_tokens = static_cast<int64_t>(row.ids.size());
  batch->step.segments.push_back(segment);
  for (size_t t = 0; t < row.ids.size(); ++t) {
    batch->step.ids.push_back(row.ids[t]);
    if (t == 0 || row.labels[t] < 0) continue;
    batch->step.target_rows.push_back(static_cast<int32_t>(segment.row) + static_cast<int32_t>(t) -
                                      1);
    batch->step.targets.push_back(row.labels[t]);
  }
  batch->num_tokens += segment.num_tokens;
  batch->num_targets = static_cast<int64_t>(batch->step.targets.size());
}

/// A replica's share of a global batch: of each micro batch the rows that it takes.
std::vector<MicroBatch> share_of(const GlobalBatch& batch, int num_replicas, int replica) {
  std::vector<uint32_t> rows, lengths;
  for (const LabelledRow& row : batch) {
    rows.push_back(static_cast<uint32_t>(rows.size()));
    lengths.push_back(static_cast<uint32_t>(row.ids.size()));
  }
  BatchSplit split(num_replicas, {}, static_cast<int64_t>(rows.size()));
  std::vector<MicroBatch> batches;
  size_t last = SIZE_MAX;
  for (const BatchRow& taken : split.take(rows, lengths, replica)) {
    const LabelledRow& row = batch[taken.row];
    if (row.micro_batch != last) batches.emplace_back();
    last = row.micro_batch;
    add_row(row, &batches.back());
  }
  return batches;
}

int64_t targets_of(const GlobalBatch& batch) {
  int64_t targets = 0;
  for (const LabelledRow& row : batch) {
    for (size_t t = 1; t < row.labels.size(); ++t) targets += row.labels[t] >= 0 ? 1 : 0;
  }
  return targets;
}

void check_steps(GroupBench& bench, const ReferenceRun& run, size_t steps) {
  const auto& curve = run.curve.as_array();
  for (size_t k = 0; k < steps; ++k) {
    const GlobalBatch& batch = run.batches[run.order[k]];
    const auto batches =
        share_of(batch, bench.group.place().layout.dp_size, bench.group.position().dp_rank);
    const auto step = static_cast<int64_t>(k) + 1;
    const StepOutcome outcome = train_step(bench.work_of(batches, targets_of(batch)), run.optimizer,
                                           step, run.schedule.at(step), [](size_t) {});
    const double loss = curve[k].at("loss").as_double();
    const double norm = curve[k].at("grad_norm").as_double();
    EXPECT_NEAR(outcome.loss, loss, 5e-6 * loss) << "step " << step;
    EXPECT_NEAR(outcome.gradient_norm, norm, 5e-5 * norm) << "step " << step;
  }
}

/// Of a whole run: norm of the difference to the stored adapter over the norm of what moved.
void check_final(const GroupBench& bench, const std::vector<float>& start,
                 const std::vector<float>& expected) {
  const std::span<const float> own(bench.network->parameters(), bench.network->num_trainable());
  const auto shards = bench.group.first_replica_shards(bench.config, bench.memory.linears);
  const std::vector<float> whole = bench.group.gather(bench.network->shards(), own, shards);
  if (!bench.group.leads()) return;
  ASSERT_EQ(whole.size(), expected.size());
  double apart = 0, moved = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    apart += std::pow(static_cast<double>(whole[i]) - expected[i], 2);
    moved += std::pow(static_cast<double>(expected[i]) - start[i], 2);
  }
  EXPECT_LE(std::sqrt(apart / moved), 1e-3);
}

void check_case(const std::string& model_folder, const std::string& folder,
                const model::Adapter& start, const model::ParallelLayout& layout, size_t steps) {
  SCOPED_TRACE(model::to_text(layout));
  const ReferenceRun run = read_run(folder);
  steps = std::min(steps, run.order.size());
  const auto longest = static_cast<int64_t>(run.longest);
  testing::run_bench_group({.folder = model_folder,
                            .layout = layout,
                            .linears = start.linears,
                            .values = start.values,
                            .tokens = longest,
                            .ring_bytes = size_t{1} << 20},
                           [&](GroupBench& bench) {
                             EXPECT_EQ(bench.planned_bytes(), bench.device->allocated_bytes());
                             check_steps(bench, run, steps);
                             const bool stored_end =
                                 path_exists(path_join(folder, "adapter_final"));
                             if (steps < run.order.size() || !stored_end) return;
                             const model::Adapter stored = model::read_adapter(
                                 path_join(folder, "adapter_final"), bench.config);
                             check_final(bench, start.values, stored.values);
                           });
}

struct Shape {
  model::ParallelLayout layout;
  size_t steps = 0;
};

/// The whole run of the quickest case, the first steps of the others: an update that is wrong shows
/// in the second step. With GALLEY_WHOLE_RUNS=1 all steps of all cases in all layouts (half an
/// hour).
std::vector<Shape> shapes_of(bool quickest) {
  const bool all = std::getenv("GALLEY_WHOLE_RUNS") != nullptr;
  model::ParallelLayout uneven = layout_of(1, 3, 1);
  uneven.stage_layers = {4, 17, 9};
  std::vector<Shape> shapes = {{layout_of(2, 1, 1), quickest ? SIZE_MAX : 2},
                               {layout_of(1, 2, 1), 2},
                               {layout_of(1, 1, 2), 2}};
  if (quickest || all) {
    for (const model::ParallelLayout& layout :
         {layout_of(4, 1, 1), layout_of(1, 3, 1), uneven, layout_of(1, 1, 3), layout_of(2, 2, 2)}) {
      shapes.push_back({layout, 2});
    }
  }
  if (all) {
    for (Shape& shape : shapes) shape.steps = SIZE_MAX;
  }
  return shapes;
}

TEST(GroupReference, reference_smollm2_lora_cases_in_every_kind_of_layout) {
  GALLEY_NEED_REFERENCE(cases, "smollm2/lora");
  GALLEY_NEED_SMOLLM2(folder);
  const model::ModelConfig config = model::read_model_config(folder);
  const std::set<std::string> refused = {"dora_qv"};  // DoRA
  galley::testing::CaseCount count("smollm2 lora on groups");
  for (const std::string& name : galley::testing::list_directory(cases)) {
    SCOPED_TRACE(name);
    const std::string path = path_join(cases, name);
    model::Adapter start;
    try {
      start = model::read_adapter(path_join(path, "adapter_init"), config);
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kUnsupported) << error.what();
      EXPECT_TRUE(refused.contains(name)) << error.what();
      count.refuse(name);
      continue;
    }
    for (const Shape& shape : shapes_of(name == "rslora_mixed")) {
      check_case(folder, path, start, shape.layout, shape.steps);
    }
    count.pass();
  }
}

}  // namespace
}  // namespace galley::trainer
