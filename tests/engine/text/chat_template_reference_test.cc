// Every line of every reference/chat/TEMPLATE.jsonl: text, refusals, assistant spans.
#include <gtest/gtest.h>

#include <map>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "engine/text/chat_template.h"
#include "tests/support/reference.h"

namespace galley::text {
namespace {

std::tm fixed_clock() {
  std::tm clock{};
  clock.tm_year = 2025 - 1900;
  clock.tm_mon = 2;
  clock.tm_mday = 14;
  clock.tm_hour = 9;
  clock.tm_min = 26;
  clock.tm_sec = 53;
  return clock;
}

ChatTemplate find_template(const std::string& folder, const std::string& name) {
  for (const std::string& path : {"/templates/" + name + ".jinja", "/chat/" + name + ".jinja"}) {
    if (path_exists(folder + path)) return ChatTemplate::load(folder + path);
  }
  return ChatTemplate::load_for_model(folder + "/tokenizers/" + name.substr(name.find('_') + 1));
}

ChatOptions options_of(const Json& conversation) {
  const Json& given = conversation.at("options");
  ChatOptions options;
  options.local_now = fixed_clock();
  options.sanitize = Sanitize::kNo;
  options.add_generation_prompt = given.get_bool("add_generation_prompt");
  options.tools = given.find("tools");
  if (const Json* kwargs = given.find("kwargs")) options.extra = *kwargs;
  if (const Json* field = given.find("continue_final_message")) {
    if (field->is_string()) {
      options.continue_final = {ContinueFinal::Mode::kField, field->as_string()};
    } else if (field->as_bool()) {
      options.continue_final.mode = ContinueFinal::Mode::kYes;
    }
  }
  return options;
}

// Offsets of code points; the reference counts those.
Json spans_in_code_points(const RenderedChat& chat) {
  std::vector<int64_t> index(chat.text.size() + 1);
  int64_t count = 0;
  for (size_t i = 0; i < chat.text.size(); ++i) {
    index[i] = count;
    if (i + 1 == chat.text.size() || (chat.text[i + 1] & 0xC0) != 0x80) ++count;
  }
  index[chat.text.size()] = count;
  Json spans = Json::array();
  for (const auto& [begin, end] : chat.assistant_spans) {
    spans.push(Json(Json::Array{Json(index[begin]), Json(index[end])}));
  }
  return spans;
}

Json cut_spans(const RenderedChat& chat) {
  Json texts = Json::array();
  for (const auto& [begin, end] : chat.assistant_spans) {
    texts.push(Json(chat.text.substr(begin, end - begin)));
  }
  return texts;
}

SpecialTokens special_of(const Json& row) {
  SpecialTokens special;
  for (const auto& [name, text] : row.at("special_tokens").as_object()) {
    special.named[name] = text.as_string();
  }
  return special;
}

void check_row(const ChatTemplate& chat_template, const Json& row, const Json& conversation) {
  const SpecialTokens special = special_of(row);
  const ChatOptions options = options_of(conversation);
  RenderedChat chat;
  std::string error;
  try {
    chat = chat_template.render(conversation.at("messages"), special, options);
  } catch (const Error& failure) {
    EXPECT_EQ(failure.reason(), Reason::kBadTemplate);
    error = failure.what();
  }
  if (row.contains("error")) {
    EXPECT_NE(error, "") << "rendered: " << chat.text;
    if (row.get_string("error_type") == "TemplateError") {
      EXPECT_NE(error.find(row.get_string("error")), std::string::npos) << error;
    }
    return;
  }
  EXPECT_EQ(error, "");
  EXPECT_EQ(chat.text, row.get_string("text"));
  if (const Json* spans = row.find("assistant_spans")) {
    EXPECT_TRUE(chat_template.has_generation_marks());
    EXPECT_EQ(spans_in_code_points(chat).dump(), spans->dump());
    EXPECT_EQ(cut_spans(chat).dump(), row.at("assistant_text").dump());
  }
}

// With the sanitiser the text is the same, and what it found is cut from the messages.
void check_sanitized(const ChatTemplate& chat_template, const Json& row, const Json& conversation) {
  SpecialTokens special = special_of(row);
  for (const auto& [name, text] : special.named) special.strings.push_back(text);
  special.strings.push_back("<|im_start|>");
  ChatOptions options = options_of(conversation);
  options.sanitize = Sanitize::kYes;
  bool mentions = false;
  for (const std::string& token : special.strings) {
    mentions |= conversation.dump().find(token) != std::string::npos;
  }
  if (row.contains("error") || mentions) return;
  const RenderedChat chat = chat_template.render(conversation.at("messages"), special, options);
  EXPECT_EQ(chat.text, row.get_string("text"));
  EXPECT_TRUE(chat.text_breaks.empty());
}

TEST(ChatTemplateReference, every_conversation_of_every_template) {
  GALLEY_NEED_REFERENCE(folder, "chat");
  const std::string reference = path_directory(folder);
  std::map<std::string, Json> conversations;
  const Json all = parse_json_or_throw(read_file(folder + "/conversations.json"),
                                       "conversations.json", Reason::kBadData);
  for (const Json& conversation : all.as_array()) {
    conversations[conversation.get_string("id")] = conversation;
  }
  testing::CaseCount count("chat templates x conversations");
  for (const std::string& file : testing::list_directory(folder)) {
    if (!file.ends_with(".jsonl") || file == "jinja.jsonl") continue;
    const std::string name = file.substr(0, file.size() - 6);
    SCOPED_TRACE(name);
    const ChatTemplate chat_template = find_template(reference, name);
    for (const Json& row : testing::read_json_lines(folder + "/" + file)) {
      SCOPED_TRACE(row.get_string("conv"));
      const Json& conversation = conversations.at(row.get_string("conv"));
      check_row(chat_template, row, conversation);
      check_sanitized(chat_template, row, conversation);
      count.pass();
    }
  }
}

}  // namespace
}  // namespace galley::text
