#include "launcher/generation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/core/error.h"

namespace galley::launcher {
namespace {

struct Sequence {
  size_t request = 0;
  int64_t slot = 0;
  std::vector<int32_t> answer;
  Random random{0, 0};
};

bool is_end(const model::ModelConfig& config, int32_t id) {
  return std::find(config.eos_ids.begin(), config.eos_ids.end(), id) != config.eos_ids.end();
}

nn::Segment segment(nn::SegmentKind kind, int64_t row, int64_t count, int64_t position,
                    int64_t slot, int adapter) {
  nn::Segment out;
  out.kind = kind;
  out.row = row;
  out.num_tokens = count;
  out.position = position;
  out.sequence_slot = slot;
  out.adapter = adapter;
  return out;
}

/// Runs a prompt in chunks; `logits` gets the last row's.
void prefill(nn::InferenceNetwork& network, const std::vector<int32_t>& prompt, int64_t slot,
             const GenerationLimits& limits, float* logits) {
  const auto length = static_cast<int64_t>(prompt.size());
  for (int64_t begin = 0; begin < length; begin += limits.max_step_tokens) {
    const int64_t count = std::min(limits.max_step_tokens, length - begin);
    nn::StepPlan step;
    step.ids.assign(prompt.begin() + begin, prompt.begin() + begin + count);
    step.segments.push_back(
        segment(nn::SegmentKind::kPrefill, 0, count, begin, slot, limits.adapter));
    if (begin + count == length) step.target_rows = {static_cast<int32_t>(count - 1)};
    network.run(step, logits);
  }
}

}  // namespace

int32_t sample_token(const float* logits, int64_t vocab, const SamplingSettings& settings,
                     Random* random) {
  if (settings.temperature <= 0) {
    return static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
  }
  std::vector<int32_t> order(static_cast<size_t>(vocab));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (settings.top_k > 0 && settings.top_k < vocab)
    order.resize(static_cast<size_t>(settings.top_k));
  std::vector<double> weights;
  double total = 0;
  for (const int32_t id : order) {
    weights.push_back(
        std::exp((static_cast<double>(logits[id]) - logits[order[0]]) / settings.temperature));
    total += weights.back();
  }
  // From the least likely up: what lies within the first 1 - p of the probability goes.
  double below = 0;
  while (weights.size() > 1 && settings.top_p < 1) {
    below += weights.back() / total;
    if (below > 1 - settings.top_p) break;
    weights.pop_back();
  }
  const double kept = std::accumulate(weights.begin(), weights.end(), 0.0);
  double at = random->uniform() * kept;
  for (size_t i = 0; i < weights.size(); ++i) {
    at -= weights[i];
    if (at < 0) return order[i];
  }
  return order[weights.size() - 1];
}

void generate(nn::InferenceNetwork& network, const model::ModelConfig& config,
              const std::vector<GenerationRequest>& requests, const GenerationLimits& limits,
              const SamplingSettings& sampling,
              const std::function<void(size_t, const std::vector<int32_t>&)>& done) {
  const auto vocab = static_cast<size_t>(config.vocab_size);
  std::vector<float> logits(static_cast<size_t>(limits.num_slots) * vocab);
  std::vector<int64_t> free_slots;
  for (int64_t slot = limits.num_slots; slot > 0; --slot) free_slots.push_back(slot - 1);
  std::vector<Sequence> active;
  size_t next = 0;

  // Appends a token; true when the sequence is complete.
  const auto append = [&](Sequence& sequence, const float* row) {
    const GenerationRequest& request = requests[sequence.request];
    sequence.answer.push_back(sample_token(row, config.vocab_size, sampling, &sequence.random));
    const auto length = static_cast<int64_t>(request.prompt.size() + sequence.answer.size());
    return is_end(config, sequence.answer.back()) ||
           static_cast<int64_t>(sequence.answer.size()) >= request.max_tokens ||
           length >= limits.max_positions;
  };
  const auto finish = [&](const Sequence& sequence) {
    free_slots.push_back(sequence.slot);
    done(sequence.request, sequence.answer);
  };
  while (next < requests.size() || !active.empty()) {
    while (next < requests.size() && !free_slots.empty()) {
      Sequence sequence;
      sequence.request = next++;
      sequence.random = Random(sampling.seed, random_stream("sample", {sequence.request}));
      const GenerationRequest& request = requests[sequence.request];
      if (request.max_tokens <= 0 ||
          static_cast<int64_t>(request.prompt.size()) >= limits.max_positions) {
        done(sequence.request, {});
        continue;
      }
      sequence.slot = free_slots.back();
      free_slots.pop_back();
      prefill(network, request.prompt, sequence.slot, limits, logits.data());
      if (append(sequence, logits.data())) {
        finish(sequence);
      } else {
        active.push_back(std::move(sequence));
      }
    }
    if (active.empty()) continue;
    nn::StepPlan step;
    for (const Sequence& sequence : active) {
      const auto row = static_cast<int64_t>(step.ids.size());
      const auto position =
          static_cast<int64_t>(requests[sequence.request].prompt.size() + sequence.answer.size()) -
          1;
      step.ids.push_back(sequence.answer.back());
      step.target_rows.push_back(static_cast<int32_t>(row));
      step.segments.push_back(
          segment(nn::SegmentKind::kDecode, row, 1, position, sequence.slot, limits.adapter));
    }
    network.run(step, logits.data());
    std::vector<Sequence> still;
    for (size_t i = 0; i < active.size(); ++i) {
      if (append(active[i], logits.data() + i * vocab)) {
        finish(active[i]);
      } else {
        still.push_back(std::move(active[i]));
      }
    }
    active = std::move(still);
  }
}

std::vector<float> last_logits(nn::InferenceNetwork& network, const model::ModelConfig& config,
                               const std::vector<int32_t>& prompt, const GenerationLimits& limits) {
  std::vector<float> logits(static_cast<size_t>(config.vocab_size));
  prefill(network, prompt, 0, limits, logits.data());
  return logits;
}

}  // namespace galley::launcher
