#include "trainer/train_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "engine/core/error.h"
#include "engine/model/adapter_file.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights.h"
#include "tests/trainer/network_bench.h"
#include "tests/trainer/toy_job.h"
#include "trainer/schedule.h"

namespace galley::trainer {
namespace {

using Bench = testing::NetworkBench;
using testing::batch_of;

/// Gradient of one global batch cut by `budget`.
std::vector<float> gradient_with(const std::vector<testing::ToyRow>& rows, int64_t budget,
                                 size_t* num_batches, double* loss) {
  const std::string root = galley::testing::scratch_directory("accumulate");
  model::testing::write_toy_folder(root + "/m", model::testing::toy_config_json());
  testing::write_token_file(root + "/t.bin", {rows}, testing::toy_inputs());
  const text::TokenFile tokens = text::TokenFile::open(root + "/t.bin");
  const auto config = model::read_model_config(root + "/m");
  const auto linears = model::adapted_linears(config, {.rank = 4, .alpha = 8});
  std::vector<float> values = model::initial_adapter(linears, model::LoraInit::kGaussian, 1);
  Random random(1, 1);
  for (float& value : values) {
    if (value == 0) value = static_cast<float>(0.05 * random.normal());
  }
  Bench bench(root + "/m", linears, values, std::max<int64_t>(budget, 64));
  std::vector<uint32_t> all(rows.size());
  std::iota(all.begin(), all.end(), 0u);
  const auto batches = micro_batches(tokens, all, {}, budget);
  *num_batches = batches.size();
  const StepOutcome outcome =
      train_step(*bench.network, *bench.ops.optimizer, batches, {}, 1, 0.0, [](size_t) {});
  *loss = outcome.loss;
  return bench.host(bench.network->gradients());
}

void expect_equal_however_cut(const std::vector<testing::ToyRow>& rows) {
  size_t whole_batches = 0, cut_batches = 0, single_batches = 0;
  double whole_loss = 0, cut_loss = 0, single_loss = 0;
  const auto whole = gradient_with(rows, 1000, &whole_batches, &whole_loss);
  const auto cut = gradient_with(rows, 110, &cut_batches, &cut_loss);
  size_t longest = 0;
  for (const auto& row : rows) longest = std::max(longest, row.ids.size());
  const auto single =
      gradient_with(rows, static_cast<int64_t>(longest), &single_batches, &single_loss);
  EXPECT_EQ(whole_batches, 1u);
  EXPECT_GT(cut_batches, 1u);
  EXPECT_GE(single_batches, cut_batches);
  EXPECT_NEAR(cut_loss, whole_loss, 1e-5);
  EXPECT_NEAR(single_loss, whole_loss, 1e-5);
  float most = 0;
  for (const float value : whole) most = std::max(most, std::abs(value));
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_NEAR(cut[i], whole[i], 1e-5 * most) << i;
    ASSERT_NEAR(single[i], whole[i], 1e-5 * most) << i;
  }
}

TEST(TrainStep, pain_P036_gradient_does_not_depend_on_accumulation) {
  auto rows = testing::toy_rows(8, 120, 21);
  rows[2] = testing::toy_rows(1, 120, 5)[0];
  while (rows[2].ids.size() < 100) {
    rows[2].ids.push_back(static_cast<int32_t>(rows[2].ids.size()) % 120);
    rows[2].mask.push_back(1);
  }
  expect_equal_however_cut(rows);
}

TEST(TrainStep, pain_P037_one_target_beside_many) {
  std::vector<testing::ToyRow> rows(4);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int t = 0; t < 100; ++t) {
      rows[i].ids.push_back((t * 7 + static_cast<int>(i)) % 120);
      rows[i].mask.push_back(t > 0 && (i == 0 ? t == 99 : true) ? 1 : 0);
    }
  }
  expect_equal_however_cut(rows);
}

TEST(TrainStep, non_finite_gradient_leaves_the_parameters) {
  const std::string root = galley::testing::scratch_directory("nan");
  model::testing::write_toy_folder(root + "/m", model::testing::toy_config_json());
  testing::write_token_file(root + "/t.bin", {testing::toy_rows(3, 120, 2)}, testing::toy_inputs());
  const text::TokenFile tokens = text::TokenFile::open(root + "/t.bin");
  const auto linears = model::adapted_linears(model::read_model_config(root + "/m"), {.rank = 4});
  std::vector<float> values = model::initial_adapter(linears, model::LoraInit::kDefault, 1);
  values.back() = std::numeric_limits<float>::infinity();
  Bench bench(root + "/m", linears, values, 64);
  const std::vector<uint32_t> rows = {0, 1, 2};
  const auto batches = micro_batches(tokens, rows, {}, 64);
  // At the first step nothing of ours can have spoilt the numbers: the weights are to blame.
  for (const auto& [step, remedy] :
       {std::pair(1, "model's weights"), std::pair(2, "smaller learning rate")}) {
    try {
      train_step(*bench.network, *bench.ops.optimizer, batches, {}, step, 0.1, [](size_t) {});
      ADD_FAILURE() << "step " << step << " passes";
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kNumerics);
      EXPECT_NE(std::string(error.what()).find(remedy), std::string::npos) << error.what();
    }
  }
  const auto after = bench.host(bench.network->parameters());
  EXPECT_EQ(std::memcmp(after.data(), values.data(), 4 * values.size()), 0);
}

Json read_json(const std::string& path) {
  return parse_json_or_throw(read_file(path), path, Reason::kInternal);
}

TEST(TrainStep, reference_trainer_run) {
  GALLEY_NEED_REFERENCE(folder, "peft/trainer_run");
  GALLEY_NEED_REFERENCE(root, ".");
  const Json settings = read_json(folder + "/config.json");
  const Json& arguments = settings.at("arguments");
  const std::string base = path_join(root, settings.at("base_model").as_string());
  const auto config = model::read_model_config(base);
  const model::Adapter initial = model::read_adapter(folder + "/adapter_init", config);
  Bench bench(base, initial.linears, initial.values, 256);
  const Json rows_json = read_json(folder + "/rows.json");
  const auto& rows = rows_json.at("rows").as_array();
  const OptimizerSettings optimizer{
      arguments.at("adam_beta1").as_double(), arguments.at("adam_beta2").as_double(),
      arguments.at("adam_epsilon").as_double(), arguments.at("weight_decay").as_double(),
      arguments.at("max_grad_norm").as_double()};
  const auto per_micro = static_cast<size_t>(arguments.at("per_device_train_batch_size").as_int());
  const auto accumulation =
      static_cast<size_t>(arguments.at("gradient_accumulation_steps").as_int());
  const Json steps_json = read_json(folder + "/steps.json");
  const auto& steps = steps_json.at("own_loop").as_array();
  const DataOrder order({{rows.size(), 1}}, static_cast<int64_t>(per_micro * accumulation), 0);
  EXPECT_EQ(order.total_steps(arguments.at("num_train_epochs").as_double(), -1),
            static_cast<int64_t>(steps.size()));
  ASSERT_EQ(arguments.at("lr_scheduler_type").as_string(), "cosine");
  const Schedule schedule{model::ScheduleKind::kCosine, arguments.at("learning_rate").as_double(),
                          arguments.at("warmup_steps").as_int(),
                          static_cast<int64_t>(steps.size())};
  galley::testing::CaseCount count("steps of transformers' Trainer");
  for (size_t k = 0; k < steps.size(); ++k) {
    const auto step = static_cast<int64_t>(k) + 1;
    const auto begin = static_cast<size_t>(order.position(step).index);
    std::vector<MicroBatch> batches;
    for (size_t i = begin; i < std::min(rows.size(), begin + per_micro * accumulation);
         i += per_micro) {
      std::vector<const Json*> micro;
      for (size_t j = i; j < std::min(rows.size(), i + per_micro); ++j) micro.push_back(&rows[j]);
      batches.push_back(batch_of(micro));
    }
    const StepOutcome outcome = train_step(*bench.network, *bench.ops.optimizer, batches, optimizer,
                                           step, schedule.at(step), [](size_t) {});
    const Json& expected = steps[k];
    EXPECT_EQ(outcome.num_targets, expected.at("targets").as_int());
    EXPECT_NEAR(outcome.loss, expected.at("loss").as_double(), 2e-5) << step;
    EXPECT_NEAR(outcome.gradient_norm, expected.at("grad_norm").as_double(),
                5e-5 * expected.at("grad_norm").as_double())
        << step;
    EXPECT_NEAR(schedule.at(step), expected.at("learning_rate").as_double(), 1e-15) << step;
    count.pass();
  }
  const model::Adapter final_adapter = model::read_adapter(folder + "/adapter_final", config);
  const auto trained = bench.host(bench.network->parameters());
  double error = 0, moved = 0;
  for (size_t i = 0; i < trained.size(); ++i) {
    error += std::pow(double{trained[i]} - final_adapter.values[i], 2);
    moved += std::pow(double{final_adapter.values[i]} - initial.values[i], 2);
  }
  EXPECT_LT(std::sqrt(error / moved), 1e-3);
}

/// One run of peft/optim/adamw: three tensors, `no_decay` ones updated apart.
void check_adamw_run(const std::string& folder, const Json& run, const std::string& name,
                     const Json& config) {
  const auto inputs = model::SafetensorsFile::open(folder + "/inputs.safetensors");
  const auto expected = model::SafetensorsFile::open(folder + "/" + name + ".safetensors");
  const auto device = device::HostDevice::create({.capacity_bytes = uint64_t{16} << 20});
  const auto stream = device->create_stream();
  const device::OpSet ops = device->all_ops(*stream);
  struct Tensor {
    std::string name;
    bool decay = true;
    std::vector<float> w, m, v, g;
  };
  std::vector<Tensor> tensors;
  for (const auto& [key, shape] : config.at("tensors").as_object()) {
    Tensor tensor{.name = key};
    for (const Json& one : config.at("no_decay").as_array()) tensor.decay &= one.as_string() != key;
    tensor.w = inputs.find("init." + key)->to_f32();
    tensor.m.assign(tensor.w.size(), 0);
    tensor.v.assign(tensor.w.size(), 0);
    tensors.push_back(tensor);
  }
  const double clip = run.get_double("max_grad_norm", 0);
  for (int64_t step = 1; step <= config.at("steps").as_int(); ++step) {
    double squares = 0;
    for (Tensor& tensor : tensors) {
      tensor.g = inputs.find("grad" + std::to_string(step) + "." + tensor.name)->to_f32();
      squares +=
          ops.optimizer->sum_of_squares(tensor.g.data(), static_cast<int64_t>(tensor.g.size()));
    }
    const double norm = std::sqrt(squares);
    const double given =
        run.at("grad_norm_before_clipping").as_array()[static_cast<size_t>(step - 1)].as_double();
    EXPECT_NEAR(norm, given, 1e-6 * (1 + given));
    for (Tensor& tensor : tensors) {
      const device::AdamWStep update{
          .learning_rate = run.at("lr").as_double(),
          .beta1 = run.at("beta1").as_double(),
          .beta2 = run.at("beta2").as_double(),
          .epsilon = run.at("eps").as_double(),
          .weight_decay = tensor.decay ? run.at("weight_decay").as_double() : 0,
          .step = step,
          .gradient_scale =
              static_cast<float>(clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1.0)};
      ops.optimizer->adamw(tensor.w.data(), tensor.g.data(), tensor.m.data(), tensor.v.data(),
                           static_cast<int64_t>(tensor.w.size()), update);
      const auto want = expected.find("step" + std::to_string(step) + "." + tensor.name)->to_f32();
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(tensor.w[i], want[i], 5e-6) << name << step;
    }
  }
}

TEST(TrainStep, reference_adamw) {
  GALLEY_NEED_REFERENCE(folder, "peft/optim/adamw");
  const Json config = read_json(folder + "/config.json");
  galley::testing::CaseCount count("AdamW runs");
  for (const auto& [name, run] : config.at("runs").as_object()) {
    check_adamw_run(folder, run, name, config);
    count.pass();
  }
}

}  // namespace
}  // namespace galley::trainer
