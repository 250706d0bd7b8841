#include "engine/model/lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "engine/core/error.h"
#include "engine/model/family.h"
#include "tests/engine/model/toy_folder.h"

namespace galley::model {
namespace {

ModelConfig toy() { return parse_model_config(testing::toy_config_json(), "toy"); }

std::pair<Reason, std::string> refusal(const LoraSettings& settings) {
  try {
    adapted_linears(toy(), settings);
    return {Reason::kOk, ""};
  } catch (const Error& error) {
    return {error.reason(), error.what()};
  }
}

const AdaptedLinear& linear(const std::vector<AdaptedLinear>& linears, int layer, Projection p) {
  for (const AdaptedLinear& one : linears) {
    if (one.layer == layer && one.projection == p) return one;
  }
  throw Error(Reason::kInternal, "not adapted");
}

TEST(Lora, default_targets_are_all_seven) {
  const auto linears = adapted_linears(toy(), {.rank = 4});
  ASSERT_EQ(linears.size(), 14u);
  EXPECT_EQ(linears[0].name_a(), "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
  EXPECT_EQ(linears[13].name_b(), "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight");
  const auto tensors = trainable_tensors(linears);
  EXPECT_EQ(tensors.size(), 28u);
  EXPECT_EQ(tensors[0].shape, (std::vector<int64_t>{4, 32}));
  EXPECT_EQ(tensors[1].shape, (std::vector<int64_t>{32, 4}));
  EXPECT_EQ(tensors.back().offset + tensors.back().num_elements(), num_trainable(linears));
}

TEST(Lora, pain_P184_misspelt_target_is_named_with_the_nearest) {
  const auto [reason, text] = refusal({.rank = 4, .targets = {"q_proj", "v_porj"}});
  EXPECT_EQ(reason, Reason::kBadConfig);
  EXPECT_NE(text.find("v_porj"), std::string::npos) << text;
  EXPECT_NE(text.find("did you mean \"v_proj\""), std::string::npos) << text;
}

TEST(Lora, pain_P185_one_good_entry_does_not_hide_a_bad_one) {
  EXPECT_EQ(refusal({.rank = 4, .targets = {"q_proj", "query_key_value"}}).first,
            Reason::kBadConfig);
  EXPECT_EQ(refusal({.rank = 4, .targets = {"proj"}}).first, Reason::kBadConfig);
  EXPECT_EQ(refusal({.rank = 4, .targets = {"q_proj", "lm_head"}}).first, Reason::kUnsupported);
  EXPECT_EQ(refusal({.rank = 4, .targets = {"embed_tokens"}}).first, Reason::kUnsupported);
}

TEST(Lora, pain_P059_the_head_of_a_tied_model_is_no_target_and_that_is_said) {
  for (const bool tied : {true, false}) {
    ModelConfig tied_config = toy();
    tied_config.tied_embeddings = tied;
    for (const char* target : {"lm_head", "embed_tokens"}) {
      try {
        adapted_linears(tied_config, {.rank = 4, .targets = {"q_proj", target}});
        FAIL() << target;
      } catch (const Error& error) {
        EXPECT_EQ(error.reason(), Reason::kUnsupported);
        EXPECT_NE(std::string(error.what()).find(target), std::string::npos) << error.what();
      }
    }
  }
}

TEST(Lora, nonsense_settings) {
  EXPECT_EQ(refusal({.rank = 0}).first, Reason::kBadConfig);
  EXPECT_EQ(refusal({.rank = 17}).first, Reason::kBadConfig);  // k_proj is 16 x 32
  EXPECT_EQ(refusal({.rank = 17, .targets = {"q_proj"}}).first, Reason::kOk);
  EXPECT_EQ(refusal({.rank = 4, .alpha = 0}).first, Reason::kBadConfig);
  EXPECT_EQ(refusal({.rank = 4, .dropout = 1}).first, Reason::kBadConfig);
  EXPECT_EQ(refusal({.rank = 4, .layers = {2}}).first, Reason::kBadConfig);
  EXPECT_EQ(refusal({.rank = 4, .target_pattern = "nothing.*"}).first, Reason::kBadConfig);
  EXPECT_EQ(refusal({.rank = 4, .target_pattern = "(a"}).first, Reason::kUnsupported);
}

TEST(Lora, pain_P099_rslora_scales_by_the_root) {
  EXPECT_DOUBLE_EQ(adapted_linears(toy(), {.rank = 4, .alpha = 8})[0].scaling, 2.0);
  EXPECT_DOUBLE_EQ(adapted_linears(toy(), {.rank = 4, .alpha = 8, .rslora = true})[0].scaling, 4.0);
}

TEST(Lora, patterns_in_the_way_of_peft) {
  LoraSettings settings{.rank = 4, .alpha = 8};
  settings.rank_pattern = {{"layers.1.mlp.down_proj", 2},
                           {"^model.layers.0.self_attn.v_proj", 6},
                           {"q_proj", 8},
                           {"self_attn.q_proj", 3}};
  settings.alpha_pattern = {{"down_proj", 5}, {R"(layers\.0\.mlp\.(up|gate)_proj)", 24}};
  const auto linears = adapted_linears(toy(), settings);
  EXPECT_EQ(linear(linears, 1, Projection::kDown).rank, 2);
  EXPECT_EQ(linear(linears, 0, Projection::kDown).rank, 4);
  EXPECT_DOUBLE_EQ(linear(linears, 1, Projection::kDown).scaling, 2.5);
  EXPECT_EQ(linear(linears, 0, Projection::kV).rank, 6);
  EXPECT_EQ(linear(linears, 1, Projection::kV).rank, 4);
  EXPECT_EQ(linear(linears, 0, Projection::kQ).rank, 8);  // the first key that matches
  EXPECT_DOUBLE_EQ(linear(linears, 0, Projection::kUp).scaling, 6.0);
  EXPECT_DOUBLE_EQ(linear(linears, 1, Projection::kUp).scaling, 2.0);
}

TEST(Lora, pattern_keys_that_match_nothing_are_mistakes) {
  LoraSettings settings{.rank = 4};
  settings.rank_pattern = {{"v_porj", 2}};
  EXPECT_EQ(refusal(settings).first, Reason::kBadConfig);
  EXPECT_NE(refusal(settings).second.find("v_proj"), std::string::npos);
  settings.rank_pattern = {{"layers.[01].self_attn.v_proj", 2}};
  EXPECT_EQ(refusal(settings).first, Reason::kOk);
  settings.alpha_pattern = {{"roj", 2.0}};
  EXPECT_EQ(refusal(settings).first, Reason::kBadConfig);
}

TEST(Lora, targets_excludes_layers) {
  EXPECT_EQ(adapted_linears(toy(), {.rank = 4, .exclude = {"o_proj", "mlp.up_proj"}}).size(), 10u);
  EXPECT_EQ(adapted_linears(toy(), {.rank = 4, .exclude_pattern = R"(.*\.0\..*)"}).size(), 7u);
  EXPECT_EQ(adapted_linears(toy(), {.rank = 4, .targets = {"q_proj"}, .layers = {1}}).size(), 1u);
  EXPECT_EQ(adapted_linears(toy(), {.rank = 4, .targets = {"layers.0.self_attn.q_proj"}}).size(),
            1u);
  EXPECT_EQ(
      adapted_linears(toy(), {.rank = 4, .target_pattern = R"(.*\.1\..*(q|down)_proj)"}).size(),
      2u);
}

TEST(Lora, evil_patterns_end_quickly) {
  LoraSettings settings{.rank = 4};
  settings.target_pattern = "(((((.*)*)*)*)*)*x";
  EXPECT_EQ(refusal(settings).first, Reason::kBadConfig);
  settings.target_pattern = std::string(2000, '(');
  EXPECT_EQ(refusal(settings).first, Reason::kUnsupported);
}

TEST(Lora, initial_values) {
  const auto linears = adapted_linears(toy(), {.rank = 16, .targets = {"gate_proj", "down_proj"}});
  const auto values = initial_adapter(linears, LoraInit::kDefault, 5);
  const auto tensors = trainable_tensors(linears);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto* begin = values.data() + tensors[i].offset;
    const auto count = static_cast<double>(tensors[i].num_elements());
    double sum = 0, squares = 0, most = 0;
    for (uint64_t k = 0; k < tensors[i].num_elements(); ++k) {
      sum += begin[k];
      squares += static_cast<double>(begin[k]) * begin[k];
      most = std::max(most, std::abs(static_cast<double>(begin[k])));
    }
    if (i % 2 == 1) {
      EXPECT_EQ(most, 0.0);
      continue;
    }
    const double bound = 1.0 / std::sqrt(static_cast<double>(linears[i / 2].in));
    EXPECT_LE(most, bound);
    EXPECT_GT(most, 0.98 * bound);
    EXPECT_NEAR(sum / count, 0.0, 0.1 * bound);
    EXPECT_NEAR(std::sqrt(squares / count), bound / std::sqrt(3.0), 0.05 * bound);
  }
  const auto gaussian = initial_adapter(linears, LoraInit::kGaussian, 5);
  double squares = 0;
  for (uint64_t k = 0; k < tensors[0].num_elements(); ++k)
    squares += double{gaussian[k]} * gaussian[k];
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(tensors[0].num_elements())), 1.0 / 16, 0.01);
}

TEST(Lora, initial_values_depend_on_name_and_seed_only) {
  const auto all = adapted_linears(toy(), {.rank = 4});
  const auto one = adapted_linears(toy(), {.rank = 4, .targets = {"v_proj"}, .layers = {1}});
  const auto all_values = initial_adapter(all, LoraInit::kDefault, 9);
  const auto one_values = initial_adapter(one, LoraInit::kDefault, 9);
  for (const TrainableTensor& tensor : trainable_tensors(all)) {
    if (tensor.name != one[0].name_a()) continue;
    for (size_t k = 0; k < tensor.num_elements(); ++k) {
      ASSERT_EQ(all_values[tensor.offset + k], one_values[k]);
    }
  }
  EXPECT_NE(initial_adapter(one, LoraInit::kDefault, 10), one_values);
}

}  // namespace
}  // namespace galley::model
