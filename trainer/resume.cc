#include "trainer/resume.h"

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::trainer {
namespace {

/// Keys with different values, as "path.to.key".
void add_differences(const Json& a, const Json& b, const std::string& prefix,
                     std::vector<std::string>* names) {
  if (a.is_object() && b.is_object()) {
    for (const auto& [key, value] : a.as_object()) {
      const Json* other = b.find(key);
      add_differences(value, other == nullptr ? Json() : *other,
                      prefix.empty() ? key : prefix + "." + key, names);
    }
    for (const auto& [key, value] : b.as_object()) {
      if (!a.contains(key)) names->push_back(prefix.empty() ? key : prefix + "." + key);
    }
  } else if (!(a == b)) {
    names->push_back(prefix);
  }
}

/// Only keys that decide results: the places and wishes of a job may change between restarts.
Json result_keys(const model::TrainSpec& spec) {
  const model::TrainSpec plain;
  model::TrainSpec copy = spec;
  copy.name = plain.name;
  copy.priority = plain.priority;
  copy.gpu_type = plain.gpu_type;
  copy.micro_batch_tokens = plain.micro_batch_tokens;
  copy.threads = plain.threads;
  copy.kernels = plain.kernels;
  copy.recompute = plain.recompute;
  copy.tp = plain.tp;
  copy.pp = plain.pp;
  copy.dp = plain.dp;
  copy.stage_layers = plain.stage_layers;
  copy.sequence_parallel = plain.sequence_parallel;
  return model::to_json(copy);
}

}  // namespace

void require_same_job(const CheckpointRecord& saved, const CheckpointRecord& now,
                      const std::string& path) {
  std::vector<std::string> differences;
  if (saved.spec_hash != now.spec_hash) {
    std::vector<std::string> keys;
    add_differences(result_keys(saved.spec), result_keys(now.spec), "", &keys);
    differences.push_back(cat("the job's settings (", join(keys, ", "), ")"));
  }
  if (saved.tokens_hash != now.tokens_hash) {
    std::vector<std::string> keys;
    add_differences(saved.tokens_inputs, now.tokens_inputs, "", &keys);
    differences.push_back(cat("the training rows (", join(keys, ", "), ")"));
  }
  if (saved.model_fingerprint != now.model_fingerprint) {
    differences.push_back(cat("the weights of ", now.spec.model));
  }
  if (saved.schedule.total_steps != now.schedule.total_steps) {
    differences.push_back(cat("the number of steps (", saved.schedule.total_steps, " then, ",
                              now.schedule.total_steps, " now)"));
  }
  if (differences.empty()) return;
  throw Error(Reason::kBadCheckpoint,
              cat(path, " was made by another job; changed since: ", join(differences, "; "),
                  ". Undo the change, or start another run (--run NAME)"));
}

std::string bits_note(const CheckpointRecord& saved, const CheckpointRecord& now) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* what, const auto& then, const auto& today) {
    if (then != today) differences.push_back(cat(what, " ", then, " then, ", today, " now"));
  };
  compare("kernels", saved.kernels, now.kernels);
  compare("threads", saved.threads, now.threads);
  compare("micro batch tokens", saved.micro_batch_tokens, now.micro_batch_tokens);
  compare("weights", saved.weight_dtype, now.weight_dtype);
  compare("layout", to_text(saved.layout), to_text(now.layout));
  if (differences.empty()) compare("processor", saved.processor, now.processor);
  if (differences.empty()) return "";
  return cat("the last bits may differ from those of an uninterrupted run: ",
             join(differences, "; "));
}

}  // namespace galley::trainer
