#include "engine/text/records.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "tests/engine/text/rows_tiny_tokenizer.h"
#include "tests/support/reference.h"

namespace galley::text {
namespace {

using galley::testing::CaseCount;
using testing::marked_chatml;
using testing::plain_chatml;
using testing::tiny_special_tokens;
using testing::tiny_tokenizer;

Json parse(std::string_view text) { return parse_json_or_throw(text, "test", Reason::kBadData); }

TEST(Records, tokenize_gives_ids_text_and_pieces) {
  const Tokenizer tokenizer = tiny_tokenizer();
  const Json out =
      tokenize_record(tokenizer, parse(R"({"id":"x7","text":"é<|im_end|>"})"), AddSpecial::kYes);
  EXPECT_EQ(out.dump(),
            R"({"id":"x7","ids":[198,172,2],"text":"é<|im_end|>","pieces":["","é","<|im_end|>"]})");
}

TEST(Records, tokenize_takes_ids_and_flushes) {
  const Json out = tokenize_record(tiny_tokenizer(), parse(R"({"ids":[198]})"), AddSpecial::kNo);
  EXPECT_EQ(out.get_string("flush"), "\xEF\xBF\xBD");
  EXPECT_FALSE(out.contains("id"));
}

TEST(Records, ids_of_any_kind_pass_through) {
  for (const char* id : {"7", "null", "[1,{\"a\":2}]", "\"s\"", "1.5"}) {
    const Json in = parse(cat("{\"id\":", id, ",\"text\":\"a\"}"));
    EXPECT_EQ(tokenize_record(tiny_tokenizer(), in, AddSpecial::kNo).at("id"), in.at("id"));
  }
}

TEST(Records, broken_records_answer_with_an_error) {
  const Tokenizer tokenizer = tiny_tokenizer();
  for (const char* in : {"{\"id\":1}", "{\"id\":1,\"text\":5}", "{\"id\":1,\"ids\":[-1]}",
                         "{\"id\":1,\"ids\":{}}"}) {
    const Json out = tokenize_record(tokenizer, parse(in), AddSpecial::kNo);
    EXPECT_EQ(out.get_int("id"), 1);
    EXPECT_FALSE(out.get_string("error").empty());
    EXPECT_FALSE(out.contains("ids"));
  }
  EXPECT_TRUE(tokenize_record(tokenizer, parse("[1]"), AddSpecial::kNo).contains("error"));
  const ChatTemplate chat = plain_chatml();
  for (const char* in : {"{\"id\":1}", "{\"id\":1,\"messages\":3}", "[]",
                         "{\"id\":1,\"messages\":[],\"add_generation_prompt\":\"yes\"}",
                         "{\"id\":1,\"messages\":[],\"kwargs\":[]}",
                         "{\"id\":1,\"messages\":[],\"special_tokens\":{\"a\":1}}"}) {
    EXPECT_TRUE(render_record(chat, parse(in), {}).contains("error")) << in;
  }
}

TEST(Records, render_takes_prompt_tools_tokens_and_arguments) {
  const ChatTemplate chat = ChatTemplate::parse(
      "{{ bos_token }}{{ messages[0].content }}{{ mood }}{{ level }}{{ tools | length }}"
      "{% if add_generation_prompt %}>{% endif %}",
      "t");
  RenderRecordOptions options;
  options.special.named["bos_token"] = "<s>";
  EXPECT_EQ(render_record(chat, parse(R"({"id":3,"messages":[{"role":"user","content":"hi"}],
      "tools":[{"type":"function"}],"add_generation_prompt":true,"kwargs":{"mood":"!"},"level":2})"),
                          options)
                .dump(),
            R"({"id":3,"text":"<s>hi!21>"})");
  EXPECT_EQ(render_record(chat, parse(R"({"id":3,"messages":[{"role":"user","content":"hi"}],
      "tools":[],"special_tokens":{"bos_token":"<b>"}})"),
                          options)
                .get_string("text"),
            "<b>hi0");
}

TEST(Records, rendered_spans_count_characters) {
  const Json out = render_record(marked_chatml(), parse(R"({"messages":[
      {"role":"user","content":"é"},{"role":"assistant","content":"ü"}]})"),
                                 {});
  EXPECT_EQ(out.at("assistant_spans").dump(), "[[51,63]]");
}

TEST(Records, data_gives_each_line_its_record) {
  const std::string path = galley::testing::scratch_directory("records") + "/a.jsonl";
  std::ofstream(path) << "{\"prompt\":\"a\",\"completion\":\"b\"}\n{bad}\n"
                         "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}\n\n{\"text\":5}\n";
  const ChatTemplate chat = plain_chatml();
  const RowTokenizer rows(tiny_tokenizer(), &chat, tiny_special_tokens(), {});
  std::string out;
  const uint64_t errors = data_records(Dataset::read(path), rows, DataView::kIds,
                                       [&](const Json& record) { out += record.dump() + "\n"; });
  EXPECT_EQ(errors, 2u);
  EXPECT_EQ(
      out,
      R"({"line":1,"ids":[100,101,2],"labels":[-100,101,2]})"
      "\n"
      R"({"line":2,"error":{"line":2,"kind":"json_syntax","text":"a key in double quotes is expected here"}})"
      "\n"
      R"({"line":3,"dropped":"no_target"})"
      "\n"
      R"({"line":5,"error":{"line":5,"kind":"wrong_type","text":"\"text\" is an integer, not a string"}})"
      "\n");
}

TEST(Records, pain_P088_labels_are_shown_beside_the_ids) {
  const std::string path = galley::testing::scratch_directory("records") + "/a.jsonl";
  std::ofstream(path) << "{\"prompt\":\"ab\",\"completion\":\"cd\"}\n";
  const RowTokenizer rows(tiny_tokenizer(), nullptr, tiny_special_tokens(), {});
  data_records(Dataset::read(path), rows, DataView::kLabels, [](const Json& record) {
    EXPECT_EQ(record.get_string("shown"), "ab[[cd<|im_end|>]]");
  });
}

TEST(Records, reference_tokenize_records_equal_the_stored_lines) {
  GALLEY_NEED_REFERENCE(folder, "tokens");
  const std::string tokenizers = path_join(folder, "../tokenizers");
  std::map<std::string, std::string> texts;
  for (const Json& one : galley::testing::read_json_lines(folder + "/texts.jsonl")) {
    texts[one.get_string("id")] = one.get_string("text");
  }
  CaseCount count("tokens as records (qwen3)");
  const Tokenizer tokenizer = Tokenizer::load(tokenizers + "/qwen3");
  for (const Json& line : galley::testing::read_json_lines(folder + "/qwen3.jsonl")) {
    Json in = Json::object();
    in.set("id", line.at("id")).set("text", texts.at(line.get_string("id")));
    const Json out = tokenize_record(tokenizer, in, AddSpecial::kYes);
    EXPECT_EQ(out.at("ids"), line.at("ids")) << line.get_string("id");
    EXPECT_EQ(out.at("text"), line.at("decode")) << line.get_string("id");
    std::string joined = out.get_string("flush");
    std::string pieces;
    for (const Json& piece : out.at("pieces").as_array()) pieces += piece.as_string();
    EXPECT_EQ(pieces + joined, out.get_string("text"));
    count.pass();
  }
}

}  // namespace
}  // namespace galley::text
