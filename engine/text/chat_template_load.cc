// Chat templates and special tokens of model folders.
#include <algorithm>
#include <optional>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "engine/text/chat_template.h"

namespace galley::text {

namespace {

constexpr const char* kNamedTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

/// A JSON file of a model folder, or nothing where there is none.
std::optional<Json> read_json_file(const std::string& path) {
  if (!path_exists(path)) return std::nullopt;
  Json json = parse_json_or_throw(read_file(path), path, Reason::kBadTokenizer);
  if (!json.is_object()) throw Error(Reason::kBadTokenizer, cat(path, ": must hold an object"));
  return json;
}

/// A token given as a string or as an object with `content`.
std::optional<std::string> token_text(const Json* token) {
  if (token == nullptr) return std::nullopt;
  if (token->is_object()) token = token->find("content");
  if (token == nullptr || !token->is_string()) return std::nullopt;
  return token->as_string();
}

void add_string(const std::optional<std::string>& text, SpecialTokens* special) {
  if (!text || text->empty()) return;
  auto& strings = special->strings;
  if (std::find(strings.begin(), strings.end(), *text) == strings.end()) strings.push_back(*text);
}

void add_named(const std::string& name, const Json* token, SpecialTokens* special) {
  const std::optional<std::string> text = token_text(token);
  if (!text) return;
  special->named.try_emplace(name, *text);
  add_string(text, special);
}

// Entries of added_tokens_decoder (an object by id) and added_tokens (a list) alike.
void add_if_special(const Json& entry, SpecialTokens* special) {
  const Json* flag = entry.find("special");
  if (flag != nullptr && flag->is_bool() && flag->as_bool()) {
    add_string(token_text(&entry), special);
  }
}

void add_list(const Json* list, SpecialTokens* special) {
  if (list == nullptr) return;
  if (list->is_array()) {
    for (const Json& token : list->as_array()) add_string(token_text(&token), special);
  }
  if (list->is_object()) {  // named tokens of one model family
    for (const auto& [name, token] : list->as_object()) add_named(name, &token, special);
  }
}

void add_file(const Json& file, SpecialTokens* special) {
  for (const char* name : kNamedTokens) add_named(name, file.find(name), special);
  add_list(file.find("additional_special_tokens"), special);
  add_list(file.find("extra_special_tokens"), special);
  if (const Json* decoder = file.find("added_tokens_decoder");
      decoder != nullptr && decoder->is_object()) {
    for (const auto& entry : decoder->as_object()) add_if_special(entry.second, special);
  }
}

/// The template of a list of named ones: "default", or the only one.
const Json* pick_template(const Json& list) {
  for (const Json& entry : list.as_array()) {
    const Json* name = entry.find("name");
    if (name != nullptr && name->is_string() && name->as_string() == "default") {
      return entry.find("template");
    }
  }
  return list.as_array().size() == 1 ? list.as_array()[0].find("template") : nullptr;
}

}  // namespace

SpecialTokens load_special_tokens(const std::string& model_folder) {
  SpecialTokens special;
  bool has_decoder = false;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::optional<Json> file = read_json_file(path_join(model_folder, name));
    if (!file) continue;
    add_file(*file, &special);
    has_decoder |= file->contains("added_tokens_decoder");
  }
  if (has_decoder) return special;  // it lists what tokenizer.json lists
  const std::optional<Json> tokenizer = read_json_file(path_join(model_folder, "tokenizer.json"));
  const Json* added = tokenizer ? tokenizer->find("added_tokens") : nullptr;
  if (added != nullptr && added->is_array()) {
    for (const Json& entry : added->as_array()) add_if_special(entry, &special);
  }
  return special;
}

ChatTemplate ChatTemplate::load(const std::string& path) { return parse(read_file(path), path); }

ChatTemplate ChatTemplate::load_for_model(const std::string& model_folder) {
  const std::string own_file = path_join(model_folder, "chat_template.jinja");
  if (path_exists(own_file)) return load(own_file);
  const std::string config_path = path_join(model_folder, "tokenizer_config.json");
  const std::optional<Json> config = read_json_file(config_path);
  const Json* found = config ? config->find("chat_template") : nullptr;
  if (found != nullptr && found->is_array()) {
    found = pick_template(*found);
    if (found == nullptr) {
      throw Error(Reason::kBadTemplate, cat(config_path,
                                            ": chat_template names several templates and none is "
                                            "\"default\"; choose one with chat_template = FILE"));
    }
  }
  if (found != nullptr && found->is_string()) {
    return parse(found->as_string(), config_path + ": chat_template");
  }
  if (found != nullptr && !found->is_null()) {
    throw Error(Reason::kBadTemplate, cat(config_path, ": chat_template must be a string"));
  }
  throw Error(Reason::kMissingPath,
              cat(model_folder,
                  ": the model has no chat template (no chat_template.jinja, and no "
                  "chat_template in tokenizer_config.json); give one with "
                  "chat_template = FILE"));
}

}  // namespace galley::text
