#include "engine/core/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley {

Json::Json(uint64_t value) {
  if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    value_ = static_cast<int64_t>(value);
  } else {
    value_ = static_cast<double>(value);
  }
}

std::string_view Json::kind_name() const {
  constexpr std::string_view kNames[] = {"null",     "a boolean", "an integer", "a number",
                                         "a string", "a list",    "an object"};
  return kNames[value_.index()];
}

bool Json::as_bool() const {
  GALLEY_CHECK(is_bool());
  return std::get<bool>(value_);
}
int64_t Json::as_int() const {
  GALLEY_CHECK(is_int());
  return std::get<int64_t>(value_);
}
double Json::as_double() const {
  if (is_int()) return static_cast<double>(std::get<int64_t>(value_));
  GALLEY_CHECK(kind() == Kind::kDouble);
  return std::get<double>(value_);
}
const std::string& Json::as_string() const {
  GALLEY_CHECK(is_string());
  return std::get<std::string>(value_);
}
const Json::Array& Json::as_array() const {
  GALLEY_CHECK(is_array());
  return std::get<Array>(value_);
}
Json::Array& Json::as_array() {
  GALLEY_CHECK(is_array());
  return std::get<Array>(value_);
}
const Json::Object& Json::as_object() const {
  GALLEY_CHECK(is_object());
  return std::get<Object>(value_);
}
Json::Object& Json::as_object() {
  GALLEY_CHECK(is_object());
  return std::get<Object>(value_);
}

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const Member& member : std::get<Object>(value_)) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}
Json* Json::find(std::string_view key) {
  return const_cast<Json*>(static_cast<const Json*>(this)->find(key));
}
const Json& Json::at(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) throw Error(Reason::kInternal, cat("record has no key \"", key, "\""));
  return *value;
}
Json& Json::set(std::string key, Json value) {
  if (is_null()) value_ = Object{};
  if (Json* old = find(key)) {
    *old = std::move(value);
  } else {
    as_object().emplace_back(std::move(key), std::move(value));
  }
  return *this;
}
void Json::push(Json value) {
  if (is_null()) value_ = Array{};
  as_array().push_back(std::move(value));
}

std::string Json::get_string(std::string_view key, std::string_view fallback) const {
  const Json* value = find(key);
  return value == nullptr || value->is_null() ? std::string(fallback) : value->as_string();
}
int64_t Json::get_int(std::string_view key, int64_t fallback) const {
  const Json* value = find(key);
  return value == nullptr || value->is_null() ? fallback : value->as_int();
}
double Json::get_double(std::string_view key, double fallback) const {
  const Json* value = find(key);
  return value == nullptr || value->is_null() ? fallback : value->as_double();
}
bool Json::get_bool(std::string_view key, bool fallback) const {
  const Json* value = find(key);
  return value == nullptr || value->is_null() ? fallback : value->as_bool();
}

std::string json_quote(std::string_view text, bool ascii_only) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x80 && ascii_only) {
      const char32_t c = next_utf8(text, &i);
      if (c >= 0x10000) {
        const char32_t v = c - 0x10000;
        out += format("\\u%04x\\u%04x", static_cast<unsigned>(0xD800 + (v >> 10)),
                      static_cast<unsigned>(0xDC00 + (v & 0x3FF)));
      } else {
        out += format("\\u%04x", static_cast<unsigned>(c));
      }
      continue;
    }
    ++i;
    switch (byte) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (byte < 0x20 || (byte == 0x7F && ascii_only)) {
          out += format("\\u%04x", byte);
        } else {
          out.push_back(static_cast<char>(byte));
        }
    }
  }
  out.push_back('"');
  return out;
}

std::string format_double_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  // Shortest digits in scientific form, then laid out as Python does: fixed for exponents in
  // [-4, 16), otherwise scientific with at least two exponent digits.
  const auto result =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string text(buffer, result.ptr);
  const size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  std::string digits = text.substr(0, e);
  if (exponent < -4 || exponent >= 16) {
    return digits + format("e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  const bool negative = digits[0] == '-';
  if (negative) digits.erase(0, 1);
  digits.erase(std::remove(digits.begin(), digits.end(), '.'), digits.end());
  if (exponent < 0) {
    digits = "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else if (digits.size() <= static_cast<size_t>(exponent) + 1) {
    digits += std::string(static_cast<size_t>(exponent) + 1 - digits.size(), '0') + ".0";
  } else {
    digits.insert(static_cast<size_t>(exponent) + 1, ".");
  }
  return (negative ? "-" : "") + digits;
}

namespace {

void write(const Json& value, int indent, std::string* out) {
  const auto new_line = [&](int depth) {
    if (indent >= 0) out->append("\n").append(static_cast<size_t>(depth) * 2, ' ');
  };
  const int deeper = indent < 0 ? -1 : indent + 1;
  switch (value.kind()) {
    case Json::Kind::kNull:
      *out += "null";
      break;
    case Json::Kind::kBool:
      *out += value.as_bool() ? "true" : "false";
      break;
    case Json::Kind::kInt:
      *out += std::to_string(value.as_int());
      break;
    case Json::Kind::kDouble:
      *out += std::isfinite(value.as_double()) ? format_double_repr(value.as_double()) : "null";
      break;
    case Json::Kind::kString:
      *out += json_quote(value.as_string());
      break;
    case Json::Kind::kArray: {
      out->push_back('[');
      bool first = true;
      for (const Json& item : value.as_array()) {
        if (!first) out->push_back(',');
        first = false;
        new_line(deeper);
        write(item, deeper, out);
      }
      if (!first) new_line(indent);
      out->push_back(']');
      break;
    }
    case Json::Kind::kObject: {
      out->push_back('{');
      bool first = true;
      for (const Json::Member& member : value.as_object()) {
        if (!first) out->push_back(',');
        first = false;
        new_line(deeper);
        *out += json_quote(member.first);
        *out += indent < 0 ? ":" : ": ";
        write(member.second, deeper, out);
      }
      if (!first) new_line(indent);
      out->push_back('}');
      break;
    }
  }
}

// Builds a Json value from the library's events and stops at the first fault.
class Builder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  Builder(Json* root, JsonFault* fault, JsonLimits limits)
      : root_(root), fault_(fault), limits_(limits) {}

  bool null() { return put(Json()); }
  bool boolean(bool value) { return put(Json(value)); }
  bool number_integer(number_integer_t value) { return put(Json(static_cast<int64_t>(value))); }
  bool number_unsigned(number_unsigned_t value) { return put(Json(static_cast<uint64_t>(value))); }
  bool number_float(number_float_t value, const string_t&) { return put(Json(value)); }
  bool string(string_t& value) { return put(Json(std::move(value))); }
  bool binary(binary_t&) { return false; }
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() {
    keys_.pop_back();
    stack_.pop_back();
    return true;
  }
  bool end_array() { return end_object(); }
  bool key(string_t& value) {
    if (!keys_.back().insert(value).second) {
      fault_->kind = JsonFault::Kind::kDuplicateKey;
      fault_->message = "key \"" + value + "\" occurs twice in one object";
      return false;
    }
    key_ = std::move(value);
    return true;
  }
  template <typename Exception>
  bool parse_error(size_t position, const string_t&, const Exception& exception) {
    fault_->kind = JsonFault::Kind::kSyntax;
    fault_->offset = position > 0 ? position - 1 : 0;
    std::string message = exception.what();
    // The library's text is "[json.exception...] parse error at line 1, column 2: reason".
    if (const size_t colon = message.find(": "); colon != std::string::npos) {
      message = message.substr(colon + 2);
    }
    if (message.find("surrogate") != std::string::npos) {
      fault_->kind = JsonFault::Kind::kInvalidUnicode;
    } else if (message.find("UTF-8") != std::string::npos) {
      fault_->kind = JsonFault::Kind::kInvalidUtf8;
    }
    fault_->message = message;
    return false;
  }

 private:
  Json* place(Json value) {
    if (stack_.empty()) {
      *root_ = std::move(value);
      return root_;
    }
    Json* parent = stack_.back();
    if (parent->is_array()) {
      parent->as_array().push_back(std::move(value));
      return &parent->as_array().back();
    }
    parent->as_object().emplace_back(std::move(key_), std::move(value));
    return &parent->as_object().back().second;
  }
  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  // A pointer into the parent stays valid while the child is open: the parent cannot grow then.
  bool open(Json value) {
    if (static_cast<int>(stack_.size()) >= limits_.max_depth) {
      fault_->kind = JsonFault::Kind::kTooDeep;
      fault_->message = cat("nested deeper than ", limits_.max_depth, " levels");
      return false;
    }
    stack_.push_back(place(std::move(value)));
    keys_.emplace_back();
    return true;
  }

  Json* root_;
  JsonFault* fault_;
  JsonLimits limits_;
  std::vector<Json*> stack_;
  std::vector<std::unordered_set<std::string>> keys_;
  std::string key_;
};

}  // namespace

std::string Json::dump() const {
  std::string out;
  write(*this, -1, &out);
  return out;
}

std::string Json::dump_pretty() const {
  std::string out;
  write(*this, 0, &out);
  return out + "\n";
}

bool parse_json(std::string_view text, Json* value, JsonFault* fault, JsonLimits limits) {
  *fault = JsonFault{};
  *value = Json();
  size_t bad = 0;
  if (!is_valid_utf8(text, &bad)) {
    fault->kind = JsonFault::Kind::kInvalidUtf8;
    fault->offset = bad;
    fault->message = "not valid UTF-8";
    return false;
  }
  Builder builder(value, fault, limits);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    if (fault->message.empty()) fault->message = "not a JSON value";
    return false;
  }
  return true;
}

Json parse_json_or_throw(std::string_view text, const std::string& where, Reason reason,
                         JsonLimits limits) {
  Json value;
  JsonFault fault;
  if (parse_json(text, &value, &fault, limits)) return value;
  if (text.starts_with("version https://git-lfs.github.com/spec")) {
    throw Error(reason, cat(where,
                            ": this is a Git LFS pointer, not the file; run `git lfs pull` in "
                            "its folder"));
  }
  const std::string_view before = text.substr(0, std::min(fault.offset, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t line_begin = before.rfind('\n');
  const size_t column = before.size() - (line_begin == std::string_view::npos ? 0 : line_begin + 1);
  throw Error(reason, cat(where, ":", line, ":", column + 1, ": ", fault.message));
}

}  // namespace galley
