// Json: an ordered JSON value, a strict parser and a writer. The only home of the JSON library.
//
// The parser refuses duplicate keys, invalid UTF-8, lone surrogates, anything after the value and
// nesting deeper than its limit. Objects keep the order of their keys, integers stay integers.
// A plain value type; no thread rules beyond those of std::vector.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace galley {

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;
  enum class Kind { kNull, kBool, kInt, kDouble, kString, kArray, kObject };

  Json() = default;
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(static_cast<int64_t>(value)) {}
  Json(int64_t value) : value_(value) {}
  Json(uint64_t value);  // values above the int64 range become doubles
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}
  static Json array() { return Json(Array{}); }
  static Json object() { return Json(Object{}); }

  Kind kind() const { return static_cast<Kind>(value_.index()); }
  bool is_null() const { return kind() == Kind::kNull; }
  bool is_bool() const { return kind() == Kind::kBool; }
  bool is_int() const { return kind() == Kind::kInt; }
  bool is_number() const { return is_int() || kind() == Kind::kDouble; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_array() const { return kind() == Kind::kArray; }
  bool is_object() const { return kind() == Kind::kObject; }
  /// "null", "a boolean", "an integer", "a number", "a string", "a list", "an object".
  std::string_view kind_name() const;

  // Each throws Error(kInternal) when the kind differs: check first, or use the checked get_*
  // below.
  bool as_bool() const;
  int64_t as_int() const;
  double as_double() const;  // also of an integer
  const std::string& as_string() const;
  const Array& as_array() const;
  Array& as_array();
  const Object& as_object() const;
  Object& as_object();

  /// The member `key` of an object, or nullptr (also when this is no object).
  const Json* find(std::string_view key) const;
  Json* find(std::string_view key);
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  /// The member `key`; throws Error(kInternal) when it is missing. For values we wrote ourselves.
  const Json& at(std::string_view key) const;
  /// Sets or replaces a member; a null value becomes an object first. Returns *this.
  Json& set(std::string key, Json value);
  /// Appends to an array; a null value becomes an array first.
  void push(Json value);

  // Members of our own messages and records: the value, or `fallback` when the key is missing or
  // null; Error(kInternal) when it has another kind.
  std::string get_string(std::string_view key, std::string_view fallback = "") const;
  int64_t get_int(std::string_view key, int64_t fallback = 0) const;
  double get_double(std::string_view key, double fallback = 0) const;
  bool get_bool(std::string_view key, bool fallback = false) const;

  bool operator==(const Json& other) const { return value_ == other.value_; }

  /// Compact text, keys in their order, non-ASCII kept, "NaN" never written (null instead).
  std::string dump() const;
  /// Indented by two spaces, with a final newline.
  std::string dump_pretty() const;

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

struct JsonLimits {
  int max_depth = 256;
};

/// What a strict parse found wrong, for callers that report it themselves.
struct JsonFault {
  enum class Kind { kSyntax, kTooDeep, kDuplicateKey, kInvalidUtf8, kInvalidUnicode };
  Kind kind = Kind::kSyntax;
  size_t offset = 0;    // bytes from the start
  std::string message;  // without position
};

/// Parses one JSON text; returns false and fills `fault` instead of throwing.
bool parse_json(std::string_view text, Json* value, JsonFault* fault, JsonLimits limits = {});
/// Parses or throws Error(reason, "WHERE:line:column: message").
class Error;
enum class Reason;
Json parse_json_or_throw(std::string_view text, const std::string& where, Reason reason,
                         JsonLimits limits = {});

/// Shortest decimal form that reads back to the same double, in the way of Python's repr ("1.0",
/// "1e+16", "0.1"); used by writers that must match Python.
std::string format_double_repr(double value);
/// Quoted JSON string; with `ascii_only` everything above 0x7E as \u escapes.
std::string json_quote(std::string_view text, bool ascii_only = false);

}  // namespace galley
