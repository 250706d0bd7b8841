#include "engine/text/rows_messages.h"

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::text {
namespace {

bool present(const Json* value) { return value != nullptr && !value->is_null(); }

Json message_of(std::string_view role, Json content) {
  Json out = Json::object();
  out.set("role", role).set("content", std::move(content));
  return out;
}

// {name, arguments}, a list of such, or the JSON text of either -> tool_calls.
Json::Array calls_of(const Json& value) {
  Json parsed = value;
  if (value.is_string()) parsed = parse_json_or_throw(value.as_string(), "call", Reason::kBadData);
  const Json::Array calls = parsed.is_array() ? parsed.as_array() : Json::Array{parsed};
  Json::Array out;
  for (const Json& call : calls) {
    Json function = Json::object();
    function.set("name", call.at("name")).set("arguments", call.at("arguments"));
    Json entry = Json::object();
    entry.set("type", "function").set("function", std::move(function));
    out.push_back(std::move(entry));
  }
  return out;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.as_string() : value.dump();
}

class RowReader {
 public:
  RowReader(const Json& row, ToolCalls tool_calls) : row_(row), tool_calls_(tool_calls) {}

  PlainRow read(RowForm form) {
    switch (form) {
      case RowForm::kText:
        out_.shape = PlainRow::Shape::kText;
        out_.text = row_.at("text").as_string();
        break;
      case RowForm::kPromptCompletion:
        prompt_completion();
        break;
      case RowForm::kMessages:
        out_.shape = PlainRow::Shape::kMessages;
        add_messages(row_.at("messages"));
        break;
      case RowForm::kAlpaca:
        alpaca();
        break;
      case RowForm::kShareGpt:
        conversations();
        break;
    }
    if (out_.shape != PlainRow::Shape::kText && out_.shape != PlainRow::Shape::kStrings) tools();
    if (!has_weights_) out_.weights.clear();
    return std::move(out_);
  }

 private:
  void add(Json message, double weight = 1) {
    out_.messages.push(std::move(message));
    out_.weights.push_back(weight);
  }

  void prompt_completion() {
    const Json& prompt = row_.at("prompt");
    if (prompt.is_string()) {
      out_.shape = PlainRow::Shape::kStrings;
      out_.prompt = prompt.as_string();
      out_.text = row_.at("completion").as_string();
      return;
    }
    out_.shape = PlainRow::Shape::kPromptMessages;
    add_messages(prompt);
    out_.num_prompt_messages = out_.messages.as_array().size();
    add_messages(row_.at("completion"));
  }

  void add_messages(const Json& list) {
    for (const Json& one : list.as_array()) add_message(one);
  }

  void add_message(const Json& one) {
    Json message = Json::object();
    double weight = 1;
    for (const Json::Member& member : one.as_object()) {
      if (member.first != "loss_weight") {
        message.set(member.first, member.second);
      } else if (!member.second.is_null()) {
        weight = member.second.as_double();
        has_weights_ = true;
      }
    }
    const Json* content = one.find("content");
    if (content != nullptr && content->is_array()) flatten(content->as_array(), &message);
    add(std::move(message), weight);
  }

  // Typed parts -> content, reasoning_content and tool_calls.
  void flatten(const Json::Array& parts, Json* message) const {
    std::string text, reasoning;
    Json::Array calls;
    for (const Json& part : parts) {
      const Json& value = present(part.find("text")) ? part.at("text") : part.at("value");
      const std::string& type = part.at("type").as_string();
      if (type == "reasoning") {
        reasoning += value.as_string();
      } else if (type == "tool_call" && tool_calls_ == ToolCalls::kStructured) {
        for (Json& call : calls_of(value)) calls.push_back(std::move(call));
      } else {
        text += text_of(value);
      }
    }
    message->set("content", std::move(text));
    if (!reasoning.empty()) message->set("reasoning_content", std::move(reasoning));
    if (!calls.empty()) message->set("tool_calls", std::move(calls));
  }

  void system_field() {
    const std::string system = row_.get_string("system");
    if (!system.empty()) add(message_of("system", system));
  }

  void alpaca() {
    out_.shape = PlainRow::Shape::kMessages;
    system_field();
    if (const Json* history = row_.find("history"); present(history)) {
      for (const Json& pair : history->as_array()) {
        add(message_of("user", pair.as_array()[0]));
        add(message_of("assistant", pair.as_array()[1]));
      }
    }
    const std::string input = row_.get_string("input");
    add(message_of("user", row_.get_string("instruction") + (input.empty() ? "" : "\n" + input)));
    add(message_of("assistant", row_.at("output")));
  }

  void conversations() {
    out_.shape = PlainRow::Shape::kMessages;
    system_field();
    for (const Json& turn : row_.at("conversations").as_array()) add_turn(turn);
    if (const Json* chosen = row_.find("chosen"); present(chosen)) {
      out_.shape = PlainRow::Shape::kPromptMessages;
      out_.num_prompt_messages = out_.messages.as_array().size();
      add_turn(*chosen);
    }
  }

  void add_turn(const Json& turn) {
    const std::string& from = turn.at("from").as_string();
    const Json& value = turn.at("value");
    if (from == "function_call") {
      Json message = message_of("assistant", "");
      if (tool_calls_ == ToolCalls::kStructured) {
        message.set("tool_calls", calls_of(value));
      } else {
        message.set("content", text_of(value));
      }
      return add(std::move(message));
    }
    std::string_view role = from;
    if (from == "human") role = "user";
    if (from == "gpt") role = "assistant";
    if (from == "observation") role = "tool";
    add(message_of(role, value));
  }

  void tools() {
    const Json* tools = row_.find("tools");
    if (!present(tools)) return;
    Json parsed = *tools;
    if (tools->is_string()) {
      if (trim(tools->as_string()).empty()) return;
      parsed = parse_json_or_throw(tools->as_string(), "tools", Reason::kBadData);
    }
    if (parsed.is_array() && !parsed.as_array().empty()) out_.tools = std::move(parsed);
  }

  const Json& row_;
  ToolCalls tool_calls_;
  PlainRow out_;
  bool has_weights_ = false;
};

}  // namespace

PlainRow plain_row(const Json& row, RowForm form, ToolCalls tool_calls) {
  return RowReader(row, tool_calls).read(form);
}

}  // namespace galley::text
