#include "engine/text/jinja_operators.h"

#include <cmath>
#include <cstring>

#include "engine/core/strings.h"
#include "engine/text/jinja_evaluator.h"
#include "engine/text/jinja_objects.h"
#include "engine/text/jinja_unicode.h"

namespace galley::text::jinja {

namespace {

[[noreturn]] void fail_operands(std::string_view op, const Value& left, const Value& right) {
  if (op == "+" && left.is_string()) {
    throw Failure(cat("can only concatenate str (not \"", type_name(right), "\") to str"));
  }
  throw Failure(cat("unsupported operand type(s) for ", op, ": '", type_name(left), "' and '",
                    type_name(right), "'"));
}

[[noreturn]] void fail_overflow() { throw Failure("an integer grew larger than 127 bits"); }

Int floor_divide(Int left, Int right) {
  const Int quotient = left / right;
  return (left % right != 0 && (left < 0) != (right < 0)) ? quotient - 1 : quotient;
}

double floor_modulo(double left, double right) {
  const double rest = std::fmod(left, right);
  if (rest != 0 && (rest < 0) != (right < 0)) return rest + right;
  return rest == 0 ? std::copysign(0.0, right) : rest;
}

Int power(Int base, Int exponent) {
  Int result = 1;
  while (exponent > 0) {
    if (base == 0 || base == 1) return base;
    if (base == -1) return exponent % 2 == 0 ? 1 : -1;
    if (__builtin_mul_overflow(result, base, &result)) fail_overflow();
    --exponent;  // at most 127 rounds: the result at least doubles
  }
  return result;
}

Value integers(std::string_view op, Int a, Int b) {
  Int result = 0;
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &result)) fail_overflow();
  } else if (op == "-") {
    if (__builtin_sub_overflow(a, b, &result)) fail_overflow();
  } else if (op == "*") {
    if (__builtin_mul_overflow(a, b, &result)) fail_overflow();
  } else if (op == "**") {
    if (b < 0) {
      if (a == 0) throw Failure("0.0 cannot be raised to a negative power");
      return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
    }
    result = power(a, b);
  } else {
    if (b == 0) {
      throw Failure(op == "/" ? "division by zero" : "integer division or modulo by zero");
    }
    if (op == "/") return Value::real(static_cast<double>(a) / static_cast<double>(b));
    if (b == -1) {  // the one quotient that may overflow
      if (op == "%") return Value::integer(0);
      if (__builtin_sub_overflow(Int{0}, a, &result)) fail_overflow();
    } else {
      result = op == "//" ? floor_divide(a, b) : a - floor_divide(a, b) * b;
    }
  }
  return Value::integer(result);
}

Value reals(std::string_view op, double a, double b) {
  if (op == "+") return Value::real(a + b);
  if (op == "-") return Value::real(a - b);
  if (op == "*") return Value::real(a * b);
  if (op == "**") {
    if (a == 0 && b < 0) throw Failure("0.0 cannot be raised to a negative power");
    if (a < 0 && b != std::floor(b)) throw Failure("complex numbers are not supported");
    return Value::real(std::pow(a, b));
  }
  if (b == 0) throw Failure(op == "/" ? "float division by zero" : "float modulo");
  if (op == "/") return Value::real(a / b);
  if (op == "//") return Value::real((a - floor_modulo(a, b)) / b);
  return Value::real(floor_modulo(a, b));
}

// Times for repeating something of `size`, checked against a bound by the caller.
size_t repeats(Int count, size_t size, size_t limit) {
  if (count <= 0 || size == 0) return 0;
  return count > static_cast<Int>(limit) ? limit + 1 : static_cast<size_t>(count);
}

Value repeat(const Value& value, Int count, Budget& budget) {
  if (value.is_string()) {
    const std::string& text = value.as_string();
    const size_t times = repeats(count, text.size(), budget.limits().max_text_bytes);
    budget.text(times * text.size());
    std::string out;
    out.reserve(times * text.size());
    for (size_t i = 0; i < times; ++i) out += text;
    return Value::string_like(value, std::move(out));
  }
  const Items& items = value.as_items();
  const size_t times = repeats(count, items.size(), budget.limits().max_items);
  budget.items(times * items.size());
  Items out;
  for (size_t i = 0; i < times; ++i) out.insert(out.end(), items.begin(), items.end());
  return value.kind() == Value::Kind::kList ? Value::list(std::move(out), budget)
                                            : Value::tuple(std::move(out), budget);
}

Value join_strings(const Value& left, const Value& right, Budget& budget) {
  if (left.is_markup() || right.is_markup()) {
    const std::string a = escape(left, budget).as_string(), b = escape(right, budget).as_string();
    budget.text(a.size() + b.size());
    return Value::markup(a + b);
  }
  budget.text(left.as_string().size() + right.as_string().size());
  return Value::string(left.as_string() + right.as_string());
}

Value add(const Value& left, const Value& right, Budget& budget) {
  if (left.is_string() && right.is_string()) return join_strings(left, right, budget);
  if (left.is_sequence() && left.kind() == right.kind()) {
    budget.items(left.as_items().size() + right.as_items().size());
    Items items = left.as_items();
    items.insert(items.end(), right.as_items().begin(), right.as_items().end());
    return left.kind() == Value::Kind::kList ? Value::list(std::move(items), budget)
                                             : Value::tuple(std::move(items), budget);
  }
  fail_operands("+", left, right);
}

std::optional<Int> slice_bound(const Value& value) {
  if (value.is_none()) return std::nullopt;
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_integral()) {
    throw Failure("slice indices must be integers or None or have an __index__ method");
  }
  return value.as_int();
}

Items pick(const Items& items, const SliceRange& range) {
  Items out;
  for (Int i = 0; i < range.count; ++i) {
    out.push_back(items[static_cast<size_t>(range.start + i * range.step)]);
  }
  return out;
}

std::string slice_text(const std::string& text, const Value& start, const Value& stop,
                       const Value& step) {
  if (is_ascii(text)) {
    const SliceRange range = slice_range(static_cast<Int>(text.size()), start, stop, step);
    if (range.step == 1) {
      return text.substr(static_cast<size_t>(range.start), static_cast<size_t>(range.count));
    }
  }
  const std::u32string points = decode_utf8(text);
  const SliceRange range = slice_range(static_cast<Int>(points.size()), start, stop, step);
  std::u32string out;
  for (Int i = 0; i < range.count; ++i) {
    out.push_back(points[static_cast<size_t>(range.start + i * range.step)]);
  }
  return encode_utf8(out);
}

}  // namespace

Value arithmetic(std::string_view op, const Value& left, const Value& right, Evaluator& evaluator) {
  Budget& budget = evaluator.budget();
  if (op == "%" && left.is_string()) return format_percent(left, right, evaluator);
  if (left.is_undefined()) fail_undefined(left);
  if (right.is_undefined()) fail_undefined(right);
  if (left.is_integral() && right.is_integral()) {
    return integers(op, left.as_int(), right.as_int());
  }
  if (left.is_number() && right.is_number()) return reals(op, left.as_double(), right.as_double());
  if (op == "+") return add(left, right, budget);
  if (op == "*") {
    const auto can_repeat = [](const Value& value) {
      return value.is_string() || value.is_sequence();
    };
    if (can_repeat(left) && right.is_integral()) return repeat(left, right.as_int(), budget);
    if (can_repeat(right) && left.is_integral()) return repeat(right, left.as_int(), budget);
  }
  fail_operands(op, left, right);
}

Value unary(std::string_view op, const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is_integral()) {
    Int result = value.as_int();
    if (op == "-" && __builtin_sub_overflow(Int{0}, result, &result)) fail_overflow();
    return Value::integer(result);
  }
  if (value.is_number()) return Value::real(op == "-" ? -value.as_double() : value.as_double());
  throw Failure(cat("bad operand type for unary ", op, ": '", type_name(value), "'"));
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  budget.step();
  switch (container.kind()) {
    case Value::Kind::kUndefined:
      return false;
    case Value::Kind::kString:
      if (!item.is_string()) {
        throw Failure(cat("'in <string>' requires string as left operand, not ", type_name(item)));
      }
      return find_text(container.as_string(), item.as_string(), 0, budget) != std::string::npos;
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      for (const Value& candidate : container.as_items()) {
        if (equal(candidate, item, budget)) return true;
      }
      return false;
    case Value::Kind::kDict:
      if (!hashable(item)) throw Failure(cat("unhashable type: '", type_name(item), "'"));
      return find(container, item, budget) != nullptr;
    default:
      break;
  }
  if (!iterable(container)) {
    throw Failure(cat("argument of type '", type_name(container), "' is not iterable"));
  }
  for (const Value& candidate : iterate(container, budget)) {
    if (equal(candidate, item, budget)) return true;
  }
  return false;
}

SliceRange slice_range(Int length, const Value& start, const Value& stop, const Value& step) {
  SliceRange range;
  range.step = slice_bound(step).value_or(1);
  if (range.step == 0) throw Failure("slice step cannot be zero");
  const bool backward = range.step < 0;
  const Int lowest = backward ? -1 : 0, highest = backward ? length - 1 : length;
  const auto clamp = [&](std::optional<Int> bound, Int fallback) {
    if (!bound) return fallback;
    Int at = *bound;
    if (at < 0) at = at < -length ? lowest : at + length;
    return at < lowest ? lowest : at > highest ? highest : at;
  };
  range.start = clamp(slice_bound(start), backward ? highest : lowest);
  const Int end = clamp(slice_bound(stop), backward ? lowest : highest);
  const Int distance = backward ? range.start - end : end - range.start;
  // The step may be as large as an Int: divide, never add to it.
  if (distance > 0)
    range.count = (distance - 1) / (backward ? -(range.step + 1) + 1 : range.step) + 1;
  return range;
}

Value slice(const Value& value, const Value& start, const Value& stop, const Value& step,
            Budget& budget) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is_string()) {
    budget.text(value.as_string().size());
    return Value::string_like(value, slice_text(value.as_string(), start, stop, step));
  }
  if (value.is_sequence()) {
    const Items& items = value.as_items();
    budget.items(items.size());
    Items out = pick(items, slice_range(static_cast<Int>(items.size()), start, stop, step));
    return value.kind() == Value::Kind::kList ? Value::list(std::move(out), budget)
                                              : Value::tuple(std::move(out), budget);
  }
  if (value.is_object()) {
    if (const auto* range = dynamic_cast<const Range*>(&value.as_object())) {
      const SliceRange part = slice_range(static_cast<Int>(*range->length()), start, stop, step);
      const Int first = range->start() + part.start * range->step();
      if (part.count == 0) return Range::make(first, first, 1, budget);
      const Int by = part.count == 1 ? range->step() : part.step * range->step();
      return Range::make(first, first + part.count * by, by, budget);
    }
  }
  if (value.is_dict()) throw Failure("unhashable type: 'slice'");
  throw Failure(cat("'", type_name(value), "' object is not subscriptable"));
}

Value escape(const Value& value, Budget& budget) {
  if (value.is_markup()) return value;
  const std::string text = to_text(value, budget);
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  budget.text(out.size());
  return Value::markup(std::move(out));
}

size_t find_text(std::string_view text, std::string_view needle, size_t from, Budget& budget) {
  if (from > text.size()) return std::string::npos;
  budget.scan(text.size() - from + needle.size());
  if (needle.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (found == nullptr) return std::string::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

}  // namespace galley::text::jinja
