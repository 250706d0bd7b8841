#include "engine/model/adapter_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <set>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "engine/model/safetensors.h"
#include "tests/engine/model/toy_folder.h"
#include "tests/support/reference.h"

namespace galley::model {
namespace {

ModelConfig toy() { return parse_model_config(testing::toy_config_json(), "toy"); }

Adapter sample(const LoraSettings& settings = {.rank = 4, .alpha = 8}) {
  Adapter adapter;
  adapter.settings = settings;
  adapter.linears = adapted_linears(toy(), settings);
  adapter.values = initial_adapter(adapter.linears, LoraInit::kGaussian, 3);
  for (size_t i = 0; i < adapter.values.size(); i += 7) adapter.values[i] = 0.25f;
  adapter.base_model = "models/toy";
  return adapter;
}

class AdapterFile : public ::testing::Test {
 protected:
  void SetUp() override { write_adapter(folder_, sample()); }

  Json config() {
    return parse_json_or_throw(read_file(folder_ + "/adapter_config.json"), "config",
                               Reason::kInternal);
  }
  void write_config(const Json& json) {
    write_file_atomically(folder_ + "/adapter_config.json", json.dump());
  }
  /// Writes the tensors again under changed names or values.
  template <typename Change>
  void rewrite(const Change& change) {
    const SafetensorsFile file = SafetensorsFile::open(folder_ + "/adapter_model.safetensors");
    std::vector<TensorToWrite> tensors;
    for (const StoredTensor& tensor : file.tensors()) {
      TensorToWrite copy{tensor.name, tensor.dtype, tensor.shape, tensor.bytes};
      if (change(&copy)) tensors.push_back(copy);
    }
    write_safetensors(folder_ + "/adapter_model.safetensors", tensors, {});
  }
  std::pair<Reason, std::string> refusal() {
    try {
      read_adapter(folder_, toy());
      return {Reason::kOk, ""};
    } catch (const Error& error) {
      return {error.reason(), error.what()};
    }
  }

  std::string root_ = galley::testing::scratch_directory("adapter");
  std::string folder_ = root_ + "/adapter";
};

TEST_F(AdapterFile, round_trip_is_bit_equal) {
  LoraSettings settings{.rank = 4,
                        .alpha = 8.5,
                        .dropout = 0.25,
                        .rslora = true,
                        .targets = {"q_proj", "down_proj"},
                        .layers = {1}};
  settings.rank_pattern = {{"q_proj", 2}};
  settings.alpha_pattern = {{"down_proj", 3.5}};
  const Adapter adapter = sample(settings);
  write_adapter(folder_, adapter);  // over an older one
  const Adapter back = read_adapter(folder_, toy());
  EXPECT_EQ(back.settings, adapter.settings);
  EXPECT_EQ(back.base_model, adapter.base_model);
  ASSERT_EQ(back.values.size(), adapter.values.size());
  EXPECT_EQ(std::memcmp(back.values.data(), adapter.values.data(), 4 * back.values.size()), 0);
  EXPECT_EQ(galley::testing::list_directory(root_), std::vector<std::string>{"adapter"});
}

TEST_F(AdapterFile, pain_P098_keys_are_exactly_those_of_peft) {
  const SafetensorsFile file = SafetensorsFile::open(folder_ + "/adapter_model.safetensors");
  std::set<std::string> expected;
  for (int layer = 0; layer < 2; ++layer) {
    for (const char* module :
         {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
          "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      for (const char* part : {"lora_A", "lora_B"}) {
        expected.insert(
            cat("base_model.model.model.layers.", layer, ".", module, ".", part, ".weight"));
      }
    }
  }
  std::set<std::string> found;
  for (const StoredTensor& tensor : file.tensors()) found.insert(tensor.name);
  EXPECT_EQ(found, expected);
}

TEST_F(AdapterFile, pain_P095_other_prefix_is_refused_listing_keys) {
  std::vector<std::string> names;
  rewrite([&](TensorToWrite* tensor) {
    const size_t at = tensor->name.find("model.layers");
    tensor->name.replace(at, 5, "language_model.model");
    names.push_back(tensor->name);
    return true;
  });
  const auto [reason, text] = refusal();
  EXPECT_EQ(reason, Reason::kBadCheckpoint);
  EXPECT_NE(text.find("28 keys match no adapted linear"), std::string::npos) << text;
  EXPECT_NE(text.find("and 25 more"), std::string::npos) << text;
  EXPECT_NE(text.find(names[0]), std::string::npos) << text;
}

TEST_F(AdapterFile, pain_P061_keys_of_the_head_are_refused_and_never_skipped) {
  rewrite([&](TensorToWrite* tensor) {
    const size_t at = tensor->name.find("model.layers.0.self_attn.q_proj");
    if (at != std::string::npos) {
      tensor->name.replace(at, std::string("model.layers.0.self_attn.q_proj").size(), "lm_head");
    }
    return true;
  });
  const auto [reason, text] = refusal();
  EXPECT_EQ(reason, Reason::kBadCheckpoint);
  EXPECT_NE(text.find("lm_head"), std::string::npos) << text;
}

TEST_F(AdapterFile, pain_P096_an_adapter_that_changes_nothing_is_an_error) {
  rewrite([](TensorToWrite*) { return false; });
  const auto [reason, text] = refusal();
  EXPECT_EQ(reason, Reason::kBadCheckpoint);
  EXPECT_NE(text.find("nothing in it applies"), std::string::npos) << text;
}

TEST_F(AdapterFile, one_missing_or_surplus_key_is_an_error) {
  rewrite([](TensorToWrite* t) {
    return t->name.find("layers.1.mlp.up_proj.lora_B") == std::string::npos;
  });
  EXPECT_NE(refusal().second.find("1 keys are missing"), std::string::npos);
  write_config(config().set("exclude_modules", Json(Json::Array{Json("up_proj")})));
  EXPECT_NE(refusal().second.find("3 keys match no adapted linear"), std::string::npos);
}

TEST_F(AdapterFile, wrong_shapes_are_named) {
  write_config(config().set("r", 2));
  const auto [reason, text] = refusal();
  EXPECT_EQ(reason, Reason::kBadCheckpoint);
  EXPECT_NE(text.find("[4, 32]"), std::string::npos) << text;
  EXPECT_NE(text.find("[2, 32]"), std::string::npos) << text;
  EXPECT_NE(text.find("made for \"models/toy\""), std::string::npos) << text;
}

TEST_F(AdapterFile, a_file_instead_of_the_folder_is_told_what_to_do) {
  const auto told = [](const std::string& path) -> std::string {
    write_file_atomically(path, "x");
    try {
      read_adapter(path, toy());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const std::string place = galley::testing::scratch_directory("adapter-path");
  EXPECT_NE(told(place + "/checkpoint-1.h5").find("galley export"), std::string::npos);
  EXPECT_NE(told(place + "/adapter_model.safetensors").find("is a file; an adapter is a folder"),
            std::string::npos);
}

TEST_F(AdapterFile, pain_P099_rslora_is_honoured_both_ways) {
  const double plain = read_adapter(folder_, toy()).linears[0].scaling;
  write_config(config().set("use_rslora", true));
  EXPECT_DOUBLE_EQ(read_adapter(folder_, toy()).linears[0].scaling, plain * 2);
  Adapter rslora = sample({.rank = 4, .alpha = 8, .rslora = true});
  write_adapter(folder_, rslora);
  EXPECT_TRUE(config().at("use_rslora").as_bool());
}

TEST_F(AdapterFile, pain_P097_modules_to_save_is_refused_by_name) {
  write_config(config().set("modules_to_save", Json(Json::Array{Json("lm_head")})));
  EXPECT_EQ(refusal().first, Reason::kUnsupported);
  EXPECT_NE(refusal().second.find("modules_to_save"), std::string::npos);
}

TEST_F(AdapterFile, pain_P101_dora_is_refused_by_name) {
  write_config(config().set("use_dora", true));
  EXPECT_EQ(refusal().first, Reason::kUnsupported);
  EXPECT_NE(refusal().second.find("DoRA"), std::string::npos);
}

TEST_F(AdapterFile, other_features_are_refused_by_name) {
  const struct {
    const char* key;
    Json value;
    const char* named;
  } cases[] = {{"peft_type", "IA3", "IA3"},
               {"peft_type", "PREFIX_TUNING", "PREFIX_TUNING"},
               {"task_type", "SEQ_CLS", "SEQ_CLS"},
               {"bias", "all", "bias"},
               {"init_lora_weights", "pissa_niter_4", "pissa"},
               {"lora_bias", true, "lora_bias"},
               {"trainable_token_indices", Json(Json::Array{Json(3)}), "trainable_token_indices"},
               {"some_new_thing", true, "some_new_thing"},
               {"layers_pattern", "blocks", ""},
               {"target_modules", Json(Json::Array{Json("q_proj"), Json("lm_head")}), "lm_head"}};
  const Json good = config();
  for (const auto& row : cases) {
    Json json = good;
    json.set(row.key, row.value);
    if (std::string_view(row.key) == "layers_pattern") json.set("layers_to_transform", 1);
    write_config(json);
    const auto [reason, text] = refusal();
    EXPECT_EQ(reason, Reason::kUnsupported) << row.key << ": " << text;
    EXPECT_NE(text.find(row.named), std::string::npos) << text;
  }
}

TEST_F(AdapterFile, nonsense_in_the_config) {
  const struct {
    const char* key;
    Json value;
  } cases[] = {{"r", 0},
               {"r", "4"},
               {"r", nullptr},
               {"lora_alpha", "x"},
               {"lora_alpha", nullptr},
               {"lora_alpha", -1},
               {"target_modules", nullptr},
               {"target_modules", Json::array()},
               {"target_modules", 3},
               {"use_rslora", 1},
               {"rank_pattern", Json(Json::Array{Json(1)})},
               {"layers_to_transform", "all"},
               {"layers_to_transform", 9},
               {"peft_type", nullptr},
               {"lora_dropout", 2},
               {"target_modules", Json(Json::Array{Json("query")})}};
  const Json good = config();
  for (const auto& row : cases) {
    Json json = good;
    write_config(json.set(row.key, row.value));
    EXPECT_EQ(refusal().first, Reason::kBadCheckpoint) << row.key << " " << row.value.dump();
  }
  write_config(Json::array());
  EXPECT_EQ(refusal().first, Reason::kBadCheckpoint);
}

TEST_F(AdapterFile, targets_as_all_linear_pattern_or_foreign_names) {
  const Json good = config();
  for (const Json& targets : {Json("all-linear"), Json(R"(.*\.(self_attn|mlp)\.[a-z]+_proj)"),
                              Json(Json::Array{Json("all")})}) {
    Json json = good;
    if (targets.is_array()) {
      Json list = json.at("target_modules");
      list.push("query_key_value");
      json.set("target_modules", list);
    } else {
      json.set("target_modules", targets);
    }
    json.set("rank_pattern", Json::object().set("c_attn", 9));
    write_config(json);
    EXPECT_EQ(read_adapter(folder_, toy()).linears.size(), 14u) << targets.dump();
  }
}

TEST_F(AdapterFile, pain_P084_non_finite_adapters_are_never_saved) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Adapter adapter = sample();
    adapter.values[100] = bad;
    try {
      write_adapter(folder_, adapter);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kNumerics);
    }
    EXPECT_EQ(refusal().first, Reason::kOk);  // the older one is untouched
    rewrite([&](TensorToWrite* tensor) {
      static std::vector<float> values;
      if (tensor->name.find("layers.0.self_attn.q_proj.lora_A") == std::string::npos) return true;
      values.assign(128, bad);
      tensor->bytes = values.data();
      return true;
    });
    EXPECT_EQ(refusal().first, Reason::kBadCheckpoint);
    write_adapter(folder_, sample());
  }
}

TEST_F(AdapterFile, missing_parts_and_damage) {
  EXPECT_THROW(read_adapter(root_ + "/none", toy()), Error);
  const std::string path = folder_ + "/adapter_model.safetensors";
  const std::string text = read_file(path);
  for (size_t length = 0; length < text.size(); length += 97) {
    std::ofstream(path, std::ios::binary) << text.substr(0, length);
    ASSERT_EQ(refusal().first, Reason::kBadCheckpoint) << length;
  }
  std::filesystem::remove(path);
  EXPECT_EQ(refusal().first, Reason::kMissingPath);
  write_file_atomically(folder_ + "/adapter_model.bin", "x");
  EXPECT_EQ(refusal().first, Reason::kUnsupported);
}

/// Every folder below `root` that holds an adapter_config.json.
std::vector<std::string> adapter_folders(const std::string& root) {
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (entry.path().filename() == "adapter_config.json")
      folders.push_back(entry.path().parent_path().string());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

/// Reads each adapter on its base model, writes it again and compares; `refused` names cases
/// (folders directly below `root`) or adapters ("pissa/adapter_init") that come later.
void check_adapters(const std::string& root, const std::set<std::string>& refused,
                    const std::function<std::string(const std::string& folder)>& base_of,
                    const std::string& title) {
  galley::testing::CaseCount count(title);
  const std::string scratch = galley::testing::scratch_directory("reference_adapter");
  for (const std::string& folder : adapter_folders(root)) {
    const std::string name = folder.substr(root.size() + 1);
    SCOPED_TRACE(name);
    const bool in_list = refused.contains(name) || refused.contains(name.substr(0, name.find('/')));
    try {
      const ModelConfig config = read_model_config(base_of(folder));
      const Adapter adapter = read_adapter(folder, config);
      EXPECT_FALSE(in_list) << "is in the list of refused adapters, but was read";
      const std::string copy = scratch + "/copy";
      write_adapter(copy, adapter);
      const Adapter back = read_adapter(copy, config);
      EXPECT_EQ(back.settings, adapter.settings);
      EXPECT_TRUE(back.values.size() == adapter.values.size() &&
                  std::memcmp(back.values.data(), adapter.values.data(), 4 * back.values.size()) ==
                      0);
      count.pass();
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kUnsupported) << error.what();
      EXPECT_TRUE(in_list) << error.what();
      count.refuse(name);
    }
  }
}

std::string base_name(const std::string& folder) {
  return parse_json_or_throw(read_file(folder + "/adapter_config.json"), folder, Reason::kInternal)
      .get_string("base_model_name_or_path");
}

TEST(AdapterReference, reference_peft_adapters_are_read_or_refused_by_name) {
  GALLEY_NEED_REFERENCE(root, "peft");
  GALLEY_NEED_REFERENCE(reference, ".");
  check_adapters(
      root,
      {"bias_lora_only", "dora", "ia3", "lora_embedding_head", "modules_to_save",
       "olora/adapter_init", "pissa/adapter_init", "prefix_tuning", "prompt_tuning",
       "trainable_tokens", "trainable_tokens_tied"},
      [&](const std::string& folder) { return path_join(reference, base_name(folder)); },
      "peft adapters");
}

TEST(AdapterReference, reference_toy_adapters_are_read_or_refused_by_name) {
  GALLEY_NEED_REFERENCE(root, "toys");
  const std::set<std::string> refused = {
      "gemma2",      "gemma3_text", "gemma_1",    "granite",   "llama_rope_dynamic",
      "mixtral_moe", "olmo2",       "phi3_fused", "qwen3_moe", "smollm3"};
  check_adapters(
      root, refused,
      [&](const std::string& folder) {
        return path_join(root, folder.substr(root.size() + 1,
                                             folder.find('/', root.size() + 1) - root.size() - 1));
      },
      "toy adapters");
}

TEST(AdapterReference, reference_smollm2_adapters_are_read_or_refused_by_name) {
  GALLEY_NEED_REFERENCE(root, "smollm2/lora");
  GALLEY_NEED_SMOLLM2(model);
  check_adapters(
      root, {"dora_qv"}, [&](const std::string&) { return model; }, "smollm2 adapters");
}

TEST(AdapterReference, reference_rank_pattern_ranks_and_scalings) {
  GALLEY_NEED_REFERENCE(folder, "peft/rank_pattern/adapter_init");
  GALLEY_NEED_REFERENCE(base, "toys/llama_untied");
  for (const AdaptedLinear& linear : read_adapter(folder, read_model_config(base)).linears) {
    const int64_t rank = linear.projection == Projection::kQ                           ? 8
                         : linear.projection == Projection::kV && linear.layer == 0    ? 6
                         : linear.projection == Projection::kDown && linear.layer == 1 ? 2
                                                                                       : 4;
    const double alpha = linear.projection == Projection::kQ      ? 24
                         : linear.projection == Projection::kDown ? 5
                                                                  : 8;
    EXPECT_EQ(linear.rank, rank) << linear.name_a();
    EXPECT_DOUBLE_EQ(linear.scaling, alpha / static_cast<double>(rank)) << linear.name_a();
  }
}

}  // namespace
}  // namespace galley::model
