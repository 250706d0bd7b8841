#include "engine/text/tok_json.h"

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::text::internal {

void JsonField::broken(const std::string& message) const {
  throw Error(Reason::kBadTokenizer, where_ + ": " + message);
}

void JsonField::unsupported(const std::string& message) const {
  throw Error(Reason::kUnsupported, where_ + ": " + message);
}

bool JsonField::has(std::string_view key) const {
  const Json* member = value_->find(key);
  return member != nullptr && !member->is_null();
}

JsonField JsonField::at(std::string_view key) const {
  if (!value_->is_object()) broken(cat("must be an object, not ", value_->kind_name()));
  const Json* member = value_->find(key);
  if (member == nullptr) broken(cat("the key \"", key, "\" is missing"));
  return {member, cat(where_, separator_, key), "."};
}

std::vector<JsonField> JsonField::items() const {
  if (!value_->is_array()) broken(cat("must be a list, not ", value_->kind_name()));
  std::vector<JsonField> out;
  const Json::Array& array = value_->as_array();
  out.reserve(array.size());
  for (size_t i = 0; i < array.size(); ++i) {
    out.push_back({&array[i], cat(where_, "[", i, "]"), "."});
  }
  return out;
}

const std::string& JsonField::string() const {
  if (!value_->is_string()) broken(cat("must be a string, not ", value_->kind_name()));
  return value_->as_string();
}

bool JsonField::boolean() const {
  if (!value_->is_bool()) broken(cat("must be true or false, not ", value_->kind_name()));
  return value_->as_bool();
}

int64_t JsonField::integer(int64_t least, int64_t most) const {
  if (!value_->is_int()) broken(cat("must be an integer, not ", value_->kind_name()));
  const int64_t value = value_->as_int();
  if (value < least || value > most) {
    broken(cat("must lie within ", least, " and ", most, ", not ", value));
  }
  return value;
}

double JsonField::number() const {
  if (!value_->is_number()) broken(cat("must be a number, not ", value_->kind_name()));
  return value_->as_double();
}

char32_t JsonField::character() const {
  const std::string& text = string();
  size_t offset = 0;
  const char32_t c = text.empty() ? 0 : next_utf8(text, &offset);
  if (text.empty() || offset != text.size()) broken("must be one character, not \"" + text + "\"");
  return c;
}

bool JsonField::boolean_or(std::string_view key, bool fallback) const {
  return has(key) ? at(key).boolean() : fallback;
}

std::string JsonField::string_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? at(key).string() : std::string(fallback);
}

}  // namespace galley::text::internal
