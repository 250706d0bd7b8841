// TrainSpec: one resolved training job, every default filled in. A value with a JSON form.
//
// Made by launcher/job_file; taken by predictor, placement and trainer; stored in the run directory
// and in checkpoints. Paths are absolute.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/json.h"
#include "engine/model/lora.h"

namespace galley::model {

enum class LossKind { kAssistant, kCompletion, kAll };
enum class Truncation { kKeepStart, kKeepEnd };
enum class ScheduleKind { kConstant, kLinear, kCosine };
/// Of products with the base weights; predictor/precision.h says what each means for a model and a
/// GPU type.
enum class Precision {
  kAuto,  // as kBf16 for a model stored in bf16, else as kF32
  kF32,   // inputs are never rounded
  kBf16   // inputs may be rounded to bf16, weights are held in bf16
};
/// "auto", "f32" or "bf16"; Error(kInternal) for another name, which the caller has refused.
Precision precision_from_name(std::string_view name);
enum class Recompute { kAuto, kNone, kBlock };  // kAuto: the planner chooses

struct DataSource {
  std::string path;
  double weight = 1;
};

struct TrainSpec {
  std::string name;
  std::string model;  // folder
  std::vector<DataSource> data;
  LoraSettings lora;
  // Optimizer (AdamW).
  double learning_rate = 2e-4, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.0;
  double clip_norm = 1.0;  // 0: none
  ScheduleKind schedule = ScheduleKind::kCosine;
  int64_t warmup_steps = -1;  // -1: from warmup_fraction
  double warmup_fraction = 0.03;
  int64_t global_batch = 16;  // rows
  int64_t sequence = 2048;    // longest row in tokens
  double epochs = 3;
  int64_t max_steps = -1;  // -1: from epochs
  uint64_t seed = 0;
  Precision precision = Precision::kAuto;
  Recompute recompute = Recompute::kAuto;
  LossKind loss = LossKind::kAssistant;
  Truncation truncation = Truncation::kKeepStart;
  bool special_tokens_in_messages =
      false;                  // true: special-token strings in messages become special tokens
  std::string chat_template;  // file; empty: the model folder's
  int64_t priority = 0;
  // Pins ([train.plan]); empty or -1: galley's business.
  std::string gpu_type;
  int64_t tp = -1, pp = -1, dp = -1;  // parallel sizes
  std::vector<int64_t> stage_layers;  // layers of each stage; with pp
  bool sequence_parallel = false;     // with tp
  int64_t micro_batch_tokens = -1;
  int64_t threads = -1;  // host device threads
  std::string kernels;   // host kernel set
};

Json to_json(const TrainSpec& spec);
/// Inverse of to_json(); Error(kInternal) for a record we did not write.
TrainSpec train_spec_from_json(const Json& json);
/// Hash over everything that decides the result (not name of directory, priority or pins of place).
std::string spec_hash(const TrainSpec& spec);

}  // namespace galley::model
