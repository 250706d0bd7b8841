// JsonField: a value of tokenizer.json together with its place in the file, for reading it with
// errors that say where. Borrows the value; for one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/json.h"

namespace galley::text::internal {

class JsonField {
 public:
  /// The top of the file that errors call `file`.
  static JsonField top(const Json* value, const std::string& file) { return {value, file, ": "}; }

  /// "FILE: pre_tokenizer.pretokenizers[1]".
  const std::string& where() const { return where_; }
  const Json& json() const { return *value_; }
  bool is_null() const { return value_->is_null(); }
  /// Throws Error(kBadTokenizer, "WHERE: MESSAGE").
  [[noreturn]] void broken(const std::string& message) const;
  /// Throws Error(kUnsupported, "WHERE: MESSAGE").
  [[noreturn]] void unsupported(const std::string& message) const;

  /// True when this object has `key` and its value is not null.
  bool has(std::string_view key) const;
  /// The member `key`; broken() when this is no object or lacks it.
  JsonField at(std::string_view key) const;
  /// The elements; broken() when this is no list.
  std::vector<JsonField> items() const;

  const std::string& string() const;
  bool boolean() const;
  /// An integer within [least, most].
  int64_t integer(int64_t least, int64_t most) const;
  double number() const;
  /// A string of exactly one character.
  char32_t character() const;

  /// Members with the library's defaults for missing (or null) keys.
  bool boolean_or(std::string_view key, bool fallback) const;
  std::string string_or(std::string_view key, std::string_view fallback) const;

 private:
  JsonField(const Json* value, std::string where, std::string_view separator)
      : value_(value), where_(std::move(where)), separator_(separator) {}

  const Json* value_;
  std::string where_;
  std::string_view separator_;  // between where_ and a key
};

}  // namespace galley::text::internal
