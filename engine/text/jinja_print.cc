// Python's str() and repr() of values.
#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "engine/text/jinja_unicode.h"
#include "engine/text/jinja_value.h"

namespace galley::text::jinja {

namespace {

bool is_mark(char32_t c) { return c >= 0xFDD0 && c <= 0xFDEF; }

void append_escape(std::string* out, char32_t c) {
  const auto code = static_cast<unsigned>(c);
  if (c < 0x100) {
    *out += format("\\x%02x", code);
  } else if (c < 0x10000) {
    *out += format("\\u%04x", code);
  } else {
    *out += format("\\U%08x", code);
  }
}

void append_quoted(std::string* out, const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos;
  const char quote = has_single && text.find('"') == std::string::npos ? '"' : '\'';
  out->push_back(quote);
  for (size_t offset = 0; offset < text.size();) {
    const size_t begin = offset;
    const char32_t c = next_utf8(text, &offset);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c == '\n') {
      *out += "\\n";
    } else if (c == '\r') {
      *out += "\\r";
    } else if (c == '\t') {
      *out += "\\t";
    } else if (c < 0x7F ? c >= ' ' : is_printable(c) || is_mark(c)) {
      out->append(text, begin, offset - begin);
    } else {
      append_escape(out, c);
    }
  }
  out->push_back(quote);
}

void append_repr(std::string* out, const Value& value, Budget& budget);

void append_items(std::string* out, const Items& items, Budget& budget) {
  bool first = true;
  for (const Value& item : items) {
    if (!first) *out += ", ";
    first = false;
    append_repr(out, item, budget);
  }
}

void append_dict(std::string* out, const Pairs& pairs, Budget& budget) {
  *out += '{';
  bool first = true;
  for (const auto& [key, value] : pairs) {
    if (!first) *out += ", ";
    first = false;
    append_repr(out, key, budget);
    *out += ": ";
    append_repr(out, value, budget);
  }
  *out += '}';
}

// Checks the size as it goes: shared lists can print far larger than they are.
void append_repr(std::string* out, const Value& value, Budget& budget) {
  budget.step();
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      *out += "Undefined";
      break;
    case Value::Kind::kNone:
      *out += "None";
      break;
    case Value::Kind::kBool:
      *out += value.as_bool() ? "True" : "False";
      break;
    case Value::Kind::kInt:
      *out += int_text(value.as_int());
      break;
    case Value::Kind::kFloat:
      *out += format_double_repr(value.as_double());
      break;
    case Value::Kind::kString:
      if (value.is_markup()) *out += "Markup(";
      append_quoted(out, value.as_string());
      if (value.is_markup()) *out += ')';
      break;
    case Value::Kind::kList:
      *out += '[';
      append_items(out, value.as_items(), budget);
      *out += ']';
      break;
    case Value::Kind::kTuple:
      *out += '(';
      append_items(out, value.as_items(), budget);
      *out += value.as_items().size() == 1 ? ",)" : ")";
      break;
    case Value::Kind::kDict:
      append_dict(out, value.as_pairs(), budget);
      break;
    case Value::Kind::kObject: {
      Budget::Level level(budget);  // objects may hold each other
      *out += value.as_object().repr(budget);
      break;
    }
  }
  budget.growing(out->size());
}

}  // namespace

std::string int_text(Int value) {
  const bool negative = value < 0;
  std::string digits;
  do {
    const int digit = static_cast<int>(value % 10);
    digits.insert(digits.begin(), static_cast<char>('0' + (digit < 0 ? -digit : digit)));
    value /= 10;
  } while (value != 0);
  return negative ? "-" + digits : digits;
}

std::string to_repr(const Value& value, Budget& budget) {
  std::string out;
  append_repr(&out, value, budget);
  budget.text(out.size());
  return out;
}

std::string to_text(const Value& value, Budget& budget) {
  if (value.is_string()) {
    budget.text(value.as_string().size());
    return value.as_string();
  }
  if (value.is_undefined()) return "";
  return to_repr(value, budget);
}

}  // namespace galley::text::jinja
