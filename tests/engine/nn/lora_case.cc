#include "tests/engine/nn/lora_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/core/error.h"
#include "engine/core/file.h"

namespace galley::testing {
namespace {

Json read_json(const std::string& path) {
  return parse_json_or_throw(read_file(path), path, Reason::kBadData);
}

double scheduled_rate(const LoraCase& lora, int64_t step) {
  const auto s = static_cast<double>(step - 1);
  const auto warmup = static_cast<double>(lora.warmup_steps);
  const auto total = static_cast<double>(lora.total_steps);
  if (s < warmup) return lora.learning_rate * s / warmup;
  if (lora.schedule == "cosine") {
    return lora.learning_rate * (1 + std::cos(M_PI * (s - warmup) / (total - warmup))) / 2;
  }
  if (lora.schedule == "linear") return lora.learning_rate * (total - s) / (total - warmup);
  EXPECT_EQ(lora.schedule.substr(0, 8), "constant");
  return lora.learning_rate;
}

}  // namespace

LoadedModel::LoadedModel(const std::string& folder, const LoadOptions& options)
    : config(model::read_model_config(folder)),
      stored(model::ModelWeights::open(folder, config)),
      rig(options.threads, options.kernels) {
  weights =
      nn::BaseWeights::load(*rig.device, *rig.stream, *rig.ops.linear, config, stored,
                            options.dtype.value_or(nn::default_weight_dtype(config.stored_dtype)));
}

bool LoadedModel::rounds() const {
  return device::kernel_set_rounds(rig.device->kernels()) && weights->dtype() == DType::kBf16;
}

std::vector<float> logits_of(LoadedModel& loaded, const std::vector<int32_t>& ids,
                             const model::Adapter* adapter, int64_t last, int64_t chunk) {
  const auto length = static_cast<int64_t>(ids.size());
  if (last < 0) last = length;
  if (chunk < 0) chunk = length;
  std::vector<model::Adapter> adapters;
  if (adapter != nullptr) adapters.push_back(*adapter);
  const auto network = nn::InferenceNetwork::create(
      *loaded.rig.device, *loaded.rig.stream, loaded.rig.ops, loaded.config, *loaded.weights,
      {.max_tokens = chunk, .num_slots = 1, .max_positions = length, .max_logit_rows = 16},
      adapters);
  const auto vocab = static_cast<size_t>(loaded.config.vocab_size);
  std::vector<float> logits(static_cast<size_t>(last) * vocab);
  size_t filled = 0;
  for (int64_t begin = 0; begin < length; begin += chunk) {
    const int64_t count = std::min(chunk, length - begin);
    nn::StepPlan step;
    step.ids.assign(ids.begin() + begin, ids.begin() + begin + count);
    step.segments.push_back({.kind = nn::SegmentKind::kPrefill,
                             .num_tokens = count,
                             .position = begin,
                             .adapter = adapter == nullptr ? -1 : 0});
    for (int64_t i = 0; i < count; ++i) {
      if (begin + i >= length - last) step.target_rows.push_back(static_cast<int32_t>(i));
    }
    network->run(step, logits.data() + filled * vocab);
    filled += step.target_rows.size();
  }
  return logits;
}

std::vector<int32_t> ids_of(const Json& list) {
  std::vector<int32_t> ids;
  for (const Json& id : list.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

nn::StepPlan step_of(const MicroBatch& rows) {
  nn::StepPlan step;
  for (const LabelledRow& row : rows) {
    const auto first = static_cast<int64_t>(step.ids.size());
    step.segments.push_back({.kind = nn::SegmentKind::kTrain,
                             .row = first,
                             .num_tokens = static_cast<int64_t>(row.ids.size())});
    step.ids.insert(step.ids.end(), row.ids.begin(), row.ids.end());
    for (size_t t = 1; t < row.ids.size(); ++t) {
      if (row.labels[t] < 0) continue;
      step.target_rows.push_back(static_cast<int32_t>(first + static_cast<int64_t>(t) - 1));
      step.targets.push_back(row.labels[t]);
    }
  }
  return step;
}

int64_t num_targets(const GlobalBatch& batch) {
  int64_t count = 0;
  for (const MicroBatch& micro : batch)
    count += static_cast<int64_t>(step_of(micro).targets.size());
  return count;
}

LoraCase read_toy_case(const std::string& folder) {
  LoraCase lora;
  const Json config = read_json(path_join(folder, "config.json"));
  const Json& optimizer = config.at("optimizer");
  lora.learning_rate = optimizer.at("lr").as_double();
  lora.beta1 = optimizer.get_double("beta1", 0.9);
  lora.beta2 = optimizer.get_double("beta2", 0.999);
  lora.epsilon = optimizer.get_double("eps", 1e-8);
  lora.weight_decay = optimizer.get_double("weight_decay");
  lora.clip_norm = config.get_double("max_grad_norm");
  GlobalBatch& batch = lora.batches.emplace_back();
  const Json batches = read_json(path_join(folder, "batches.json"));
  for (const Json& micro : batches.at("micro_batches").as_array()) {
    MicroBatch& rows = batch.emplace_back();
    for (const Json& row : micro.as_array()) {
      rows.push_back({ids_of(row.at("input_ids")), ids_of(row.at("labels"))});
    }
  }
  lora.total_steps = config.at("steps").as_int();
  lora.order.assign(static_cast<size_t>(lora.total_steps), 0);
  return lora;
}

LoraCase read_smollm2_case(const std::string& folder) {
  LoraCase lora;
  const Json config = read_json(path_join(folder, "config.json"));
  const Json& optimizer = config.at("optimizer");
  lora.learning_rate = optimizer.at("lr").as_double();
  lora.beta1 = optimizer.at("betas").as_array()[0].as_double();
  lora.beta2 = optimizer.at("betas").as_array()[1].as_double();
  lora.epsilon = optimizer.at("eps").as_double();
  lora.weight_decay = optimizer.at("weight_decay").as_double();
  lora.clip_norm = config.get_double("max_grad_norm");
  lora.schedule = config.at("schedule").at("name").as_string();
  lora.warmup_steps = config.at("schedule").at("warmup_steps").as_int();
  lora.total_steps = config.at("schedule").at("total_steps").as_int();
  const Json batches = read_json(path_join(folder, "batches.json"));
  for (const Json& index : batches.at("order").as_array()) {
    lora.order.push_back(static_cast<size_t>(index.as_int()));
  }
  for (const Json& global : batches.at("batches").as_array()) {
    GlobalBatch& batch = lora.batches.emplace_back();
    for (const Json& micro : global.as_array()) {
      MicroBatch& rows = batch.emplace_back();
      for (size_t i = 0; i < micro.at("lengths").as_array().size(); ++i) {
        const auto length = static_cast<size_t>(micro.at("lengths").as_array()[i].as_int());
        LabelledRow row{ids_of(micro.at("input_ids").as_array()[i]),
                        ids_of(micro.at("labels").as_array()[i])};
        row.ids.resize(length);  // drops the padding
        row.labels.resize(length);
        rows.push_back(std::move(row));
      }
    }
  }
  return lora;
}

LoraRun run_case(LoadedModel& loaded, const LoraCase& lora, const model::Adapter& adapter,
                 const std::function<void(model::MemorySettings*)>& change) {
  model::MemorySettings settings;
  settings.linears = adapter.linears;
  settings.weight_dtype = loaded.weights->dtype();
  for (const GlobalBatch& batch : lora.batches) {
    for (const MicroBatch& micro : batch) {
      const nn::StepPlan step = step_of(micro);
      const auto tokens = static_cast<int64_t>(step.ids.size());
      settings.micro_batch_tokens = std::max(settings.micro_batch_tokens, tokens);
      settings.micro_batch_rows =
          std::max(settings.micro_batch_rows, static_cast<int64_t>(step.segments.size()));
      for (const nn::Segment& segment : step.segments) {
        settings.max_position = std::max(settings.max_position, segment.num_tokens);
      }
    }
  }
  if (change) change(&settings);
  const auto network =
      nn::TrainNetwork::create(*loaded.rig.device, *loaded.rig.stream, loaded.rig.ops,
                               loaded.config, *loaded.weights, settings, 0, 0);
  const auto count = static_cast<int64_t>(network->num_trainable());
  std::memcpy(network->parameters(), adapter.values.data(), adapter.values.size() * sizeof(float));
  device::OptimizerOps& optimizer = *loaded.rig.ops.optimizer;
  LoraRun run;
  for (size_t s = 0; s < lora.order.size(); ++s) {
    const GlobalBatch& batch = lora.batches[lora.order[s]];
    const auto targets = static_cast<double>(num_targets(batch));
    network->zero_gradients();
    double sum = 0;
    for (const MicroBatch& micro : batch)
      sum += network->forward_backward(step_of(micro), 1 / targets);
    if (s == 0) run.first_gradients.assign(network->gradients(), network->gradients() + count);
    const double norm = std::sqrt(optimizer.sum_of_squares(network->gradients(), count));
    run.steps.push_back({sum / targets, norm});
    device::AdamWStep step;
    step.step = static_cast<int64_t>(s) + 1;
    step.learning_rate = scheduled_rate(lora, step.step);
    step.beta1 = lora.beta1;
    step.beta2 = lora.beta2;
    step.epsilon = lora.epsilon;
    step.weight_decay = lora.weight_decay;
    if (lora.clip_norm > 0 && norm > lora.clip_norm) {
      step.gradient_scale = static_cast<float>(lora.clip_norm / (norm + 1e-6));
    }
    optimizer.adamw(network->parameters(), network->gradients(), network->first_moments(),
                    network->second_moments(), count, step);
  }
  run.final_values.assign(network->parameters(), network->parameters() + count);
  if (lora.order.size() < static_cast<size_t>(lora.total_steps)) return run;
  const GlobalBatch& first = lora.batches[lora.order[0]];
  for (const MicroBatch& micro : first) run.loss_after += network->loss_only(step_of(micro));
  run.loss_after /= static_cast<double>(num_targets(first));
  return run;
}

Difference difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  Difference result;
  const size_t count = std::min(a.size(), b.size());
  for (size_t i = 0; i < count; ++i) {
    const double gap = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(gap <= std::numeric_limits<double>::max())) return {gap, gap};
    result.largest = std::max(result.largest, gap);
    result.mean += gap / static_cast<double>(count);
  }
  return result;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  return difference(a, b).largest;
}

}  // namespace galley::testing
