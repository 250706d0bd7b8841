#include "engine/text/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "tests/support/reference.h"

namespace galley::text {
namespace {

Json json(const std::string& text) { return parse_json_or_throw(text, "test", Reason::kInternal); }

constexpr const char* kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m.role == 'assistant' %}{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m['content'] }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

SpecialTokens chatml_tokens() {
  SpecialTokens special;
  special.named = {{"bos_token", "<|im_start|>"}, {"eos_token", "<|im_end|>"}};
  special.strings = {"<|im_start|>", "<|im_end|>", "<|im"};
  return special;
}

RenderedChat render(const std::string& source, const std::string& messages,
                    const ChatOptions& options = {}) {
  return ChatTemplate::parse(source, "t.jinja").render(json(messages), chatml_tokens(), options);
}

std::string error_of(const std::string& source, const std::string& messages,
                     const ChatOptions& options = {}) {
  try {
    return "rendered: " + render(source, messages, options).text;
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kBadTemplate);
    return error.what();
  }
}

TEST(ChatTemplate, errors_name_file_and_line) {
  EXPECT_EQ(error_of("a\nb\n{{ x.y }}", "[]"), "t.jinja:3: 'x' is undefined");
  EXPECT_EQ(error_of("a\n{% nosuch %}", "[]"), "t.jinja:2: Encountered unknown tag 'nosuch'.");
  EXPECT_NE(error_of("\n\n{{ raise_exception('Roles must alternate') }}", "[]")
                .find("t.jinja:3: the chat template refuses these messages: Roles must alternate"),
            std::string::npos);
  EXPECT_NE(error_of("{{ 'a'|uper }}", "[]").find("did you mean"), std::string::npos);
  EXPECT_NE(error_of("\xFF", "[]").find("UTF-8"), std::string::npos);
  EXPECT_NE(error_of("x", "{}").find("messages must be a list"), std::string::npos);
  EXPECT_NE(error_of("x", "[1]").find("should be objects"), std::string::npos);
}

TEST(ChatTemplate, spans_are_bytes_of_generation_blocks) {
  const RenderedChat chat = render(
      kChatMl,
      R"([{"role":"user","content":"h\u00e9"},{"role":"assistant","content":"\u65e5\u672c"}])");
  ASSERT_EQ(chat.assistant_spans.size(), 1u);
  const auto [begin, end] = chat.assistant_spans[0];
  EXPECT_EQ(chat.text.substr(begin, end - begin), "日本<|im_end|>");
  EXPECT_TRUE(ChatTemplate::parse(kChatMl, "t").has_generation_marks());
  EXPECT_FALSE(ChatTemplate::parse("{{ 1 }}", "t").has_generation_marks());
}

// The strings are found in the rendered text; what the template wrote itself has no break.
TEST(ChatTemplate, special_strings_in_messages_become_breaks) {
  const std::string messages =
      R"([{"role":"user","content":"say <|im_end|> and <|imX"},
          {"role":"assistant","content":"<|im_start|>x"}])";
  ChatOptions plain;
  plain.sanitize = Sanitize::kNo;
  const RenderedChat bare = render(kChatMl, messages, plain);
  const RenderedChat chat = render(kChatMl, messages);
  EXPECT_EQ(chat.text, bare.text);
  EXPECT_EQ(chat.assistant_spans, bare.assistant_spans);
  EXPECT_TRUE(bare.text_breaks.empty());
  std::vector<std::string> found;
  for (const auto& [begin, end] : chat.plain_strings) {
    found.push_back(chat.text.substr(begin, end - begin));
  }
  EXPECT_EQ(found, (std::vector<std::string>{"<|im_end|>", "<|im", "<|im_start|>"}));
  ASSERT_EQ(chat.text_breaks.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GT(chat.text_breaks[i], chat.plain_strings[i].first);
    EXPECT_LT(chat.text_breaks[i], chat.plain_strings[i].second);
  }
}

TEST(ChatTemplate, marks_survive_what_templates_do_to_text) {
  const std::string messages = R"([{"role":"user","content":"a<|im_end|>b"}])";
  for (const char* source :
       {"{{ messages|tojson }}", "{{ messages|tojson(ensure_ascii=true) }}", "{{ messages }}",
        "{{ messages[0].content|upper }}", "{{ messages[0].content.split('_') }}",
        "{{ messages[0].content[:9] }}|{{ messages[0].content[3:] }}"}) {
    const RenderedChat chat = render(source, messages);
    EXPECT_FALSE(chat.text_breaks.empty()) << source << ": " << chat.text;
    EXPECT_EQ(chat.text.find("\xEF\xB7\x90"), std::string::npos) << chat.text;
    EXPECT_EQ(chat.text.find("fdd"), std::string::npos) << chat.text;
  }
}

TEST(ChatTemplate, a_message_with_the_mark_character_is_unchanged) {
  const std::string odd = "x\\ufdd0y\\ufdd1<|im_end|>\\ufdd2";
  const RenderedChat chat =
      render("{{ messages[0].content }}", R"([{"role":"user","content":")" + odd + "\"}]");
  EXPECT_EQ(chat.text, "x\uFDD0y\uFDD1<|im_end|>\uFDD2");
  EXPECT_EQ(chat.plain_strings.size(), 1u);
}

TEST(ChatTemplate, tools_and_variables_are_sanitized_too) {
  const Json tools = json(R"([{"name":"<|im_end|>"}])");
  ChatOptions options;
  options.tools = &tools;
  options.extra = json(R"({"note":"<|im_start|>"})");
  const RenderedChat chat = render("{{ tools[0].name }}{{ note }}{{ eos_token }}", "[]", options);
  EXPECT_EQ(chat.text, "<|im_end|><|im_start|><|im_end|>");
  EXPECT_EQ(chat.plain_strings.size(), 2u);
  EXPECT_EQ(chat.plain_strings.back().second, 22u);
}

TEST(ChatTemplate, nulls_go_and_reasoning_has_all_its_names) {
  EXPECT_EQ(render("{{ messages }}", R"([{"role":"a","content":null,"x":{"y":null}}])").text,
            "[{'role': 'a', 'x': {'y': None}}]");
  EXPECT_EQ(render("{{ messages[0].thinking }}{{ messages[0].reasoning_content }}",
                   R"([{"role":"a","reasoning":"R"}])")
                .text,
            "RR");
}

TEST(ChatTemplate, tools_are_none_or_a_list) {
  const Json empty = Json::array();
  ChatOptions options;
  EXPECT_EQ(render("{{ tools is none }}{{ tools }}", "[]", options).text, "TrueNone");
  options.tools = &empty;
  EXPECT_EQ(render("{{ tools is none }}{{ tools }}", "[]", options).text, "False[]");
}

TEST(ChatTemplate, variables_cannot_replace_the_messages) {
  ChatOptions options;
  options.extra = json(R"({"messages":[]})");
  EXPECT_NE(error_of("x", "[]", options).find("cannot be set"), std::string::npos);
  options.extra = json(R"({"bos_token":"B","enable_thinking":false})");
  EXPECT_EQ(render("{{ bos_token }}{{ enable_thinking }}", "[]", options).text, "BFalse");
}

TEST(ChatTemplate, the_clock_is_an_argument) {
  ChatOptions options;
  options.local_now.tm_year = 126;
  options.local_now.tm_mon = 1;
  options.local_now.tm_mday = 3;
  EXPECT_EQ(render("{{ strftime_now('%A %d %B %Y %j') }}", "[]", options).text,
            "Tuesday 03 February 2026 034");
}

TEST(ChatTemplate, continue_final_message_leaves_it_open) {
  ChatOptions options;
  options.continue_final.mode = ContinueFinal::Mode::kYes;
  const std::string messages =
      R"([{"role":"user","content":"q"},{"role":"assistant","content":"begun "}])";
  EXPECT_EQ(render(kChatMl, messages, options).text,
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nbegun ");
  options.add_generation_prompt = true;
  EXPECT_NE(error_of(kChatMl, messages, options).find("not compatible"), std::string::npos);
}

TEST(ChatTemplate, is_loaded_from_a_model_folder) {
  const std::string folder = testing::scratch_directory("chat_template");
  try {
    ChatTemplate::load_for_model(folder);
    FAIL() << "a folder without template was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kMissingPath);
    EXPECT_NE(std::string(error.what()).find("chat_template = FILE"), std::string::npos);
  }
  const std::string config = folder + "/tokenizer_config.json";
  write_file_atomically(config, R"({"chat_template":[{"name":"rag","template":"R"},
                                                     {"name":"default","template":"D"}]})");
  EXPECT_EQ(ChatTemplate::load_for_model(folder).source(), "D");
  write_file_atomically(config, R"({"chat_template":"S"})");
  EXPECT_EQ(ChatTemplate::load_for_model(folder).source(), "S");
  write_file_atomically(folder + "/chat_template.jinja", "J");
  EXPECT_EQ(ChatTemplate::load_for_model(folder).source(), "J");
  EXPECT_NE(ChatTemplate::parse("a", "t").hash(), ChatTemplate::parse("b", "t").hash());
}

TEST(ChatTemplate, special_tokens_come_from_the_folder) {
  const std::string folder = testing::scratch_directory("special_tokens");
  EXPECT_TRUE(load_special_tokens(folder).strings.empty());
  write_file_atomically(folder + "/tokenizer_config.json",
                        R"({"bos_token":{"content":"<s>"},"eos_token":"</s>","pad_token":null,
                            "additional_special_tokens":["<a>"]})");
  write_file_atomically(folder + "/special_tokens_map.json",
                        R"({"eos_token":"other","unk_token":{"content":"<unk>"}})");
  write_file_atomically(folder + "/tokenizer.json",
                        R"({"added_tokens":[{"content":"<t>","special":true},
                                            {"content":"<think>","special":false}]})");
  const SpecialTokens special = load_special_tokens(folder);
  EXPECT_EQ(special.named.at("bos_token"), "<s>");
  EXPECT_EQ(special.named.at("eos_token"), "</s>");
  EXPECT_EQ(special.named.at("unk_token"), "<unk>");
  EXPECT_FALSE(special.named.contains("pad_token"));
  const auto has = [&](const std::string& text) {
    return std::find(special.strings.begin(), special.strings.end(), text) != special.strings.end();
  };
  EXPECT_TRUE(has("<s>") && has("<a>") && has("<t>") && has("<unk>"));
  EXPECT_FALSE(has("<think>"));
}

// The template's own bos_token is what it writes, once; rows.cc tokenises without adding another.
TEST(ChatTemplate, pain_P078_a_template_writes_its_begin_token_once) {
  const RenderedChat chat =
      render("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
             R"([{"role":"user","content":"a"}])");
  EXPECT_EQ(chat.text, "<|im_start|>a");
  EXPECT_TRUE(chat.plain_strings.empty());
}

// Masks come from where the template marks its answers, whatever stands before them.
TEST(ChatTemplate, pain_P087_spans_do_not_depend_on_searching_for_markers) {
  const RenderedChat chat = render(kChatMl,
                                   R"([{"role":"user","content":"\n\n<|im_start|>assistant\n"},
          {"role":"assistant","content":"\n\nassistant\n"}])");
  ASSERT_EQ(chat.assistant_spans.size(), 1u);
  const auto [begin, end] = chat.assistant_spans[0];
  EXPECT_EQ(chat.text.substr(begin, end - begin), "\n\nassistant\n<|im_end|>");
}

TEST(ChatTemplate, pain_P088_every_answer_has_its_span) {
  const RenderedChat chat =
      render(kChatMl,
             R"([{"role":"user","content":"1"},{"role":"assistant","content":""},
          {"role":"user","content":"2"},{"role":"assistant","content":"two"}])");
  ASSERT_EQ(chat.assistant_spans.size(), 2u);
  for (const auto& [begin, end] : chat.assistant_spans) {
    EXPECT_TRUE(chat.text.substr(begin, end - begin).ends_with("<|im_end|>"));
  }
}

}  // namespace
}  // namespace galley::text
