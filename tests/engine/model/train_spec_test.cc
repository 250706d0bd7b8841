#include "engine/model/train_spec.h"

#include <gtest/gtest.h>

#include "engine/core/error.h"

namespace galley::model {
namespace {

TrainSpec sample() {
  TrainSpec spec;
  spec.name = "a";
  spec.model = "/m";
  spec.data = {{"/d.jsonl", 2}, {"/e.jsonl", 1}};
  spec.lora = {.rank = 8,
               .alpha = 12.5,
               .dropout = 0.1,
               .rslora = true,
               .init = LoraInit::kGaussian,
               .targets = {"q_proj"},
               .exclude = {"x"},
               .layers = {0, 2},
               .rank_pattern = {{"z", 3}, {"a", 4}},
               .alpha_pattern = {{"q", 1.5}}};
  spec.seed = ~uint64_t{0};
  spec.schedule = ScheduleKind::kLinear;
  spec.loss = LossKind::kAll;
  spec.truncation = Truncation::kKeepEnd;
  spec.precision = Precision::kBf16;
  spec.recompute = Recompute::kBlock;
  spec.learning_rate = 0.1 + 0.2;
  spec.chat_template = "/t.jinja";
  spec.kernels = "avx2";
  spec.tp = 2;
  spec.pp = 3;
  spec.dp = 4;
  spec.stage_layers = {10, 10, 4};
  spec.sequence_parallel = true;
  return spec;
}

TEST(TrainSpec, json_round_trip_is_exact) {
  const TrainSpec spec = sample();
  const std::string text = to_json(spec).dump();
  const TrainSpec back =
      train_spec_from_json(parse_json_or_throw(text, "record", Reason::kInternal));
  EXPECT_EQ(to_json(back).dump(), text);
  EXPECT_EQ(back.seed, spec.seed);
  EXPECT_EQ(back.learning_rate, spec.learning_rate);
  EXPECT_EQ(back.lora, spec.lora);
  EXPECT_EQ(spec_hash(back), spec_hash(spec));
  EXPECT_EQ(back.tp, 2);
  EXPECT_EQ(back.pp, 3);
  EXPECT_EQ(back.dp, 4);
  EXPECT_EQ(back.stage_layers, (std::vector<int64_t>{10, 10, 4}));
  EXPECT_TRUE(back.sequence_parallel);
}

TEST(TrainSpec, a_record_from_before_groups_reads_as_unpinned) {
  Json old = Json::object();
  const Json record = to_json(sample());
  for (const auto& [key, value] : record.as_object()) {
    if (key != "tp" && key != "pp" && key != "dp" && key != "stage_layers" &&
        key != "sequence_parallel") {
      old.set(key, value);
    }
  }
  const TrainSpec back = train_spec_from_json(old);
  EXPECT_EQ(back.tp, -1);
  EXPECT_EQ(back.pp, -1);
  EXPECT_EQ(back.dp, -1);
  EXPECT_TRUE(back.stage_layers.empty());
  EXPECT_FALSE(back.sequence_parallel);
}

TEST(TrainSpec, hash_sees_results_only) {
  const std::string hash = spec_hash(sample());
  TrainSpec spec = sample();
  spec.name = "b";
  spec.priority = 7;
  spec.gpu_type = "x";
  spec.threads = 2;
  spec.kernels = "";
  spec.micro_batch_tokens = 99;
  spec.recompute = Recompute::kNone;
  spec.tp = 1;
  spec.pp = -1;
  spec.dp = 3;
  spec.stage_layers = {};
  spec.sequence_parallel = false;
  EXPECT_EQ(spec_hash(spec), hash) << "a job resumes under another shape";
  spec.lora.rank_pattern = {{"a", 4}, {"z", 3}};
  EXPECT_NE(spec_hash(spec), hash);
  spec = sample();
  spec.seed = 1;
  EXPECT_NE(spec_hash(spec), hash);
}

}  // namespace
}  // namespace galley::model
