#include "engine/model/weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <set>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "tests/engine/model/toy_folder.h"
#include "tests/support/reference.h"

namespace galley::model {
namespace {

using testing::toy_config_json;
using testing::write_toy_folder;

std::pair<Reason, std::string> refusal(const std::string& folder, const ModelConfig& config) {
  try {
    ModelWeights::open(folder, config);
    return {Reason::kOk, ""};
  } catch (const Error& error) {
    return {error.reason(), error.what()};
  }
}

/// Splits model.safetensors into `count` shards and an index.
void shard(const std::string& folder, size_t count) {
  const SafetensorsFile file = SafetensorsFile::open(folder + "/model.safetensors");
  Json map = Json::object();
  for (size_t k = 0; k < count; ++k) {
    const std::string name = format("model-%05zu-of-%05zu.safetensors", k + 1, count);
    std::vector<TensorToWrite> tensors;
    for (size_t i = k; i < file.tensors().size(); i += count) {
      const StoredTensor& tensor = file.tensors()[i];
      tensors.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes});
      map.set(tensor.name, name);
    }
    write_safetensors(folder + "/" + name, tensors, {});
  }
  write_file_atomically(folder + "/model.safetensors.index.json",
                        Json::object().set("weight_map", std::move(map)).dump());
  std::filesystem::remove(folder + "/model.safetensors");
}

TEST(Weights, opens_single_and_sharded_alike) {
  const std::string folder = galley::testing::scratch_directory("weights");
  const ModelConfig config = write_toy_folder(folder, toy_config_json());
  const ModelWeights single = ModelWeights::open(folder, config);
  const WeightId id{WeightRole::kProjection, 1, Projection::kDown};
  const std::vector<float> values = single.get(id).to_f32();
  const std::string fingerprint = single.fingerprint();
  shard(folder, 3);
  const ModelWeights sharded = ModelWeights::open(folder, config);
  EXPECT_EQ(sharded.get(id).to_f32(), values);
  EXPECT_EQ(sharded.fingerprint(), fingerprint);
}

TEST(Weights, pain_P105_all_bad_shards_are_listed) {
  const std::string folder = galley::testing::scratch_directory("weights");
  const ModelConfig config = write_toy_folder(folder, toy_config_json());
  shard(folder, 4);
  const auto path = [&](int k) { return folder + format("/model-%05d-of-00004.safetensors", k); };
  std::filesystem::resize_file(path(1), file_bytes(path(1)) - 1);
  std::filesystem::remove(path(3));
  write_file_atomically(path(4), "version https://git-lfs.github.com/spec/v1\n");
  const auto [reason, text] = refusal(folder, config);
  EXPECT_EQ(reason, Reason::kBadModel);
  for (const char* named : {"3 of 4", "00001-of", "1 missing", "00003-of", "00004-of", "LFS"}) {
    EXPECT_NE(text.find(named), std::string::npos) << text;
  }
  EXPECT_EQ(text.find("00002-of"), std::string::npos) << text;
}

TEST(Weights, everything_missing_or_misshapen_is_in_one_error) {
  const std::string folder = galley::testing::scratch_directory("weights");
  write_toy_folder(folder, toy_config_json(),
                   {"model.norm.weight", "model.layers.1.mlp.up_proj.weight"});
  const ModelConfig other = parse_model_config(toy_config_json().set("vocab_size", 130), "toy");
  const auto [reason, text] = refusal(folder, other);
  EXPECT_EQ(reason, Reason::kBadModel);
  for (const char* named :
       {"model.norm.weight [32] is missing", "layers.1.mlp.up_proj.weight",
        "model.embed_tokens.weight has shape [128, 32]", "[130, 32]", "lm_head"}) {
    EXPECT_NE(text.find(named), std::string::npos) << text;
  }
}

TEST(Weights, surplus_is_a_warning_and_a_tied_head_is_none) {
  const std::string folder = galley::testing::scratch_directory("weights");
  write_toy_folder(folder, toy_config_json().set("attention_bias", true));
  const ModelConfig plain = parse_model_config(toy_config_json(), "toy");
  std::vector<std::string> warnings;
  ModelWeights::open(folder, plain, &warnings);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("8 tensors"), std::string::npos) << warnings[0];

  const std::string path = folder + "/model.safetensors";
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::vector<TensorToWrite> tensors;
  for (const StoredTensor& tensor : file.tensors()) {
    if (tensor.name.ends_with(".bias")) continue;
    const std::byte* bytes = tensor.name == "lm_head.weight"
                                 ? file.find("model.embed_tokens.weight")->bytes
                                 : tensor.bytes;
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, bytes});
  }
  write_safetensors(path, tensors, {});
  const ModelConfig tied =
      parse_model_config(toy_config_json().set("tie_word_embeddings", true), "toy");
  warnings.clear();
  ModelWeights::open(folder, tied, &warnings);
  EXPECT_TRUE(warnings.empty()) << warnings[0];
}

/// What stands between "model.layers.0." and the end of the names of a model's weights.
std::set<std::string> names_of_a_layer(const Json& json) {
  std::set<std::string> names;
  for (const WeightSpec& spec : weight_specs(parse_model_config(json, "toy"))) {
    constexpr std::string_view kLayer = "model.layers.0.";
    if (spec.name.starts_with(kLayer)) names.insert(spec.name.substr(kLayer.size()));
  }
  return names;
}

TEST(Weights, families_differ_in_biases_and_head_norms) {
  std::set<std::string> expected = names_of_a_layer(toy_config_json());
  EXPECT_EQ(expected.size(), 9u);
  EXPECT_EQ(names_of_a_layer(toy_config_json("MistralForCausalLM", "mistral")), expected);
  std::set<std::string> normed = expected;
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
    expected.insert(cat("self_attn.", name, ".bias"));
  }
  EXPECT_EQ(names_of_a_layer(toy_config_json("Qwen2ForCausalLM", "qwen2")), expected);
  normed.insert("self_attn.q_norm.weight");
  normed.insert("self_attn.k_norm.weight");
  const Json qwen3 = toy_config_json("Qwen3ForCausalLM", "qwen3").set("head_dim", 16);
  EXPECT_EQ(names_of_a_layer(qwen3), normed);

  const std::string folder = galley::testing::scratch_directory("weights");
  const ModelConfig config = write_toy_folder(folder, qwen3);
  const ModelWeights weights = ModelWeights::open(folder, config);
  EXPECT_EQ(weights.get({WeightRole::kQNorm, 1}).shape, std::vector<int64_t>{16});
  EXPECT_EQ(weights.get({WeightRole::kKNorm, 1}).name, "model.layers.1.self_attn.k_norm.weight");
  int64_t parameters = 0;
  for (const WeightSpec& spec : weight_specs(config)) {
    int64_t count = 1;
    for (const int64_t size : spec.shape) count *= size;
    parameters += count;
  }
  EXPECT_EQ(config.num_parameters(), parameters);
}

TEST(Weights, wrong_dtype_is_named) {
  const std::string folder = galley::testing::scratch_directory("weights");
  const ModelConfig config = write_toy_folder(folder, toy_config_json(), {"model.norm.weight"});
  const std::string path = folder + "/model.safetensors";
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::vector<TensorToWrite> tensors;
  for (const StoredTensor& tensor : file.tensors()) {
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes});
  }
  const std::vector<double> norm(32, 1.0);
  tensors.push_back({"model.norm.weight", DType::kF64, {32}, norm.data()});
  write_safetensors(path, tensors, {});
  const auto [reason, text] = refusal(folder, config);
  EXPECT_EQ(reason, Reason::kBadModel);
  EXPECT_NE(text.find("model.norm.weight is F64"), std::string::npos) << text;
}

TEST(Weights, broken_indexes) {
  const std::string folder = galley::testing::scratch_directory("weights");
  const ModelConfig config = write_toy_folder(folder, toy_config_json());
  shard(folder, 2);
  const std::string index = folder + "/model.safetensors.index.json";
  const std::string good = read_file(index);
  const auto reason_with = [&](const std::string& text) {
    write_file_atomically(index, text);
    return refusal(folder, config).first;
  };
  EXPECT_EQ(reason_with("{}"), Reason::kBadModel);
  EXPECT_EQ(reason_with(R"({"weight_map": {}})"), Reason::kBadModel);
  EXPECT_EQ(reason_with(R"({"weight_map": {"a": "../../etc/passwd"}})"), Reason::kBadModel);
  EXPECT_EQ(reason_with(R"({"weight_map": {"a": 3}})"), Reason::kBadModel);
  EXPECT_EQ(reason_with(good.substr(0, good.size() / 2)), Reason::kBadModel);
  Json swapped = parse_json_or_throw(good, "index", Reason::kInternal);
  swapped.find("weight_map")->set("model.norm.weight", "model-00001-of-00002.safetensors");
  swapped.find("weight_map")->set("lm_head.weight", "model-00001-of-00002.safetensors");
  EXPECT_EQ(reason_with(swapped.dump()), Reason::kBadModel);
  EXPECT_EQ(reason_with(good), Reason::kOk);
}

TEST(Weights, no_weights_and_pickles) {
  const std::string folder = galley::testing::scratch_directory("weights");
  const ModelConfig config = parse_model_config(toy_config_json(), "toy");
  EXPECT_EQ(refusal(folder, config).first, Reason::kMissingPath);
  write_file_atomically(folder + "/pytorch_model.bin", "x");
  EXPECT_EQ(refusal(folder, config).first, Reason::kUnsupported);
}

TEST(Weights, fingerprint_sees_a_changed_value) {
  const std::string folder = galley::testing::scratch_directory("weights");
  const ModelConfig config = write_toy_folder(folder, toy_config_json());
  const std::string before = ModelWeights::open(folder, config).fingerprint();
  std::string text = read_file(folder + "/model.safetensors");
  text.back() = static_cast<char>(text.back() ^ 1);
  write_file_atomically(folder + "/model.safetensors", text);
  EXPECT_NE(ModelWeights::open(folder, config).fingerprint(), before);
}

}  // namespace
}  // namespace galley::model
