// Generation: batches of prompts through one inference network, for `galley generate`.
//
// Sequences that end make room for the next prompt; each sequence's tokens do not depend on its
// neighbours. Owned by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/core/random.h"
#include "engine/model/model_config.h"
#include "engine/nn/network.h"

namespace galley::launcher {

struct SamplingSettings {
  double temperature = 0;  // 0: greedy, the lowest id among equals
  int64_t top_k = 0;       // 0: off
  double top_p = 1;
  uint64_t seed = 0;
};

/// Draws a token from logits [vocab]: temperature, then top-k, then top-p (in ascending order those
/// whose cumulative probability is <= 1 - p go; the best always stays).
int32_t sample_token(const float* logits, int64_t vocab, const SamplingSettings& settings,
                     Random* random);

struct GenerationRequest {
  std::vector<int32_t> prompt;  // at least one token
  int64_t max_tokens = 0;       // at most this many new ones, the end token included
};
struct GenerationLimits {
  int64_t max_positions = 0;  // prompt and answer together
  int64_t num_slots = 1;
  int64_t max_step_tokens = 512;  // prefill chunk
  int adapter = -1;               // index in the network's adapters; -1: base model
};

/// New tokens of every request, in order; `done(index, ids)` is called as each one ends.
void generate(nn::InferenceNetwork& network, const model::ModelConfig& config,
              const std::vector<GenerationRequest>& requests, const GenerationLimits& limits,
              const SamplingSettings& sampling,
              const std::function<void(size_t, const std::vector<int32_t>&)>& done);

/// Logits [vocab] after the last token of a prompt.
std::vector<float> last_logits(nn::InferenceNetwork& network, const model::ModelConfig& config,
                               const std::vector<int32_t>& prompt, const GenerationLimits& limits);

}  // namespace galley::launcher
