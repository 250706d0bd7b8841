#include "engine/model/model_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>
#include <variant>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "engine/model/weights.h"
#include "tests/engine/model/toy_folder.h"
#include "tests/support/reference.h"

namespace galley::model {
namespace {

using testing::toy_config_json;

Json with(const std::string& key, Json value) {
  return toy_config_json().set(key, std::move(value));
}

/// Reason and text of the refusal of a config; kOk when it is taken.
std::pair<Reason, std::string> refusal(const Json& json) {
  try {
    parse_model_config(json, "toy/config.json");
    return {Reason::kOk, ""};
  } catch (const Error& error) {
    return {error.reason(), error.what()};
  }
}

TEST(ModelConfig, reads_old_and_new_keys) {
  const ModelConfig old = parse_model_config(toy_config_json(), "toy");
  EXPECT_EQ(old.head_dim, 8);
  EXPECT_EQ(old.q_width(), 32);
  EXPECT_EQ(old.kv_width(), 16);
  EXPECT_EQ(old.eos_ids, std::vector<int64_t>{2});
  EXPECT_EQ(old.stored_dtype, DType::kF32);
  Json json = toy_config_json();
  json.set("rope_theta", nullptr)
      .set("dtype", "bfloat16")
      .set("eos_token_id", Json(Json::Array{Json(2), Json(5)}))
      .set("rope_parameters", parse_json_or_throw(R"({"rope_type": "llama3", "rope_theta": 5e5,
          "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
          "original_max_position_embeddings": 64})",
                                                  "x", Reason::kInternal));
  const ModelConfig newer = parse_model_config(json, "toy");
  EXPECT_EQ(newer.rope.kind, RopeKind::kLlama3);
  EXPECT_EQ(newer.rope.theta, 5e5);
  EXPECT_EQ(newer.rope.original_max_position, 64);
  EXPECT_EQ(newer.stored_dtype, DType::kBf16);
  EXPECT_EQ(newer.eos_ids, (std::vector<int64_t>{2, 5}));
}

TEST(ModelConfig, both_spellings_of_the_scaling_type) {
  for (const char* key : {"type", "rope_type"}) {
    Json scaling = Json::object();
    scaling.set(key, "linear").set("factor", 4.0);
    const ModelConfig config = parse_model_config(with("rope_scaling", scaling), "toy");
    EXPECT_EQ(config.rope.kind, RopeKind::kLinear);
    EXPECT_EQ(config.rope.factor, 4.0);
  }
}

TEST(ModelConfig, refuses_by_name) {
  Json dynamic = Json::object();
  dynamic.set("rope_type", "dynamic").set("factor", 4.0);
  Json by_layer = Json::object();
  by_layer.set("full_attention", Json::object().set("rope_type", "default"));
  const struct {
    Json json;
    const char* named;
  } cases[] = {
      {with("architectures", Json(Json::Array{Json("MambaForCausalLM")})), "MambaForCausalLM"},
      {with("hidden_act", "gelu"), "gelu"},
      {with("rope_scaling", dynamic), "dynamic"},
      {with("rope_parameters", by_layer), "full_attention"},
      {with("attn_logit_softcapping", 50.0), "attn_logit_softcapping"},
      {with("residual_multiplier", 0.4), "residual_multiplier"},
      {with("no_rope_layers", Json(Json::Array{Json(1), Json(0)})), "no_rope_layers"},
      {with("num_local_experts", 8), "num_local_experts"},
      {with("attention_dropout", 0.1), "attention_dropout"},
      {with("sliding_window", 16), "sliding_window"},
      {with("use_sliding_window", true), "use_sliding_window"},
      {with("use_qk_norm", true), "use_qk_norm"},
      {with("quantization_config", Json::object()), "quantization_config"},
      {with("partial_rotary_factor", 0.5), "partial_rotary_factor"},
      {with("torch_dtype", "float8_e4m3fn"), "float8_e4m3fn"}};
  for (const auto& row : cases) {
    const auto [reason, text] = refusal(row.json);
    EXPECT_EQ(reason, Reason::kUnsupported) << row.named;
    EXPECT_NE(text.find(row.named), std::string::npos) << text;
    EXPECT_NE(text.find("toy/config.json"), std::string::npos) << text;
  }
}

/// The sliding window of a config, or the reason why it is refused.
std::variant<int64_t, Reason> window_of(Json json) {
  try {
    return parse_model_config(json, "toy").sliding_window;
  } catch (const Error& error) {
    return error.reason();
  }
}
Json layer_types(const char* first, const char* second) {
  return Json(Json::Array{Json(first), Json(second)});
}

Json mistral() { return toy_config_json("MistralForCausalLM", "mistral"); }
Json qwen2() { return toy_config_json("Qwen2ForCausalLM", "qwen2"); }
Json qwen3() { return toy_config_json("Qwen3ForCausalLM", "qwen3").set("head_dim", 8); }

TEST(ModelConfig, biases_and_head_norms_of_the_families) {
  const struct {
    Json json;
    bool qkv_bias, o_bias, mlp_bias, qk_norm;
  } cases[] = {
      {toy_config_json(), false, false, false, false},
      {with("attention_bias", true), true, true, false, false},
      {with("mlp_bias", true), false, false, true, false},
      {mistral(), false, false, false, false},
      {mistral().set("attention_bias", false), false, false, false, false},
      {qwen2(), true, false, false, false},
      {qwen2().set("attention_bias", false), true, false, false, false},
      {qwen3(), false, false, false, true},
      {qwen3().set("attention_bias", true), true, true, false, true},
  };
  for (const auto& row : cases) {
    SCOPED_TRACE(row.json.dump());
    const ModelConfig config = parse_model_config(row.json, "toy");
    EXPECT_EQ(config.qkv_bias, row.qkv_bias);
    EXPECT_EQ(config.o_bias, row.o_bias);
    EXPECT_EQ(config.mlp_bias, row.mlp_bias);
    EXPECT_EQ(config.qk_norm, row.qk_norm);
    EXPECT_EQ(config.projection_has_bias(Projection::kQ), row.qkv_bias);
    EXPECT_EQ(config.projection_has_bias(Projection::kV), row.qkv_bias);
    EXPECT_EQ(config.projection_has_bias(Projection::kO), row.o_bias);
    EXPECT_EQ(config.projection_has_bias(Projection::kGate), row.mlp_bias);
    EXPECT_EQ(config.projection_has_bias(Projection::kDown), row.mlp_bias);
  }
}

TEST(ModelConfig, keys_of_other_families_are_refused_by_name) {
  const std::pair<Json, const char*> cases[] = {
      {mistral().set("attention_bias", true), "attention_bias"},
      {mistral().set("mlp_bias", true), "mlp_bias"},
      {mistral().set("use_sliding_window", true), "use_sliding_window"},
      {qwen2().set("attention_bias", true), "attention_bias"},
      {qwen2().set("mlp_bias", true), "mlp_bias"},
      {qwen2().set("use_qk_norm", true), "use_qk_norm"},
      {qwen3().set("mlp_bias", true), "mlp_bias"},
      {qwen3().set("dual_chunk_attention_config", Json::object()), "dual_chunk_attention_config"},
      {qwen3().set("num_experts", 8), "num_experts"},
      {qwen2().set("hidden_act", "gelu"), "hidden_act"},
  };
  for (const auto& [json, key] : cases) {
    const auto [reason, text] = refusal(json);
    EXPECT_EQ(reason, Reason::kUnsupported) << key;
    EXPECT_NE(text.find(key), std::string::npos) << text;
  }
  const auto [reason, text] = refusal(qwen3().set("model_type", "qwen2"));
  EXPECT_EQ(reason, Reason::kBadModel);
  EXPECT_NE(text.find("model_type"), std::string::npos) << text;
}

TEST(ModelConfig, windows_of_the_families) {
  constexpr const char* kFull = "full_attention";
  constexpr const char* kSliding = "sliding_attention";
  const auto switched = [](Json json, Json window, Json from) {
    return json.set("use_sliding_window", true)
        .set("sliding_window", std::move(window))
        .set("max_window_layers", std::move(from));
  };
  const struct {
    Json json;
    std::variant<int64_t, Reason> expected;
  } cases[] = {
      {with("sliding_window", nullptr), 0},
      {with("use_sliding_window", false), 0},
      {with("layer_types", layer_types(kFull, kFull)), 0},
      {with("layer_types", layer_types(kSliding, kSliding)), Reason::kUnsupported},
      {with("layer_types", layer_types(kFull, "chunked_attention")), Reason::kUnsupported},
      {mistral(), 4096},  // what the family's own code takes when the key is missing
      {mistral().set("sliding_window", nullptr), 0},
      {mistral().set("sliding_window", 16), 16},
      {mistral().set("sliding_window", 0), Reason::kBadModel},
      {mistral().set("sliding_window", "16"), Reason::kBadModel},
      {mistral().set("sliding_window", 16).set("layer_types", layer_types(kSliding, kSliding)), 16},
      {mistral().set("sliding_window", 16).set("layer_types", layer_types(kSliding, kFull)),
       Reason::kUnsupported},
      {mistral().set("sliding_window", 16).set("layer_types", layer_types(kFull, kFull)),
       Reason::kBadModel},
      {qwen2(), 0},
      {qwen2().set("sliding_window", 16).set("max_window_layers", 0), 0},
      {qwen2().set("sliding_window", 16).set("use_sliding_window", false), 0},
      {switched(qwen2(), 16, 0), 16},
      {switched(qwen2(), 16, 2), 0},
      {switched(qwen2(), 16, 5), 0},
      {switched(qwen2(), 16, 1), Reason::kUnsupported},
      {switched(qwen2(), nullptr, 0), 0},
      {switched(qwen2(), 16, nullptr), 0},  // from layer 28 on
      {switched(qwen2(), 16, "all"), Reason::kBadModel},
      {switched(qwen3(), 16, 0), 16},
      {switched(qwen3(), 16, 1).set("layer_types", layer_types(kSliding, kSliding)), 16},
      {switched(qwen3(), 16, 0).set("layer_types", layer_types(kFull, kFull)), 0},
      {switched(qwen3(), 16, 0).set("layer_types", layer_types(kFull, kSliding)),
       Reason::kUnsupported},
      {qwen3().set("layer_types", layer_types(kSliding, kSliding)), Reason::kBadModel},
      {qwen3().set("layer_types", Json(Json::Array{Json(kFull)})), Reason::kBadModel},
      {qwen3().set("layer_types", kFull), Reason::kBadModel},
  };
  for (const auto& row : cases) {
    EXPECT_EQ(window_of(row.json), row.expected) << row.json.dump() << refusal(row.json).second;
  }
}

TEST(ModelConfig, missing_keys_have_the_values_of_their_family) {
  const Json missing = mistral().set("num_attention_heads", 16).set("hidden_size", 64);
  Json without = Json::object();
  for (const auto& [key, value] : missing.as_object()) {
    if (key != "num_key_value_heads" && key != "max_position_embeddings") without.set(key, value);
  }
  EXPECT_EQ(parse_model_config(without, "toy").num_kv_heads, 8);
  EXPECT_EQ(parse_model_config(without, "toy").max_position, 131072);
  without.set("num_key_value_heads", nullptr);
  EXPECT_EQ(parse_model_config(without, "toy").num_kv_heads, 16);
  without.set("architectures", Json(Json::Array{Json("LlamaForCausalLM")}))
      .set("model_type", "llama");
  EXPECT_EQ(parse_model_config(without, "toy").num_kv_heads, 16);
  EXPECT_EQ(parse_model_config(qwen3().set("head_dim", nullptr), "toy").head_dim, 128);
}

/// Keys of published models (Mistral-7B-v0.1, Qwen2.5-7B-Instruct, Qwen3-0.6B) and the numbers of
/// parameters that their cards give.
TEST(ModelConfig, published_configs_are_read) {
  const auto read = [](const char* text) {
    return parse_model_config(parse_json_or_throw(text, "x", Reason::kInternal), "published");
  };
  const ModelConfig mistral_7b = read(R"({"architectures": ["MistralForCausalLM"],
      "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
      "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
      "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
      "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
      "sliding_window": 4096, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000})");
  EXPECT_EQ(mistral_7b.num_parameters(), 7241732096);
  EXPECT_EQ(mistral_7b.sliding_window, 4096);
  const ModelConfig qwen25_7b = read(R"({"architectures": ["Qwen2ForCausalLM"],
      "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
      "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02,
      "intermediate_size": 18944, "max_position_embeddings": 32768, "max_window_layers": 28,
      "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
      "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
      "sliding_window": 131072, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "use_cache": true, "use_mrope": false, "use_sliding_window": false,
      "vocab_size": 152064})");
  EXPECT_EQ(qwen25_7b.num_parameters(), 7615616512);
  EXPECT_EQ(qwen25_7b.sliding_window, 0);
  const ModelConfig qwen3_06b = read(R"({"architectures": ["Qwen3ForCausalLM"],
      "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
      "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
      "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960,
      "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16,
      "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
      "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
      "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true,
      "use_sliding_window": false, "vocab_size": 151936})");
  EXPECT_EQ(qwen3_06b.num_parameters(), 596049920);
  EXPECT_EQ(qwen3_06b.q_width(), 2048);
}

TEST(ModelConfig, yarn_reads_its_keys) {
  const auto rope = [](const char* text) {
    const Json json = parse_json_or_throw(text, "x", Reason::kInternal);
    return parse_model_config(qwen2().set("rope_scaling", json), "toy").rope;
  };
  const RopeConfig plain = rope(R"({"type": "yarn", "factor": 4.0,
      "original_max_position_embeddings": 32768})");
  EXPECT_EQ(plain.kind, RopeKind::kYarn);
  EXPECT_EQ(plain.original_max_position, 32768);
  EXPECT_EQ(plain.beta_fast, 32);
  EXPECT_EQ(plain.beta_slow, 1);
  EXPECT_DOUBLE_EQ(plain.magnitude, 0.1 * std::log(4.0) + 1);
  const RopeConfig given = rope(R"({"rope_type": "yarn", "factor": 8, "attention_factor": 1.5,
      "beta_fast": 16, "beta_slow": 2, "truncate": false})");
  EXPECT_EQ(given.original_max_position, 256);  // max_position_embeddings
  EXPECT_EQ(given.magnitude, 1.5);
  EXPECT_EQ(given.beta_fast, 16);
  EXPECT_FALSE(given.round_bounds);
  const RopeConfig two = rope(R"({"rope_type": "yarn", "factor": 8, "mscale": 2.0,
      "mscale_all_dim": 1.0})");
  EXPECT_DOUBLE_EQ(two.magnitude, (0.2 * std::log(8.0) + 1) / (0.1 * std::log(8.0) + 1));
  EXPECT_EQ(refusal(with("rope_scaling", Json::object().set("type", "yarn"))).first,
            Reason::kBadModel);
  const Json other = Json::object().set("type", "yarn").set("factor", 4).set("attn_factor", 0.9);
  EXPECT_EQ(refusal(with("rope_scaling", other)).first, Reason::kUnsupported);
}

TEST(ModelConfig, nonsense_is_named_with_its_key) {
  const struct {
    const char* key;
    Json value;
  } cases[] = {{"hidden_size", 0},
               {"hidden_size", -4},
               {"hidden_size", "32"},
               {"hidden_size", 32.5},
               {"hidden_size", nullptr},
               {"hidden_size", int64_t{1} << 40},
               {"vocab_size", -1},
               {"num_hidden_layers", 0},
               {"num_hidden_layers", 1000000},
               {"num_key_value_heads", 3},
               {"num_attention_heads", 5},
               {"intermediate_size", true},
               {"rms_norm_eps", 0},
               {"rms_norm_eps", "small"},
               {"rope_theta", -1.0},
               {"tie_word_embeddings", "yes"},
               {"head_dim", 7},
               {"eos_token_id", "</s>"},
               {"architectures", 3},
               {"rope_scaling", "linear"}};
  for (const auto& row : cases) {
    const auto [reason, text] = refusal(with(row.key, row.value));
    EXPECT_EQ(reason, Reason::kBadModel) << row.key << " " << row.value.dump();
    const bool names_key = text.find(row.key) != std::string::npos ||
                           text.find("num_key_value_heads") != std::string::npos ||
                           text.find("attention heads") != std::string::npos;
    EXPECT_TRUE(names_key) << text;
  }
  EXPECT_EQ(refusal(Json::array()).first, Reason::kBadModel);
  EXPECT_EQ(refusal(Json::object()).first, Reason::kBadModel);
  Json half = Json::object();
  half.set("rope_type", "llama3").set("factor", 8.0);
  EXPECT_EQ(refusal(with("rope_scaling", half)).first, Reason::kBadModel);
  half.set("rope_type", "linear").set("factor", 0.0);
  EXPECT_EQ(refusal(with("rope_scaling", half)).first, Reason::kBadModel);
}

TEST(ModelConfig, pain_P186_unknown_model_type_is_refused_by_name) {
  Json json = with("architectures", nullptr);
  json.set("model_type", "brandnew");
  const auto [reason, text] = refusal(json);
  EXPECT_EQ(reason, Reason::kUnsupported);
  EXPECT_NE(text.find("brandnew"), std::string::npos);
  EXPECT_NE(text.find("LlamaForCausalLM"), std::string::npos);
}

TEST(ModelConfig, generation_config_decides_the_end_tokens) {
  const std::string folder = galley::testing::scratch_directory("config");
  write_file_atomically(folder + "/config.json", toy_config_json().dump());
  EXPECT_EQ(read_model_config(folder).eos_ids, std::vector<int64_t>{2});
  write_file_atomically(folder + "/generation_config.json", R"({"eos_token_id": [7, 9]})");
  EXPECT_EQ(read_model_config(folder).eos_ids, (std::vector<int64_t>{7, 9}));
  EXPECT_EQ(read_model_config(folder + "/").name, path_name(folder));
}

TEST(ModelConfig, missing_folder_and_broken_text) {
  const std::string folder = galley::testing::scratch_directory("config");
  const auto reason_of = [](const std::string& path) {
    try {
      read_model_config(path);
      return Reason::kOk;
    } catch (const Error& error) {
      return error.reason();
    }
  };
  EXPECT_EQ(reason_of(folder + "/nothing"), Reason::kMissingPath);
  EXPECT_EQ(reason_of(folder), Reason::kMissingPath);
  const std::string text = toy_config_json().dump();
  for (size_t length = 0; length < text.size(); ++length) {
    std::ofstream(folder + "/config.json") << text.substr(0, length);
    ASSERT_EQ(reason_of(folder), Reason::kBadModel) << length;
  }
}

TEST(ModelConfig, parameters_are_counted_once_when_tied) {
  const ModelConfig untied = parse_model_config(toy_config_json(), "toy");
  const ModelConfig tied = parse_model_config(with("tie_word_embeddings", true), "toy");
  int64_t by_specs = 0;
  for (const WeightSpec& spec : weight_specs(untied)) {
    int64_t count = 1;
    for (const int64_t size : spec.shape) count *= size;
    by_specs += count;
  }
  EXPECT_EQ(untied.num_parameters(), by_specs);
  EXPECT_EQ(tied.num_parameters(), by_specs - 128 * 32);
}

TEST(ModelConfig, rope_tables_by_definition) {
  ModelConfig config = parse_model_config(toy_config_json(), "toy");
  config.rope = {.kind = RopeKind::kLinear, .theta = 10000.0, .factor = 4.0};
  std::vector<float> cos(16 * 4), sin(16 * 4);
  rope_tables(config, 16, cos.data(), sin.data());
  for (int p = 0; p < 16; ++p) {
    for (int i = 0; i < 4; ++i) {
      const double angle = p / 4.0 * std::pow(10000.0, -i / 4.0);
      EXPECT_NEAR(cos[static_cast<size_t>(p * 4 + i)], std::cos(angle), 1e-6);
      EXPECT_NEAR(sin[static_cast<size_t>(p * 4 + i)], std::sin(angle), 1e-6);
    }
  }
  // llama3: long waves are divided by the factor, short ones stay.
  config.rope = {.kind = RopeKind::kLlama3,
                 .theta = 10000.0,
                 .factor = 8.0,
                 .low_freq_factor = 1,
                 .high_freq_factor = 4,
                 .original_max_position = 32};
  rope_tables(config, 16, cos.data(), sin.data());
  EXPECT_NEAR(sin[4], std::sin(1.0), 1e-6);                             // pair 0 at position 1
  EXPECT_NEAR(sin[7], std::sin(std::pow(10000.0, -0.75) / 8.0), 1e-7);  // pair 3
}

TEST(ModelConfig, yarn_keeps_short_waves_and_stretches_long_ones) {
  ModelConfig config = parse_model_config(toy_config_json(), "toy");
  config.head_dim = 64;
  config.rope = {.kind = RopeKind::kYarn, .theta = 10000.0, .factor = 4.0, .magnitude = 1.25};
  config.rope.original_max_position = 2048;
  std::vector<float> cos(2 * 32), sin(2 * 32);
  rope_tables(config, 2, cos.data(), sin.data());
  const auto angle = [&](size_t i) { return std::atan2(sin[32 + i], cos[32 + i]); };
  const auto plain = [](double i) { return std::pow(10000.0, -i / 32); };
  EXPECT_FLOAT_EQ(cos[0], 1.25f);
  EXPECT_NEAR(angle(0), plain(0), 1e-6);        // 326 turns over the original length
  EXPECT_NEAR(angle(31), plain(31) / 4, 1e-8);  // 0.04 turns
  // 32 turns are at pair 8.07, 1 turn at pair 20.1: the ramp goes from 8 to 21.
  EXPECT_NEAR(angle(8), plain(8), 1e-6);
  EXPECT_NEAR(angle(21), plain(21) / 4, 1e-7);
  const double part = (14.0 - 8) / 13;
  EXPECT_NEAR(angle(14), plain(14) * (1 - part + part / 4), 1e-6);
}

// Toys whose architecture or RoPE scaling comes later.
const std::set<std::string> kRefusedToys = {
    "gemma2",      "gemma3_text", "gemma_1",    "granite",   "llama_rope_dynamic",
    "mixtral_moe", "olmo2",       "phi3_fused", "qwen3_moe", "smollm3"};

TEST(ModelConfig, reference_toys_open_or_are_refused_by_name) {
  GALLEY_NEED_REFERENCE(folder, "toys");
  galley::testing::CaseCount count("toys, config and weights");
  for (const std::string& name : galley::testing::list_directory(folder)) {
    const std::string toy = path_join(folder, name);
    if (!path_exists(path_join(toy, "config.json"))) continue;
    SCOPED_TRACE(name);
    try {
      const ModelConfig config = read_model_config(toy);
      std::vector<std::string> warnings;
      const ModelWeights weights = ModelWeights::open(toy, config, &warnings);
      EXPECT_TRUE(warnings.empty()) << warnings[0];
      EXPECT_EQ(weights.get({WeightRole::kEmbedding}).shape,
                (std::vector<int64_t>{config.vocab_size, config.hidden}));
      EXPECT_FALSE(kRefusedToys.contains(name)) << "is in the list of refused toys, but was taken";
      count.pass();
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kUnsupported) << error.what();
      EXPECT_TRUE(kRefusedToys.contains(name)) << error.what();
      count.refuse(name);
    }
  }
}

TEST(ModelConfig, reference_smollm2_opens) {
  GALLEY_NEED_SMOLLM2(folder);
  const ModelConfig config = read_model_config(folder);
  EXPECT_EQ(config.num_layers, 30);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_EQ(config.rope.theta, 100000.0);
  EXPECT_EQ(config.eos_ids, std::vector<int64_t>{2});
  EXPECT_EQ(config.num_parameters(), 134515008);
  const ModelWeights weights = ModelWeights::open(folder, config);
  EXPECT_EQ(weights.get({WeightRole::kProjection, 29, Projection::kDown}).dtype, DType::kBf16);
  EXPECT_EQ(weights.fingerprint().size(), 32u);
}

}  // namespace
}  // namespace galley::model
