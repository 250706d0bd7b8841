#include "engine/model/family.h"

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::model {
namespace {

constexpr WeightNames kLlamaNames = {
    .embedding = "model.embed_tokens.weight",
    .head = "lm_head.weight",
    .final_norm = "model.norm.weight",
    .layers = "model.layers.",
    .attention_norm = "input_layernorm.weight",
    .mlp_norm = "post_attention_layernorm.weight",
    .q_norm = "self_attn.q_norm.weight",
    .k_norm = "self_attn.k_norm.weight",
    .projections = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}};

constexpr Family kFamilies[] = {
    {.architecture = "LlamaForCausalLM",
     .model_type = "llama",
     .activation = "silu",
     .attention_bias = AttentionBias::kByKey,
     .has_mlp_bias_key = true,
     .names = kLlamaNames},
    {.architecture = "MistralForCausalLM",
     .model_type = "mistral",
     .activation = "silu",
     .window = WindowKeys::kWindow,
     .defaults = {.num_kv_heads = 8, .max_position = 4096 * 32, .sliding_window = 4096},
     .names = kLlamaNames},
    {.architecture = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .activation = "silu",
     .attention_bias = AttentionBias::kQkv,
     .window = WindowKeys::kSwitchWindow,
     .defaults = {.num_kv_heads = 32,
                  .max_position = 32768,
                  .sliding_window = 4096,
                  .max_window_layers = 28},
     .names = kLlamaNames},
    {.architecture = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .activation = "silu",
     .attention_bias = AttentionBias::kByKey,
     .qk_norm = true,
     .window = WindowKeys::kSwitchWindow,
     .defaults = {.num_kv_heads = 32,
                  .head_dim = 128,
                  .max_position = 32768,
                  .sliding_window = 4096,
                  .max_window_layers = 28},
     .names = kLlamaNames}};

}  // namespace

const Family* find_family(std::string_view architecture) {
  for (const Family& family : kFamilies) {
    if (family.architecture == architecture) return &family;
  }
  return nullptr;
}

const Family* find_family_by_model_type(std::string_view model_type) {
  for (const Family& family : kFamilies) {
    if (family.model_type == model_type) return &family;
  }
  return nullptr;
}

const Family& family_of(const ModelConfig& config) {
  const Family* family = find_family(config.architecture);
  GALLEY_CHECK(family != nullptr);
  return *family;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.architecture);
  return names;
}

std::string module_path(int64_t layer, Projection projection) {
  return cat(kLlamaNames.layers, layer, ".",
             kLlamaNames.projections[static_cast<size_t>(projection)]);
}

}  // namespace galley::model
