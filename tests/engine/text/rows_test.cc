#include "engine/text/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/random.h"
#include "engine/core/strings.h"
#include "tests/engine/text/rows_tiny_tokenizer.h"
#include "tests/support/reference.h"

namespace galley::text {
namespace {

using galley::testing::CaseCount;
using testing::chatml;
using testing::marked_chatml;
using testing::plain_chatml;
using testing::tiny_special_tokens;
using testing::tiny_tokenizer;

Json parse(std::string_view text) { return parse_json_or_throw(text, "test", Reason::kBadData); }

// Cases that this version refuses by name.
const std::map<std::string, std::string>& refused_cases() {
  static const std::map<std::string, std::string> kRefused = {};
  return kRefused;
}

// --- the reference -----------------------------------------------------------------------------

struct Model {
  Tokenizer tokenizer;
  SpecialTokens special;
  ChatTemplate plain;
  ChatTemplate marked;
};

Model load_model(const std::string& reference, const std::string& name) {
  const bool smollm2 = name == "smollm2";
  const std::string folder =
      smollm2 ? galley::testing::smollm2_path() : reference + "/tokenizers/" + name;
  const std::string templates = reference + "/templates/trl_" + name;
  return {Tokenizer::load(folder), load_special_tokens(folder),
          ChatTemplate::load(smollm2 ? reference + "/chat/smollm2.jinja" : templates + ".jinja"),
          ChatTemplate::load(smollm2 ? reference + "/rows/smollm2_training.jinja"
                                     : templates + "_training.jinja")};
}

RowOptions options_of(const Json& options) {
  RowOptions out;
  out.loss = parse_loss(options.get_string("loss"));
  out.max_length = static_cast<size_t>(options.get_int("max_length"));
  out.truncation = parse_truncation(options.get_string("truncation", "keep_start"));
  out.sanitize = Sanitize::kNo;
  return out;
}

std::vector<int32_t> ints(const Json& list) {
  std::vector<int32_t> out;
  for (const Json& one : list.as_array()) out.push_back(static_cast<int32_t>(one.as_int()));
  return out;
}

std::string text_with_loss(const Tokenizer& tokenizer, const TokenRow& row) {
  std::vector<int32_t> ids;
  for (const int32_t label : row.labels) {
    if (label != kNoLoss) ids.push_back(label);
  }
  return tokenizer.decode(ids, SkipSpecial::kNo);
}

void check_expected(const Json& expected, const RowResult& result) {
  if (expected.contains("error")) {
    ASSERT_TRUE(result.problem.has_value());
    EXPECT_EQ(result.problem->kind, FaultKind::kTemplate);
    return;
  }
  ASSERT_FALSE(result.problem.has_value()) << result.problem->text;
  const TokenRow& row = result.row;
  EXPECT_EQ(row_drop_name(row.dropped), expected.get_string("dropped"));
  if (expected.contains("full_length")) {
    EXPECT_EQ(static_cast<int64_t>(row.full_length), expected.get_int("full_length"));
    EXPECT_EQ(static_cast<int64_t>(row.full_targets), expected.get_int("full_targets"));
  }
  if (!expected.contains("input_ids")) return;
  EXPECT_EQ(row.ids, ints(expected.at("input_ids")));
  EXPECT_EQ(row.labels, ints(expected.at("labels")));
  ASSERT_EQ(!row.loss_weights.empty(), expected.contains("loss_weights"));
  for (size_t i = 0; i < row.loss_weights.size(); ++i) {
    EXPECT_EQ(row.loss_weights[i], expected.at("loss_weights").as_array()[i].as_double());
  }
}

// Special-token strings in messages as text: other ids, the same text with loss.
void check_sanitized(const Json& expected, const Json& row, const Model& model,
                     const ChatTemplate& chat, RowOptions options) {
  if (!expected.contains("input_ids_sanitized")) return;
  const TokenRow trl =
      RowTokenizer(model.tokenizer, &chat, model.special, options).convert(row).row;
  options.sanitize = Sanitize::kYes;
  const TokenRow own =
      RowTokenizer(model.tokenizer, &chat, model.special, options).convert(row).row;
  // The stored ids are of the plain template.
  options.loss = LossOn::kAll;
  const RowTokenizer plain(model.tokenizer, &model.plain, model.special, options);
  EXPECT_EQ(plain.convert(row).row.ids, ints(expected.at("input_ids_sanitized")));
  EXPECT_EQ(text_with_loss(model.tokenizer, own), text_with_loss(model.tokenizer, trl));
  EXPECT_GE(own.full_targets, trl.full_targets);
}

void check_row_case(const Json& c, const Json& row, const Json& expected, const Model& model) {
  const RowOptions options = options_of(c.at("options"));
  const ChatTemplate& chat = options.loss == LossOn::kAssistant ? model.marked : model.plain;
  const RowTokenizer rows(model.tokenizer, &chat, model.special, options);
  check_expected(expected, rows.convert(row));
  check_sanitized(expected, row, model, chat, options);
}

// Names X with a file rows/X + ending.
std::vector<std::string> models_of(const std::string& rows, std::string_view ending) {
  std::vector<std::string> names;
  for (const std::string& file : galley::testing::list_directory(rows)) {
    if (!file.ends_with(ending)) continue;
    const std::string name = file.substr(0, file.size() - ending.size());
    const bool other = name == "cases" || name == "packing" || name == "bad_rows" ||
                       name == "real_cases" || name.find('_') != std::string::npos;
    if (!other || path_exists(rows + "/../tokenizers/" + name)) names.push_back(name);
  }
  return names;
}

std::map<std::string, Json> by_id(const std::string& path) {
  std::map<std::string, Json> out;
  for (const Json& one : galley::testing::read_json_lines(path)) out[one.get_string("id")] = one;
  return out;
}

TEST(Rows, reference_cases) {
  GALLEY_NEED_REFERENCE(reference, "rows");
  GALLEY_NEED_SMOLLM2(smollm2);
  for (const std::string& name : models_of(reference, ".jsonl")) {
    CaseCount count("rows/" + name);
    const Model model = load_model(path_directory(reference), name);
    const auto expected = by_id(reference + "/" + name + ".jsonl");
    for (const Json& c : galley::testing::read_json_lines(reference + "/cases.jsonl")) {
      const std::string id = c.get_string("id");
      SCOPED_TRACE(name + " " + id);
      if (refused_cases().contains(id)) {
        count.refuse(id);
        continue;
      }
      check_row_case(c, c.at("row"), expected.at(id), model);
      count.pass();
    }
  }
}

TEST(Rows, reference_real_rows) {
  GALLEY_NEED_REFERENCE(reference, "rows");
  GALLEY_NEED_SMOLLM2(smollm2);
  const std::string data = path_join(reference, "../../data/datasets");
  if (!is_directory(data)) GTEST_SKIP() << "no folder ../data/datasets beside the reference";
  std::map<std::string, Dataset> files;
  for (const std::string& name : models_of(reference, "_real.jsonl")) {
    CaseCount count("rows/" + name + "_real");
    const Model model = load_model(path_directory(reference), name);
    const auto expected = by_id(reference + "/" + name + "_real.jsonl");
    for (const Json& c : galley::testing::read_json_lines(reference + "/real_cases.jsonl")) {
      SCOPED_TRACE(name + " " + c.get_string("id"));
      const std::string file = c.at("source").get_string("file");
      if (!files.contains(file)) files.emplace(file, Dataset::read(path_join(data, file)));
      const Dataset& dataset = files.at(file);
      const auto index = static_cast<size_t>(c.at("source").get_int("index"));
      check_row_case(c, dataset.row(index), expected.at(c.get_string("id")), model);
      count.pass();
    }
  }
}

// SmolLM2's own template has no marks; the masks found by rendering prefixes are those of its twin.
TEST(Rows, reference_prefixes_find_the_masks_of_the_marks) {
  GALLEY_NEED_REFERENCE(reference, "rows");
  GALLEY_NEED_SMOLLM2(smollm2);
  const Model model = load_model(path_directory(reference), "smollm2");
  const auto expected = by_id(reference + "/smollm2.jsonl");
  CaseCount count("rows/smollm2 by prefixes");
  for (const Json& c : galley::testing::read_json_lines(reference + "/cases.jsonl")) {
    const RowOptions options = options_of(c.at("options"));
    if (options.loss != LossOn::kAssistant) continue;
    SCOPED_TRACE(c.get_string("id"));
    const RowTokenizer rows(model.tokenizer, &model.plain, model.special, options);
    check_expected(expected.at(c.get_string("id")), rows.convert(c.at("row")));
    count.pass();
  }
}

// Qwen3's own template rewrites earlier turns: one turn is found, several are refused.
TEST(Rows, reference_prefixes_that_do_not_nest_are_refused) {
  GALLEY_NEED_REFERENCE(reference, "tokenizers");
  const std::string folder = reference + "/qwen3";
  if (!path_exists(folder)) GTEST_SKIP() << "no qwen3 tokenizer in the reference";
  const ChatTemplate chat = ChatTemplate::load_for_model(folder);
  const RowTokenizer rows(Tokenizer::load(folder), &chat, load_special_tokens(folder), {});
  const RowResult one = rows.convert(parse(
      R"({"messages":[{"role":"user","content":"A?"},{"role":"assistant","content":"One."}]})"));
  ASSERT_FALSE(one.problem.has_value()) << one.problem->text;
  EXPECT_NE(text_with_loss(rows.tokenizer(), one.row).find("One.<|im_end|>"), std::string::npos);
  const RowResult two = rows.convert(parse(
      R"({"messages":[{"role":"user","content":"A?"},{"role":"assistant","content":"One."},
          {"role":"user","content":"B?"},{"role":"assistant","content":"Two."}]})"));
  ASSERT_TRUE(two.problem.has_value());
  EXPECT_EQ(two.problem->kind, FaultKind::kTemplate);
  EXPECT_NE(two.problem->text.find("loss = \"all\""), std::string::npos);
}

// --- rules, with a tiny tokenizer --------------------------------------------------------------

RowTokenizer tiny_rows(const ChatTemplate& chat, const RowOptions& options = {}) {
  return RowTokenizer(tiny_tokenizer(), &chat, tiny_special_tokens(), options);
}

std::string shown(const RowTokenizer& rows, std::string_view row) {
  const RowResult result = rows.convert(parse(row));
  if (result.problem) return cat(fault_name(result.problem->kind), ": ", result.problem->text);
  if (result.row.dropped != RowDrop::kNo) return std::string(row_drop_name(result.row.dropped));
  return show_labels(rows.tokenizer(), result.row);
}

constexpr std::string_view kTwoTurns =
    R"({"messages":[{"role":"user","content":"a?"},{"role":"assistant","content":"b"},
        {"role":"user","content":"c?"},{"role":"assistant","content":"d"}]})";

TEST(Rows, the_loss_lies_on_assistant_turns_with_their_end_token) {
  const std::string expected =
      "<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\n[[b<|im_end|>\n]]"
      "<|im_start|>user\nc?<|im_end|>\n<|im_start|>assistant\n[[d<|im_end|>\n]]";
  EXPECT_EQ(shown(tiny_rows(marked_chatml()), kTwoTurns), expected);
  EXPECT_EQ(shown(tiny_rows(plain_chatml()), kTwoTurns), expected);
  EXPECT_EQ(shown(tiny_rows(plain_chatml(), {.loss = LossOn::kCompletion}), kTwoTurns), expected);
  EXPECT_EQ(shown(tiny_rows(plain_chatml(), {.loss = LossOn::kAll}), kTwoTurns).substr(0, 14),
            "[[<|im_start|>");
}

TEST(Rows, strings_get_one_end_token) {
  const RowTokenizer rows = tiny_rows(plain_chatml());
  EXPECT_EQ(shown(rows, R"({"text":"ab"})"), "[[ab<|im_end|>]]");
  EXPECT_EQ(shown(rows, R"({"text":""})"), "[[<|im_end|>]]");
  EXPECT_EQ(shown(rows, R"({"prompt":"ab","completion":"cd"})"), "ab[[cd<|im_end|>]]");
  EXPECT_EQ(shown(rows, R"({"prompt":"u","completion":"nb"})"), "[[unb<|im_end|>]]");
  EXPECT_EQ(shown(tiny_rows(plain_chatml(), {.loss = LossOn::kAll}),
                  R"({"prompt":"ab","completion":"cd"})"),
            "[[abcd<|im_end|>]]");
}

TEST(Rows, completions_of_messages_begin_after_the_generation_prompt) {
  constexpr std::string_view kRow =
      R"({"prompt":[{"role":"user","content":"a?"}],"completion":[{"role":"assistant",
          "content":"b"},{"role":"user","content":"c?"},{"role":"assistant","content":"d"}]})";
  EXPECT_EQ(shown(tiny_rows(plain_chatml(), {.loss = LossOn::kCompletion}), kRow),
            "<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\n[[b<|im_end|>\n"
            "<|im_start|>user\nc?<|im_end|>\n<|im_start|>assistant\nd<|im_end|>\n]]");
  EXPECT_EQ(shown(tiny_rows(plain_chatml()), kRow),
            "<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\n[[b<|im_end|>\n]]"
            "<|im_start|>user\nc?<|im_end|>\n<|im_start|>assistant\n[[d<|im_end|>\n]]");
}

TEST(Rows, truncation_keeps_one_end_and_counts_what_it_had) {
  const std::string_view row = R"({"prompt":"abcd","completion":"ef"})";
  RowOptions options{.max_length = 5};
  EXPECT_EQ(shown(tiny_rows(plain_chatml(), options), row), "abcd[[e]]");
  options.truncation = Truncation::kKeepEnd;
  EXPECT_EQ(shown(tiny_rows(plain_chatml(), options), row), "cd[[ef<|im_end|>]]");
  options = {.max_length = 4};
  const RowResult cut = tiny_rows(plain_chatml(), options).convert(parse(row));
  EXPECT_EQ(cut.row.dropped, RowDrop::kNoTargetAfterTruncation);
  EXPECT_EQ(cut.row.full_length, 7u);
  EXPECT_EQ(cut.row.full_targets, 3u);
  options = {.max_length = 7};
  EXPECT_FALSE(tiny_rows(plain_chatml(), options).convert(parse(row)).row.cut);
}

TEST(Rows, special_strings_in_messages_stay_text_unless_asked) {
  const std::string_view row =
      R"({"messages":[{"role":"user","content":"x<|im_end|>"},
          {"role":"assistant","content":"<|im_start|>"}]})";
  const ChatTemplate chat = plain_chatml();
  const TokenRow own = tiny_rows(chat).convert(parse(row)).row;
  const TokenRow trl = tiny_rows(chat, {.sanitize = Sanitize::kNo}).convert(parse(row)).row;
  const auto count = [](const std::vector<int32_t>& ids, int32_t id) {
    return std::count(ids.begin(), ids.end(), id);
  };
  EXPECT_EQ(count(own.ids, 2), 2);  // the template's own
  EXPECT_EQ(count(trl.ids, 2), 3);
  EXPECT_EQ(count(own.ids, 1), 2);
  EXPECT_EQ(count(trl.ids, 1), 3);
  const Tokenizer tokenizer = tiny_tokenizer();
  EXPECT_EQ(show_labels(tokenizer, own), show_labels(tokenizer, trl));
}

TEST(Rows, weights_of_messages_become_masks_or_weights) {
  const auto row = [](const char* weight) {
    return cat(R"({"messages":[{"role":"user","content":"a","loss_weight":1},)",
               R"({"role":"assistant","content":"b","loss_weight":)", weight,
               R"(},{"role":"assistant","content":"c"}]})");
  };
  const RowTokenizer rows = tiny_rows(plain_chatml());
  EXPECT_NE(shown(rows, row("0")).find("assistant\nb<|im_end|>\n<|im_start|>assistant\n[[c"),
            std::string::npos);
  const TokenRow half = rows.convert(parse(row("0.5"))).row;
  ASSERT_EQ(half.loss_weights.size(), half.ids.size());
  EXPECT_EQ(half.loss_weights.back(), 1.0);
  EXPECT_EQ(std::count(half.loss_weights.begin(), half.loss_weights.end(), 0.5), 3);
  EXPECT_TRUE(rows.convert(parse(row("1"))).row.loss_weights.empty());
}

TEST(Rows, forms_with_calls_parts_and_tools) {
  const ChatTemplate with_calls =
      chatml("{{ m['content'] }}{% for c in m.tool_calls %}!{{ c.function.name }}{% endfor %}#");
  const RowTokenizer rows = tiny_rows(with_calls, {.loss = LossOn::kAll});
  EXPECT_EQ(shown(rows, R"({"conversations":[{"from":"human","value":"q"},{"from":"function_call",
                  "value":"{\"name\":\"f\",\"arguments\":{}}"},{"from":"observation","value":"o"},
                  {"from":"gpt","value":"g"}],"system":"s"})"),
            "[[<|im_start|>system\ns#<|im_start|>user\nq#<|im_start|>assistant\n!f#"
            "<|im_start|>tool\no#<|im_start|>assistant\ng#]]");
  EXPECT_EQ(shown(rows, R"({"messages":[{"role":"assistant","content":[{"type":"text","text":"a"},
                  {"type":"text","value":"b"},{"type":"tool_call","value":{"name":"g",
                  "arguments":{}}}]}]})"),
            "[[<|im_start|>assistant\nab!g#]]");
  EXPECT_EQ(shown(rows, R"({"instruction":"i","input":"n","output":"o","history":[["h","k"]]})"),
            "[[<|im_start|>user\nh#<|im_start|>assistant\nk#<|im_start|>user\ni\nn#"
            "<|im_start|>assistant\no#]]");
}

TEST(Rows, a_template_that_refuses_is_a_fault_of_the_row) {
  const ChatTemplate chat = ChatTemplate::parse("{{ raise_exception('no way') }}", "t");
  EXPECT_NE(shown(tiny_rows(chat), kTwoTurns).find("no way"), std::string::npos);
  const RowTokenizer none(tiny_tokenizer(), nullptr, tiny_special_tokens(), {});
  EXPECT_EQ(none.convert(parse(kTwoTurns)).problem->kind, FaultKind::kTemplate);
  EXPECT_FALSE(none.convert(parse(R"({"text":"a"})")).problem.has_value());
  EXPECT_EQ(none.convert(parse(R"({"text":5})")).problem->kind, FaultKind::kWrongType);
}

TEST(Rows, option_names_are_checked) {
  EXPECT_EQ(parse_loss("completion"), LossOn::kCompletion);
  EXPECT_EQ(parse_truncation("keep_end"), Truncation::kKeepEnd);
  EXPECT_THROW(parse_loss("assistent"), Error);
  EXPECT_THROW(parse_truncation(""), Error);
}

TEST(Rows, masks_by_marks_and_by_prefixes_agree_on_random_conversations) {
  Random random(21, random_stream("rows"));
  const RowTokenizer marked = tiny_rows(marked_chatml());
  const RowTokenizer prefixed = tiny_rows(plain_chatml());
  constexpr const char* kTexts[] = {"",   "un",         "\n\n",     " be ",
                                    "é😀", "<|im_end|>", "un\nbe\n", "<|im_start|>assistant\n"};
  constexpr const char* kRoles[] = {"user", "assistant", "system", "tool"};
  for (int round = 0; round < 300; ++round) {
    Json messages = Json::array();
    for (uint64_t i = 1 + random.below(6); i > 0; --i) {
      Json message = Json::object();
      message.set("role", kRoles[random.below(4)]).set("content", kTexts[random.below(8)]);
      messages.push(std::move(message));
    }
    const Json row = Json::object().set("messages", std::move(messages));
    const RowResult a = marked.convert(row);
    const RowResult b = prefixed.convert(row);
    ASSERT_FALSE(a.problem || b.problem);
    EXPECT_EQ(a.row.ids, b.row.ids);
    EXPECT_EQ(a.row.labels, b.row.labels);
    EXPECT_EQ(a.row.dropped, b.row.dropped);
    ASSERT_EQ(a.row.ids.size(), a.row.labels.size());
    for (size_t i = 0; i < a.row.ids.size(); ++i) {
      EXPECT_TRUE(a.row.labels[i] == kNoLoss || a.row.labels[i] == a.row.ids[i]);
    }
  }
}

TEST(Rows, hostile_rows_never_crash) {
  const std::vector<std::string> bases = {
      std::string(kTwoTurns),
      R"({"prompt":[{"role":"user","content":"a"}],"completion":[{"role":"assistant","content":[
          {"type":"text","text":"b"},{"type":"reasoning","value":"c"}],"loss_weight":0.5}]})",
      R"({"conversations":[{"from":"human","value":"a"},{"from":"function_call",
          "value":"{\"name\":\"f\",\"arguments\":{}}"}],"tools":"[{}]","system":"s",
          "chosen":{"from":"gpt","value":"g"}})",
      R"({"instruction":"a","input":"b","output":"c","history":[["d","e"]],"system":null})",
      R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"type":"function",
          "function":{"name":"f","arguments":{"x":[1,null]}}}]}],"tools":[{"name":"f"}]})"};
  const std::vector<std::string> pieces = {"null", "[]",       "{}",  "\"\"",  "0",
                                           "-1",   "\"user\"", "[1]", "\"[\"", "1e3"};
  Random random(8, random_stream("hostile rows"));
  const RowTokenizer marked = tiny_rows(marked_chatml(), {.max_length = 12});
  const RowTokenizer prefixed = tiny_rows(plain_chatml());
  int num_converted = 0;
  for (int i = 0; i < 6000; ++i) {
    std::string text = bases[random.below(bases.size())];
    for (uint64_t k = 1 + random.below(2); k > 0; --k) {
      // Another value behind a colon, or another byte anywhere.
      const size_t at = text.find(':', random.below(text.size()));
      if (at != std::string::npos && random.below(2) == 0) {
        const size_t end = text.find_first_of(",}]", at);
        text.replace(at + 1, end - at - 1, pieces[random.below(pieces.size())]);
      } else {
        text[random.below(text.size())] = static_cast<char>(32 + random.below(95));
      }
    }
    Json row;
    JsonFault fault;
    if (!parse_json(text, &row, &fault)) continue;
    for (const RowTokenizer* rows : {&marked, &prefixed}) {
      const RowResult result = rows->convert(row);
      EXPECT_EQ(result.row.ids.size(), result.row.labels.size());
      num_converted += result.problem ? 0 : 1;
    }
  }
  EXPECT_GT(num_converted, 300);
}

// --- pains -------------------------------------------------------------------------------------

TEST(Rows, pain_P051_training_targets_the_end_token_that_the_template_writes) {
  // eos_token is another one than the turn's end, pad could be either: labels never look at pad.
  SpecialTokens special = tiny_special_tokens();
  special.named["eos_token"] = "<|endoftext|>";
  special.named["pad_token"] = "<|im_end|>";
  const ChatTemplate chat = plain_chatml();
  const RowTokenizer rows(tiny_tokenizer(), &chat, special, {});
  const TokenRow row = rows.convert(parse(kTwoTurns)).row;
  EXPECT_EQ(std::count(row.labels.begin(), row.labels.end(), 2), 2);
  EXPECT_EQ(rows.convert(parse(R"({"text":"a"})")).row.labels.back(), 0);
}

void expect_one_end(std::string_view row) {
  const TokenRow got = tiny_rows(plain_chatml()).convert(parse(row)).row;
  EXPECT_EQ(std::count(got.ids.begin(), got.ids.end(), 2), 1) << row;
  EXPECT_EQ(got.labels.back(), 2) << row;
}

TEST(Rows, pain_P052_completions_end_with_exactly_one_eos) {
  expect_one_end(R"({"prompt":"Stop:","completion":" done"})");
  expect_one_end(R"({"prompt":"Stop:","completion":" done<|im_end|>"})");
  expect_one_end(R"({"prompt":"Stop:","completion":""})");
  SpecialTokens none = tiny_special_tokens();
  none.named.erase("eos_token");
  const ChatTemplate chat = plain_chatml();
  EXPECT_THROW(RowTokenizer(tiny_tokenizer(), &chat, none, {}).convert(parse(R"({"text":"a"})")),
               Error);
}

TEST(Rows, pain_P053_texts_end_with_exactly_one_eos) {
  expect_one_end(R"({"text":"The keel"})");
  expect_one_end(R"({"text":"The keel<|im_end|>"})");
}

TEST(Rows, pain_P087_masks_do_not_depend_on_how_the_marker_is_tokenised) {
  // The line end of the header merges with those that start the answer: no id sequence of the
  // header is left to be found, the mask still begins with the first answer byte's token.
  const std::string_view row =
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"\n\nb"}]})";
  for (const ChatTemplate& chat : {plain_chatml(), marked_chatml()}) {
    const RowTokenizer rows = tiny_rows(chat);
    const TokenRow got = rows.convert(parse(row)).row;
    EXPECT_EQ(got.dropped, RowDrop::kNo);
    EXPECT_EQ(text_with_loss(rows.tokenizer(), got), "\n\n\nb<|im_end|>\n");
  }
}

TEST(Rows, pain_P088_the_label_view_shows_what_is_learned) {
  const RowTokenizer rows = tiny_rows(marked_chatml());
  const TokenRow row = rows.convert(parse(kTwoTurns)).row;
  const std::string colored = show_labels(rows.tokenizer(), row, "\033[32m", "\033[0m");
  EXPECT_NE(colored.find("assistant\n\033[32mb<|im_end|>\n\033[0m"), std::string::npos) << colored;
  EXPECT_EQ(show_labels(rows.tokenizer(), row, "", ""),
            rows.tokenizer().decode(row.ids, SkipSpecial::kNo));
}

}  // namespace
}  // namespace galley::text
