#include "engine/text/chat_template.h"

#include <algorithm>
#include <optional>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/hash.h"
#include "engine/core/strings.h"
#include "engine/text/chat_template_marks.h"
#include "engine/text/jinja_evaluator.h"
#include "engine/text/jinja_parser.h"
#include "engine/text/jinja_unicode.h"

namespace galley::text {

namespace {

constexpr size_t kMaxSourceBytes = size_t{4} << 20;
constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";
// Names that a message's reasoning has had; the first is the one that templates read.
constexpr const char* kReasoningFields[] = {"reasoning_content", "thinking", "reasoning"};

[[noreturn]] void fail(const std::string& message) { throw jinja::Failure(message); }

// Drops members that are null, and copies reasoning under the names that templates look for.
Json prepare_message(const Json& message) {
  if (!message.is_object()) {
    fail(cat("Chat messages should be objects, but one is ", message.kind_name(), "."));
  }
  Json::Object kept;
  for (const auto& member : message.as_object()) {
    if (!member.second.is_null()) kept.push_back(member);
  }
  const Json given{Json::Object(kept)};
  const Json* reasoning = nullptr;
  for (const char* field : kReasoningFields) {
    if (reasoning == nullptr) reasoning = given.find(field);
  }
  if (reasoning == nullptr) return given;
  const Json* thinking = given.find("thinking");
  Json out = Json::object();
  out.set("thinking", thinking != nullptr ? *thinking : *reasoning);
  for (const auto& [key, value] : kept) {
    if (key != "thinking") out.set(key, value);
  }
  out.set("reasoning_content", *reasoning);
  return out;
}

/// The last message with the mark at the end of what is to be continued.
class Continuation {
 public:
  Continuation(const ContinueFinal& asked, const std::string& source)
      : field_(asked.mode == ContinueFinal::Mode::kField ? asked.field : "content"),
        source_(source) {}

  void open(Json* messages) {
    if (messages->as_array().empty()) {
      fail("continue_final_message is set but the conversation is empty!");
    }
    Json& last = messages->as_array().back();
    const Json* value = last.find(field_);
    if (value == nullptr) {
      fail(cat("continue_final_message is set but the final message has no \"", field_,
               "\" to continue!"));
    }
    const std::vector<std::string> fields = same_fields(last, *value);
    const bool known = std::any_of(fields.begin(), fields.end(), [&](const std::string& field) {
      return source_.find(field) != std::string::npos;
    });
    if (!known) {
      fail(cat("continue_final_message is set to \"", field_,
               "\" but this is not an accepted field in the chat_template"));
    }
    if (value->is_array()) {
      open_part(last.find(field_));
      return;
    }
    if (!value->is_string()) {
      fail(cat("continue_final_message: \"", field_, "\" is ", value->kind_name()));
    }
    text_ = value->as_string();
    for (const std::string& field : fields) last.set(field, text_ + std::string(kContinueTag));
  }

  // Cuts the rendered text at the mark.
  void cut(std::string* rendered) const {
    const std::string_view wanted = jinja::strip_space(text_);
    const std::string_view tag = kContinueTag.substr(0, kContinueTag.size() - 1);
    const size_t at = rendered->rfind(tag);
    if (rendered->find(wanted) == std::string::npos || at == std::string::npos) {
      fail(
          "continue_final_message is set but the final message does not appear in the chat after "
          "applying the chat template! This can happen if the chat template deletes portions of "
          "the final message.");
    }
    const bool whole = rendered->compare(at, kContinueTag.size(), kContinueTag) == 0;
    rendered->resize(at);
    if (!whole) rendered->resize(jinja::strip_space(*rendered, jinja::Side::kRight).size());
  }

 private:
  // Names under which the last message has the same reasoning.
  std::vector<std::string> same_fields(const Json& last, const Json& value) const {
    std::vector<std::string> fields;
    const bool is_reasoning = std::find(std::begin(kReasoningFields), std::end(kReasoningFields),
                                        field_) != std::end(kReasoningFields);
    if (!is_reasoning) return {field_};
    for (const char* field : kReasoningFields) {
      const Json* other = last.find(field);
      if (other != nullptr && *other == value) fields.emplace_back(field);
    }
    return fields;
  }

  void open_part(Json* parts) {
    auto& list = parts->as_array();
    for (auto part = list.rbegin(); part != list.rend(); ++part) {
      Json* text = part->find("text");
      if (text == nullptr) continue;
      if (!text->is_string()) fail("continue_final_message: the last text part is no string");
      text_ = text->as_string();
      *text = Json(text_ + std::string(kContinueTag));
      return;
    }
    fail(
        "continue_final_message is set but we could not find any text to continue in the final "
        "message!");
  }

  std::string field_;
  const std::string& source_;
  std::string text_;  // what is continued
};

std::tm with_weekday(std::tm now) {
  std::tm copy = now;
  if (timegm(&copy) != -1) {
    now.tm_wday = copy.tm_wday;
    now.tm_yday = copy.tm_yday;
  }
  return now;
}

/// What one rendering takes, after the checks and changes before the template.
struct Inputs {
  Json messages, tools, extra;
  bool has_tools = false;
  ControlMarks marks;
};

Inputs prepare(const Json& messages, const SpecialTokens& special, const ChatOptions& options,
               const std::string& source) {
  if (!messages.is_array()) fail(cat("messages must be a list, not ", messages.kind_name()));
  Inputs inputs;
  Json::Array prepared;
  for (const Json& message : messages.as_array()) prepared.push_back(prepare_message(message));
  inputs.messages = Json(std::move(prepared));
  inputs.has_tools = options.tools != nullptr && !options.tools->is_null();
  if (inputs.has_tools) inputs.tools = *options.tools;
  inputs.extra = options.extra;
  if (!inputs.extra.is_object()) fail("template variables must be an object");
  if (options.sanitize == Sanitize::kYes && !special.strings.empty()) {
    inputs.marks = choose_marks({&inputs.messages, &inputs.tools, &inputs.extra}, source);
    for (Json* input : {&inputs.messages, &inputs.tools, &inputs.extra}) {
      *input = mark_control_strings(*input, special.strings, inputs.marks);
    }
  }
  return inputs;
}

std::vector<std::pair<std::string, jinja::Value>> variables_of(const Inputs& inputs,
                                                               const SpecialTokens& special,
                                                               const ChatOptions& options,
                                                               jinja::Budget& budget) {
  std::vector<std::pair<std::string, jinja::Value>> variables;
  for (const auto& [name, text] : special.named) {
    variables.emplace_back(name, jinja::Value::string(text));
  }
  variables.emplace_back("documents", jinja::Value());
  for (const auto& [name, value] : inputs.extra.as_object()) {
    if (name == "messages" || name == "tools" || name == "add_generation_prompt") {
      fail(cat("\"", name, "\" cannot be set as a template variable"));
    }
    variables.emplace_back(name, jinja::Value::from_json(value, budget));
  }
  variables.emplace_back("messages", jinja::Value::from_json(inputs.messages, budget));
  variables.emplace_back("tools", jinja::Value::from_json(inputs.tools, budget));
  variables.emplace_back("add_generation_prompt",
                         jinja::Value::boolean(options.add_generation_prompt));
  return variables;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source, std::string where)
    : source_(std::move(source)), where_(std::move(where)) {}

ChatTemplate ChatTemplate::parse(std::string source, std::string where) {
  size_t bad = 0;
  if (source.size() > kMaxSourceBytes) {
    throw Error(Reason::kBadTemplate,
                cat(where, ": the chat template is larger than ", format_bytes(kMaxSourceBytes)));
  }
  if (!is_valid_utf8(source, &bad)) {
    throw Error(Reason::kBadTemplate,
                cat(where, ": the chat template is not valid UTF-8 at byte ", bad));
  }
  ChatTemplate made(std::move(source), std::move(where));
  try {
    made.program_ = jinja::parse(made.source_);
  } catch (const jinja::Failure& failure) {
    throw Error(Reason::kBadTemplate,
                cat(made.where_, ":", std::max(1, failure.line()), ": ", failure.what()));
  }
  return made;
}

bool ChatTemplate::has_generation_marks() const { return program_->has_generation; }

std::string ChatTemplate::hash() const { return hash128_hex(source_); }

RenderedChat ChatTemplate::render(const Json& messages, const SpecialTokens& special,
                                  const ChatOptions& options) const {
  const bool continues = options.continue_final.mode != ContinueFinal::Mode::kNo;
  const std::tm now = with_weekday(options.local_now);
  jinja::Evaluator evaluator(*program_, jinja::Limits{}, now);
  RenderedChat chat;
  bool inside = false;  // the template is running
  try {
    if (continues && options.add_generation_prompt) {
      fail("continue_final_message and add_generation_prompt are not compatible");
    }
    Inputs inputs = prepare(messages, special, options, source_);
    Continuation continuation(options.continue_final, source_);
    if (continues) continuation.open(&inputs.messages);
    const auto variables = variables_of(inputs, special, options, evaluator.budget());
    inside = true;
    chat.text = evaluator.render(variables, &chat.assistant_spans);
    inside = false;
    if (continues) continuation.cut(&chat.text);
    for (auto& [begin, end] : chat.assistant_spans) {
      begin = std::min(begin, chat.text.size());
      end = std::min(end, chat.text.size());
    }
    if (!inputs.marks.empty()) take_marks(inputs.marks, &chat);
  } catch (const jinja::Refusal& refusal) {
    throw Error(Reason::kBadTemplate,
                cat(where_, ":", evaluator.line(),
                    ": the chat template refuses these messages: ", refusal.what()));
  } catch (const jinja::Failure& failure) {
    const std::string line = inside ? cat(":", evaluator.line()) : "";
    throw Error(Reason::kBadTemplate, cat(where_, line, ": ", failure.what()));
  }
  return chat;
}

}  // namespace galley::text
