#include "launcher/job_key_hints.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "engine/core/strings.h"
#include "launcher/job_options.h"

namespace galley::launcher {
namespace {

struct Synonym {
  std::string_view name;  // last part of the key, in lower case, with '_' for '-'
  std::string_view key;   // of train_options()
};

constexpr Synonym kSynonyms[] = {
    {"lr", "optimizer.learning_rate"},
    {"optim", "optimizer.name"},
    {"eps", "optimizer.epsilon"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"adam_epsilon", "optimizer.epsilon"},
    {"wd", "optimizer.weight_decay"},
    {"grad_clip", "optimizer.clip_norm"},
    {"max_grad_norm", "optimizer.clip_norm"},
    {"gradient_clipping", "optimizer.clip_norm"},
    {"r", "adapter.rank"},
    {"lora_r", "adapter.rank"},
    {"lora_rank", "adapter.rank"},
    {"lora_alpha", "adapter.alpha"},
    {"lora_dropout", "adapter.dropout"},
    {"target_modules", "adapter.targets"},
    {"lora_target_modules", "adapter.targets"},
    {"layers_to_transform", "adapter.layers"},
    {"use_rslora", "adapter.rslora"},
    {"init_lora_weights", "adapter.init"},
    {"num_epochs", "length.epochs"},
    {"num_train_epochs", "length.epochs"},
    {"epoch", "length.epochs"},
    {"max_steps", "length.steps"},
    {"num_steps", "length.steps"},
    {"iterations", "length.steps"},
    {"iters", "length.steps"},
    {"batch_size", "batch.global"},
    {"global_batch", "batch.global"},
    {"global_batch_size", "batch.global"},
    {"train_batch_size", "batch.global"},
    {"per_device_train_batch_size", "batch.global"},
    {"size", "batch.global"},
    {"max_length", "batch.sequence"},
    {"max_seq_len", "batch.sequence"},
    {"max_seq_length", "batch.sequence"},
    {"sequence_len", "batch.sequence"},
    {"sequence_length", "batch.sequence"},
    {"seq_len", "batch.sequence"},
    {"cutoff_len", "batch.sequence"},
    {"context_length", "batch.sequence"},
    {"micro_batch_size", "plan.micro_batch_tokens"},
    {"gradient_checkpointing", "plan.recompute"},
    {"lr_scheduler", "schedule.name"},
    {"lr_scheduler_type", "schedule.name"},
    {"scheduler", "schedule.name"},
    {"warmup_steps", "schedule.warmup"},
    {"warmup_ratio", "schedule.warmup"},
    {"base_model", "model"},
    {"model_name", "model"},
    {"model_path", "model"},
    {"model_name_or_path", "model"},
    {"dataset", "data"},
    {"datasets", "data"},
    {"data_path", "data"},
    {"train_file", "data"},
    {"path", "data"},
    {"job", "name"},
    {"job_name", "name"},
    {"random_seed", "seed"},
    {"dtype", "precision"},
    {"torch_dtype", "precision"},
    {"bf16", "precision"},
    {"fp16", "precision"},
    {"gpu", "plan.gpu_type"},
    {"tp_size", "plan.tp"},
    {"tensor_parallel", "plan.tp"},
    {"tensor_parallel_size", "plan.tp"},
    {"tensor_model_parallel_size", "plan.tp"},
    {"pp_size", "plan.pp"},
    {"pipeline_parallel", "plan.pp"},
    {"pipeline_parallel_size", "plan.pp"},
    {"pipeline_model_parallel_size", "plan.pp"},
    {"dp_size", "plan.dp"},
    {"data_parallel", "plan.dp"},
    {"data_parallel_size", "plan.dp"},
    {"num_replicas", "plan.dp"},
    {"layers_per_stage", "plan.stage_layers"},
    {"pipeline_layers", "plan.stage_layers"},
    {"mixed_precision", "precision"},
    {"kernel", "plan.kernels"},
    {"instruction_set", "plan.kernels"},
    {"train_on_inputs", "loss"},
};

/// Keys of [run], and what needs no key at all.
constexpr Synonym kElsewhere[] = {
    {"checkpoint", "it belongs in [run]: checkpoint = { every = \"10min\", keep = 2 }"},
    {"save_steps", "write checkpoint = { every = \"10min\" } in [run]"},
    {"save_total_limit", "write checkpoint = { keep = ... } in [run]"},
    {"wall_time", "it belongs in [run]"},
    {"directory", "it belongs in [run]"},
    {"output_dir", "write directory = ... in [run]; the job's folder in it has the job's name"},
    {"num_gpus", "galley chooses how many GPUs a job gets; pins are plan = { tp, pp, dp }"},
    {"gpus", "galley chooses how many GPUs a job gets; pins are plan = { tp, pp, dp }"},
    {"gradient_accumulation_steps",
     "batch = { global = ... } is the rows of a whole step; galley splits it to fit by itself"},
};

std::string_view last_part(std::string_view key) {
  const size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? key : key.substr(dot + 1);
}

std::string how_to_write(std::string_view key) {
  const size_t dot = key.find('.');
  return dot == std::string_view::npos
             ? cat("; write ", key, " = ...")
             : cat("; write ", key.substr(0, dot), " = { ", key.substr(dot + 1), " = ... }");
}

std::string normalised(std::string_view name) {
  std::string out = to_lower(name);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

/// Names that the table holding the unknown key could have.
std::vector<std::string> names_beside(const std::string& group) {
  std::vector<std::string> names;
  for (const TrainOption& option : train_options()) {
    const std::string key(option.key);
    if (group.empty() ? key.find('.') == std::string::npos : key.rfind(group + ".", 0) == 0) {
      names.emplace_back(last_part(key));
    }
  }
  if (group.empty()) {
    for (const std::string& name : option_groups()) names.push_back(name);
  }
  return names;
}

}  // namespace

std::string unknown_key_hint(const std::string& written) {
  const std::string name = normalised(last_part(written));
  for (const Synonym& synonym : kSynonyms) {
    if (synonym.name == name) return how_to_write(synonym.key);
  }
  for (const Synonym& elsewhere : kElsewhere) {
    if (elsewhere.name == name) return cat("; ", elsewhere.key);
  }
  // "name" is the last part of several keys and says nothing.
  std::vector<std::string> last_parts;
  for (const TrainOption& option : train_options()) {
    if (name == "name") break;
    if (last_part(option.key) == name) return how_to_write(option.key);
    last_parts.emplace_back(last_part(option.key));
  }
  const size_t dot = written.rfind('.');
  const std::string group = dot == std::string::npos ? "" : written.substr(0, dot);
  const std::string beside = did_you_mean(last_part(written), names_beside(group));
  if (!beside.empty()) return beside;
  const std::string nearest = nearest_name(name, last_parts);
  for (const TrainOption& option : train_options()) {
    if (!nearest.empty() && last_part(option.key) == nearest) return how_to_write(option.key);
  }
  return "";
}

}  // namespace galley::launcher
