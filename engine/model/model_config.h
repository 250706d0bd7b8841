// ModelConfig: what config.json of a Hugging Face folder says, checked and complete.
//
// A family is a row of a table (family.cc): architecture name, weight names, what its block has.
// Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/json.h"

namespace galley::model {

enum class RopeKind { kDefault, kLinear, kLlama3, kYarn };

struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                // linear, llama3, yarn
  double low_freq_factor = 1.0;       // llama3
  double high_freq_factor = 4.0;      // llama3
  int64_t original_max_position = 0;  // llama3, yarn
  double beta_fast = 32.0;            // yarn: turns over the original length, see rope.cc
  double beta_slow = 1.0;             // yarn
  bool round_bounds = true;           // yarn: the ramp begins and ends at whole pairs
  double magnitude = 1.0;             // yarn: factor of cos and sin
};

/// The seven linears of a block, in this order everywhere.
enum class Projection : uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown };
constexpr int kNumProjections = 7;
/// "q_proj", ...
std::string_view projection_name(Projection projection);

/// Widths that decide the shapes of a block's linears; of a whole model, or of one worker's shard.
struct ProjectionWidths {
  int64_t hidden = 0, intermediate = 0, q = 0, kv = 0;
  int64_t out(Projection projection) const;
  int64_t in(Projection projection) const;
};

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM"
  std::string name;          // folder name, for people
  int64_t vocab_size = 0, hidden = 0, intermediate = 0;
  int64_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t max_position = 0;
  double rms_eps = 1e-6;
  bool tied_embeddings = false;
  bool qkv_bias = false;       // q, k, v
  bool o_bias = false;         // o
  bool mlp_bias = false;       // gate, up, down
  bool qk_norm = false;        // RMSNorm of each query and key head before rotation
  int64_t sliding_window = 0;  // a query sees itself and the window - 1 keys before it; 0: all
  RopeConfig rope;
  DType stored_dtype =
      DType::kF32;               // torch_dtype / dtype of the config; the files decide per tensor
  std::vector<int64_t> eos_ids;  // generation_config.json first, then config.json
  int64_t bos_id = -1;

  int64_t q_width() const { return num_heads * head_dim; }
  int64_t kv_width() const { return num_kv_heads * head_dim; }
  ProjectionWidths widths() const { return {hidden, intermediate, q_width(), kv_width()}; }
  int64_t projection_out(Projection projection) const { return widths().out(projection); }
  int64_t projection_in(Projection projection) const { return widths().in(projection); }
  bool projection_has_bias(Projection projection) const;
  /// Parameters of the whole model (a tied head counts once).
  int64_t num_parameters() const;
};

/// Reads DIR/config.json (and generation_config.json). kMissingPath, kBadModel for nonsense values,
/// kUnsupported naming an architecture, activation or rope scaling that this version does not have.
ModelConfig read_model_config(const std::string& model_folder);
/// The same from a parsed config; `where` names it in errors.
ModelConfig parse_model_config(const Json& config, const std::string& where);

/// Rotary tables cos and sin, each [num_positions, head_dim / 2] row-major, computed in f64 and
/// rounded once (llama3 scaling as in Llama 3.1's published code, YaRN as in its paper).
void rope_tables(const ModelConfig& config, int64_t num_positions, float* cos, float* sin);

}  // namespace galley::model
