#include "engine/text/dataset_shape.h"

#include <array>
#include <cmath>
#include <vector>

#include "engine/core/strings.h"

namespace galley::text {
namespace {

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};
constexpr std::array<std::string_view, 8> kTurns = {
    "human", "user", "gpt", "assistant", "system", "observation", "tool", "function_call"};

template <size_t kCount>
bool is_one_of(const std::array<std::string_view, kCount>& names, std::string_view name) {
  for (const std::string_view candidate : names) {
    if (candidate == name) return true;
  }
  return false;
}

bool present(const Json* value) { return value != nullptr && !value->is_null(); }

class ShapeChecker {
 public:
  explicit ShapeChecker(const Json& row) : row_(row) {}

  RowShape run() {
    if (!row_.is_object()) {
      fault(FaultKind::kNotObject, cat("a row is a JSON object, this is ", row_.kind_name()));
    } else if (recognise()) {
      check_form();
    }
    return std::move(shape_);
  }

 private:
  void fault(FaultKind kind, std::string text) {
    if (shape_.fault && shape_.fault->kind <= kind) return;
    shape_.fault = ShapeFault{kind, std::move(text)};
  }
  void wrong_type(const std::string& where, std::string_view wanted, const Json& value) {
    fault(FaultKind::kWrongType, cat(where, " is ", value.kind_name(), ", not ", wanted));
  }

  // Finds the one form whose keys are all there. Keys with null do not count while another form is
  // whole: tables exported from several sources carry such columns.
  bool recognise() {
    struct Form {
      RowForm form;
      std::vector<std::string_view> keys;
    };
    static const std::vector<Form> kForms = {{RowForm::kMessages, {"messages"}},
                                             {RowForm::kPromptCompletion, {"prompt", "completion"}},
                                             {RowForm::kText, {"text"}},
                                             {RowForm::kAlpaca, {"instruction", "output"}},
                                             {RowForm::kShareGpt, {"conversations"}}};
    std::vector<RowForm> filled, named;
    std::string missing;
    for (const Form& form : kForms) {
      size_t num_filled = 0, num_named = 0;
      std::string_view absent;
      for (const std::string_view key : form.keys) {
        const Json* value = row_.find(key);
        num_filled += present(value) ? 1 : 0;
        num_named += value != nullptr ? 1 : 0;
        if (value == nullptr) absent = key;
      }
      if (num_filled == form.keys.size()) filled.push_back(form.form);
      if (num_named == form.keys.size()) named.push_back(form.form);
      if (num_named > 0 && !absent.empty()) {
        missing = cat("form ", row_form_name(form.form), " lacks the key \"", absent, "\"");
      }
    }
    const std::vector<RowForm>& found = filled.empty() ? named : filled;
    if (found.empty()) {
      fault(FaultKind::kMissingKey,
            !missing.empty() ? missing
                             : "no known form: a row has messages, prompt and completion, text, "
                               "instruction and output, or conversations");
      return false;
    }
    if (found.size() > 1) {
      fault(FaultKind::kAmbiguousForm, cat("keys of two forms, ", row_form_name(found[0]), " and ",
                                           row_form_name(found[1]), "; remove one"));
      return false;
    }
    shape_.form = found[0];
    return true;
  }

  void check_form() {
    switch (shape_.form) {
      case RowForm::kMessages:
        shape_.without_assistant = !messages("messages", *row_.find("messages"));
        return tools();
      case RowForm::kPromptCompletion:
        prompt_completion();
        return tools();
      case RowForm::kText:
        string_key("text");
        return;
      case RowForm::kAlpaca:
        return alpaca();
      case RowForm::kShareGpt:
        shape_.without_assistant = !conversations();
        return tools();
    }
  }

  void string_key(const char* key) {
    const Json* value = row_.find(key);
    if (!value->is_string()) wrong_type(cat("\"", key, "\""), "a string", *value);
  }
  void optional_string_key(const char* key) {
    if (present(row_.find(key))) string_key(key);
  }

  void prompt_completion() {
    const Json& prompt = *row_.find("prompt");
    const Json& completion = *row_.find("completion");
    const bool lists = prompt.is_array() && completion.is_array();
    if ((prompt.is_string() && completion.is_array()) ||
        (prompt.is_array() && completion.is_string())) {
      fault(FaultKind::kMixedForm,
            "prompt and completion must both be strings or both be lists of messages");
    } else if (lists) {
      messages("prompt", prompt);
      messages("completion", completion);
    } else {
      if (!prompt.is_array()) string_key("prompt");
      if (!completion.is_array()) string_key("completion");
    }
  }

  void alpaca() {
    string_key("instruction");
    string_key("output");
    optional_string_key("input");
    optional_string_key("system");
    const Json* history = row_.find("history");
    if (!present(history)) return;
    if (!history->is_array()) return wrong_type("\"history\"", "a list", *history);
    for (size_t i = 0; i < history->as_array().size(); ++i) {
      const Json& pair = history->as_array()[i];
      const bool good = pair.is_array() && pair.as_array().size() == 2 &&
                        pair.as_array()[0].is_string() && pair.as_array()[1].is_string();
      if (!good) fault(FaultKind::kWrongType, cat("history[", i, "] is not a pair of strings"));
    }
  }

  // True when some assistant turn can have loss.
  bool messages(const std::string& name, const Json& list) {
    if (!list.is_array()) {
      wrong_type(cat("\"", name, "\""), "a list of messages", list);
      return false;
    }
    if (list.as_array().empty()) {
      fault(FaultKind::kEmptyMessages, cat("\"", name, "\" is an empty list"));
    }
    bool assistant = false;
    for (size_t i = 0; i < list.as_array().size(); ++i) {
      const Json& one = list.as_array()[i];
      const std::string where = cat(name, "[", i, "]");
      if (!one.is_object()) {
        wrong_type(where, "an object", one);
        continue;
      }
      assistant |= message(where, one);
    }
    return assistant;
  }

  bool message(const std::string& where, const Json& one) {
    const bool is_assistant = name_of(where, one, "role", kRoles,
                                      "system, developer, user, assistant, tool") == "assistant";
    const Json* calls = one.find("tool_calls");
    const bool has_calls = present(calls) && calls->is_array() && !calls->as_array().empty();
    if (present(calls)) tool_calls(where, *calls);
    content(where, one, is_assistant && has_calls);
    const bool has_loss = weight(where, one) != 0;
    return is_assistant && has_loss;
  }

  // The value of a key that must hold one of some names; empty when it does not.
  template <size_t kCount>
  std::string name_of(const std::string& where, const Json& one, const char* key,
                      const std::array<std::string_view, kCount>& names, std::string_view list) {
    const Json* value = one.find(key);
    if (value == nullptr) {
      fault(FaultKind::kMissingKey, cat(where, " lacks the key \"", key, "\""));
    } else if (!value->is_string()) {
      wrong_type(cat(where, ".", key), "a string", *value);
    } else if (!is_one_of(names, value->as_string())) {
      fault(FaultKind::kUnknownRole, cat(where, ".", key, " is none of ", list, " (case matters)"));
    } else {
      return value->as_string();
    }
    return "";
  }

  void content(const std::string& where, const Json& one, bool may_be_null) {
    const Json* content = one.find("content");
    if (may_be_null && !present(content)) return;
    if (content == nullptr) {
      fault(FaultKind::kMissingKey, cat(where, " lacks the key \"content\""));
    } else if (content->is_array()) {
      for (size_t i = 0; i < content->as_array().size(); ++i) {
        part(cat(where, ".content[", i, "]"), content->as_array()[i]);
      }
    } else if (!content->is_string()) {
      wrong_type(where + ".content", "a string or a list of parts", *content);
    }
  }

  void part(const std::string& where, const Json& part) {
    if (!part.is_object()) return wrong_type(where, "an object", part);
    const Json* type = part.find("type");
    if (type == nullptr) {
      return fault(FaultKind::kMissingKey, cat(where, " lacks the key \"type\""));
    }
    if (!type->is_string()) return wrong_type(where + ".type", "a string", *type);
    const std::string& name = type->as_string();
    if (name != "text" && name != "reasoning" && name != "tool_call") {
      return fault(FaultKind::kUnsupportedPart,
                   cat(where, ": only parts of type text, reasoning and tool_call can be used"));
    }
    const Json* value = part.find("text");
    if (!present(value) && part.contains("value")) value = part.find("value");
    if (value == nullptr) {
      return fault(FaultKind::kMissingKey, cat(where, " lacks the key \"text\""));
    }
    if (name == "tool_call") return called(where, *value);
    if (!value->is_string()) wrong_type(where, "a string", *value);
  }

  double weight(const std::string& where, const Json& one) {
    const Json* weight = one.find("loss_weight");
    if (!present(weight)) return 1;
    if (!weight->is_number()) {
      wrong_type(where + ".loss_weight", "a number", *weight);
      return 1;
    }
    if (weight->as_double() < 0) {
      fault(FaultKind::kWrongValue, where + ".loss_weight is negative");
    }
    return weight->as_double();
  }

  void tool_calls(const std::string& where, const Json& calls) {
    if (!calls.is_array()) {
      return fault(FaultKind::kBadToolCall, where + ".tool_calls is not a list");
    }
    for (size_t i = 0; i < calls.as_array().size(); ++i) {
      const Json* call = &calls.as_array()[i];
      if (const Json* function = call->find("function")) call = function;
      const Json* name = call->find("name");
      if (name == nullptr || !name->is_string()) {
        fault(FaultKind::kBadToolCall,
              cat(where, ".tool_calls[", i, "] has no function with a name"));
      }
    }
  }

  // A call as {name, arguments}, a list of such, or the JSON text of one.
  void called(const std::string& where, const Json& value) {
    Json parsed;
    const Json* call = &value;
    if (value.is_string()) {
      JsonFault ignored;
      if (!parse_json(value.as_string(), &parsed, &ignored)) {
        return fault(FaultKind::kBadToolCall, where + " does not hold the JSON of a call");
      }
      call = &parsed;
    }
    const Json::Array calls = call->is_array() ? call->as_array() : Json::Array{*call};
    for (const Json& one : calls) {
      const Json* name = one.find("name");
      if (name == nullptr || !name->is_string() || !one.contains("arguments")) {
        fault(FaultKind::kBadToolCall, where + " is not {\"name\": ..., \"arguments\": ...}");
      }
    }
  }

  void tools() {
    const Json* tools = row_.find("tools");
    if (!present(tools)) return;
    Json parsed;
    if (tools->is_string()) {
      if (trim(tools->as_string()).empty()) return;
      JsonFault ignored;
      if (!parse_json(tools->as_string(), &parsed, &ignored)) {
        return fault(FaultKind::kBadTools, "\"tools\" does not hold the JSON of a list");
      }
      if (parsed.is_null()) return;
      tools = &parsed;
    }
    if (!tools->is_array()) return fault(FaultKind::kBadTools, "\"tools\" is not a list");
    for (const Json& tool : tools->as_array()) {
      if (!tool.is_object())
        fault(FaultKind::kBadTools, "\"tools\" holds something else than objects");
    }
  }

  bool conversations() {
    const Json& list = *row_.find("conversations");
    optional_string_key("system");
    if (!list.is_array()) {
      wrong_type("\"conversations\"", "a list of turns", list);
      return false;
    }
    if (list.as_array().empty()) {
      fault(FaultKind::kEmptyMessages, "\"conversations\" is an empty list");
    }
    bool assistant = false;
    for (size_t i = 0; i < list.as_array().size(); ++i) {
      assistant |= turn(cat("conversations[", i, "]"), list.as_array()[i]);
    }
    const Json* chosen = row_.find("chosen");
    return (present(chosen) && turn("chosen", *chosen)) || assistant;
  }

  bool turn(const std::string& where, const Json& one) {
    if (!one.is_object()) {
      wrong_type(where, "an object", one);
      return false;
    }
    const std::string from =
        name_of(where, one, "from", kTurns,
                "human, user, gpt, assistant, system, observation, tool, function_call");
    const Json* value = one.find("value");
    if (value == nullptr) {
      fault(FaultKind::kMissingKey, cat(where, " lacks the key \"value\""));
    } else if (from == "function_call") {
      called(where + ".value", *value);
    } else if (!value->is_string()) {
      wrong_type(where + ".value", "a string", *value);
    }
    return from == "gpt" || from == "assistant" || from == "function_call";
  }

  const Json& row_;
  RowShape shape_;
};

}  // namespace

RowShape check_row(const Json& row) { return ShapeChecker(row).run(); }

}  // namespace galley::text
