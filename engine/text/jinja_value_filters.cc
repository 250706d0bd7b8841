// Filters that take numbers or anything.
#include <charconv>
#include <cmath>

#include "engine/core/strings.h"
#include "engine/text/jinja_evaluator.h"
#include "engine/text/jinja_objects.h"
#include "engine/text/jinja_operators.h"
#include "engine/text/jinja_tables.h"
#include "engine/text/jinja_unicode.h"

namespace galley::text::jinja {

namespace {

Value abs_filter(Evaluator&, const Value& subject, Arguments&) {
  if (subject.is_undefined()) fail_undefined(subject);
  if (!subject.is_number()) {
    throw Failure(cat("bad operand type for abs(): '", type_name(subject), "'"));
  }
  if (subject.is_integral()) {
    return subject.as_int() < 0 ? unary("-", subject) : Value::integer(subject.as_int());
  }
  return Value::real(std::fabs(subject.as_double()));
}

Value attr(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("attr", arguments, {"name"}, 1);
  if (subject.is_undefined()) fail_undefined(subject);
  const std::string& name = given.string(0);
  if (subject.is_dict() && find_method(subject, name) == nullptr &&
      !is_unsafe_method(subject, name) && !name.starts_with("__")) {
    return Value::undefined(cat("'dict object' has no attribute '", name, "'"));  // never a key
  }
  return evaluator.attribute(subject, name);
}

Value default_filter(Evaluator&, const Value& subject, Arguments& arguments) {
  const Parameters given("default", arguments, {"default_value", "boolean"});
  if (subject.is_undefined() || (given.flag(1) && !truthy(subject))) {
    return given.value_or(0, Value::string(""));
  }
  return subject;
}

Value length_filter(Evaluator&, const Value& subject, Arguments& arguments) {
  const Parameters none("length", arguments, {});
  const std::optional<size_t> size = length(subject);
  if (!size) throw Failure(cat("object of type '", type_name(subject), "' has no len()"));
  return Value::integer(static_cast<Int>(*size));
}

Value items_filter(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters none("items", arguments, {});
  Items items;
  if (!subject.is_undefined()) {
    if (!subject.is_dict()) throw Failure("Can only get item pairs from a mapping.");
    for (const auto& [key, value] : subject.as_pairs()) {
      items.push_back(Value::tuple({key, value}, evaluator.budget()));
    }
  }
  return Iterator::make("do_items", std::move(items));
}

// Digits with single underscores between them, without them; nothing if it is not that.
std::optional<std::string> plain_digits(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || i + 1 == text.size() || text[i - 1] == '_') {
      return std::nullopt;
    }
  }
  return out;
}

// Python's int(text, base).
std::optional<Int> read_int(std::string_view text, Int base) {
  text = strip_space(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0') {
    const char letter = static_cast<char>(text[1] | 0x20);
    const Int named = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (named != 0 && (base == named || base == 0)) {
      text.remove_prefix(text[2] == '_' ? 3 : 2);
      base = named;
    }
  }
  if (base == 0) base = 10;
  const std::optional<std::string> digits = plain_digits(text);
  if (!digits || digits->empty() || base < 2 || base > 36) return std::nullopt;
  Int value = 0;
  for (const char c : *digits) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const int digit = c >= '0' && c <= '9' ? c - '0' : is_letter ? (c | 0x20) - 'a' + 10 : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, base, &value) ||
        __builtin_add_overflow(value, Int{digit}, &value)) {
      throw Failure("an integer is larger than 127 bits");
    }
  }
  return negative ? -value : value;
}

// Python's float(text).
std::optional<double> read_float(std::string_view text) {
  text = strip_space(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const std::optional<std::string> digits = plain_digits(text);
  if (!digits || digits->empty() || (*digits)[0] == '-' || (*digits)[0] == '+') {
    return std::nullopt;
  }
  double value = 0;
  const char* end = digits->data() + digits->size();
  const auto result = std::from_chars(digits->data(), end, value);
  if (result.ptr != end || digits->find('(') != std::string::npos) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) {
    value = digits->find("e-") != std::string::npos ? 0 : HUGE_VAL;
  } else if (result.ec != std::errc()) {
    return std::nullopt;
  }
  return negative ? -value : value;
}

std::optional<Int> truncate_float(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  if (std::fabs(value) >= 0x1p126) throw Failure("an integer is larger than 127 bits");
  return static_cast<Int>(value);
}

Value int_filter(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("int", arguments, {"default", "base"});
  if (subject.is_undefined()) fail_undefined(subject);
  std::optional<Int> value;
  if (subject.is_string()) {
    evaluator.budget().scan(subject.as_string().size());
    value = read_int(subject.as_string(), given.integer(1, 10));
    if (!value) {
      if (const auto real = read_float(subject.as_string())) value = truncate_float(*real);
    }
  } else if (subject.is_integral()) {
    value = subject.as_int();
  } else if (subject.is_number()) {
    value = truncate_float(subject.as_double());
  }
  return value ? Value::integer(*value) : given.value_or(0, Value::integer(0));
}

Value float_filter(Evaluator&, const Value& subject, Arguments& arguments) {
  const Parameters given("float", arguments, {"default"});
  if (subject.is_undefined()) fail_undefined(subject);
  if (subject.is_number()) return Value::real(subject.as_double());
  if (subject.is_string()) {
    if (const auto value = read_float(subject.as_string())) return Value::real(*value);
  }
  return given.value_or(0, Value::real(0));
}

// Python's round(): to the nearest, ties to even, by the exact value of the float.
Value round_common(const Value& subject, Int digits) {
  if (subject.is_integral()) {
    if (digits >= 0) return Value::integer(subject.as_int());
    if (digits < -37) return Value::integer(0);
    Int unit = 1;
    for (Int i = 0; i > digits; --i) unit *= 10;
    const Int value = subject.as_int();
    Int rest = value % unit;
    if (rest < 0) rest += unit;
    const Int low = value - rest;
    const bool up = rest > unit - rest || (rest == unit - rest && (low / unit) % 2 != 0);
    return Value::integer(up ? low + unit : low);
  }
  const double value = subject.as_double();
  if (!std::isfinite(value) || digits > 323) return subject;
  if (digits < -308) return Value::real(std::copysign(0.0, value));
  if (digits >= 0) {
    const std::string text = format("%.*f", static_cast<int>(digits), value);
    return Value::real(std::strtod(text.c_str(), nullptr));
  }
  const double unit = std::pow(10.0, static_cast<double>(-digits));
  return Value::real(std::nearbyint(value / unit) * unit);
}

Value round_filter(Evaluator&, const Value& subject, Arguments& arguments) {
  const Parameters given("round", arguments, {"precision", "method"});
  if (subject.is_undefined()) fail_undefined(subject);
  if (!subject.is_number()) {
    throw Failure(cat("type ", type_name(subject), " doesn't define __round__ method"));
  }
  const std::string method = given.has(1) ? given.string(1) : "common";
  const Int digits = given.integer(0, 0);
  if (method == "common") return round_common(subject, digits);
  if (method != "ceil" && method != "floor") {
    throw Failure("method must be common, ceil or floor");
  }
  const double unit = std::pow(10.0, static_cast<double>(digits));
  const double scaled = subject.as_double() * unit;
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

Value filesizeformat(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("filesizeformat", arguments, {"binary"});
  Arguments none;
  const double bytes = float_filter(evaluator, subject, none).as_double();
  const bool binary = given.flag(0);
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return Value::string("1 Byte");
  if (std::fabs(bytes) < base) return Value::string(format("%.0f Bytes", std::trunc(bytes)));
  static constexpr const char* kPrefixes[] = {"k", "M", "G", "T", "P", "E", "Z", "Y"};
  double unit = base;
  size_t i = 0;
  while (i + 1 < std::size(kPrefixes) && bytes >= unit * base) {
    unit *= base;
    ++i;
  }
  std::string prefix = kPrefixes[i];
  if (binary) prefix = (prefix == "k" ? "K" : prefix) + "i";
  return Value::string(format("%.1f %sB", bytes / unit, prefix.c_str()));
}

Value pprint(Evaluator& evaluator, const Value& subject, Arguments&) {
  return Value::string(to_repr(subject, evaluator.budget()));
}

constexpr NamedBuiltin kFilters[] = {
    {"abs", abs_filter},         {"attr", attr},
    {"count", length_filter},    {"d", default_filter},
    {"default", default_filter}, {"filesizeformat", filesizeformat},
    {"float", float_filter},     {"int", int_filter},
    {"items", items_filter},     {"length", length_filter},
    {"pprint", pprint},          {"round", round_filter},
    {"tojson", filter_tojson},
};

}  // namespace

std::span<const NamedBuiltin> value_filters() { return kFilters; }

}  // namespace galley::text::jinja
