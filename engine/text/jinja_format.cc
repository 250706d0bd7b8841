// Python's two ways of formatting: "%s" % values and "{}".format(values).
#include <algorithm>
#include <cmath>

#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "engine/text/jinja_evaluator.h"
#include "engine/text/jinja_operators.h"
#include "engine/text/jinja_tables.h"
#include "engine/text/jinja_unicode.h"

namespace galley::text::jinja {

namespace {

/// What stands between '%' or ':' and the type letter.
struct Spec {
  char32_t fill = ' ';
  char align = '\0';  // < > ^ =
  char sign = '-';    // - + or blank
  bool alternate = false, zero = false;
  char group = '\0';  // , or _
  Int width = 0;
  std::optional<int> precision;
  char type = '\0';
};

constexpr Int kMaxPrecision = 1000;

Int digits_at(std::string_view text, size_t* at) {
  Int value = 0;
  while (*at < text.size() && text[*at] >= '0' && text[*at] <= '9') {
    value = std::min<Int>(value * 10 + (text[(*at)++] - '0'), Int{1} << 40);
  }
  return value;
}

int precision_of(Int value) {
  if (value > kMaxPrecision) throw Failure("precision too big");
  return static_cast<int>(value);
}

std::string digits_of(Int value, int base, bool upper) {
  if (base == 10) return int_text(value);
  std::string out;
  do {
    const int digit = static_cast<int>(value % base);
    out.insert(out.begin(),
               static_cast<char>(digit < 10 ? '0' + digit : (upper ? 'A' : 'a') + digit - 10));
    value /= base;
  } while (value != 0);
  return out;
}

std::string group_digits(std::string digits, char separator, size_t size) {
  for (size_t at = digits.size(); at > size;) {
    at -= size;
    digits.insert(at, 1, separator);
  }
  return digits;
}

// Sign, prefix and digits of a number, and then the padding that the spec asks for.
std::string place(const Spec& spec, bool negative, const std::string& prefix,
                  const std::string& digits, Budget& budget) {
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  const std::string fill = encode_utf8(std::u32string(1, spec.zero ? U'0' : spec.fill));
  if (spec.zero || spec.align == '=') {
    const Int inner = spec.width - static_cast<Int>(sign.size() + prefix.size());
    return sign + prefix + pad_text(digits, inner, fill, Align::kRight, budget);
  }
  const Align align = spec.align == '<'   ? Align::kLeft
                      : spec.align == '^' ? Align::kMiddle
                                          : Align::kRight;
  return pad_text(sign + prefix + digits, spec.width, fill, align, budget);
}

std::string place_text(const Spec& spec, const std::string& text, Budget& budget) {
  std::string shown = text;
  if (spec.precision)
    shown = text.substr(0, byte_offset(text, static_cast<size_t>(*spec.precision)));
  const std::string fill = encode_utf8(std::u32string(1, spec.fill));
  const Align align = spec.align == '>'   ? Align::kRight
                      : spec.align == '^' ? Align::kMiddle
                                          : Align::kLeft;
  return pad_text(shown, spec.width, fill, align, budget);
}

std::string integer_text(const Spec& spec, Int value, Budget& budget) {
  const char type = static_cast<char>(spec.type | 0x20);
  const int base = type == 'x' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
  const bool negative = value < 0;
  if (negative && __builtin_sub_overflow(Int{0}, value, &value)) {
    throw Failure("an integer is larger than 127 bits");
  }
  std::string digits = digits_of(value, base, spec.type == 'X');
  if (spec.group != '\0') digits = group_digits(digits, spec.group, base == 10 ? 3 : 4);
  const std::string prefix = spec.alternate && base != 10 ? std::string("0") + spec.type : "";
  return place(spec, negative, prefix, digits, budget);
}

std::string real_text(const Spec& spec, double value, Budget& budget) {
  const bool negative = std::signbit(value) && !std::isnan(value);
  double size = std::fabs(value);
  char type = spec.type == '\0' ? 'g' : spec.type;
  std::string digits;
  if (!std::isfinite(value)) {
    digits = std::isnan(value) ? "nan" : "inf";
  } else if (spec.type == '\0' && !spec.precision) {
    digits = format_double_repr(size);
  } else {
    if (type == '%') size *= 100;
    std::string pattern = spec.alternate ? "%#.*" : "%.*";
    pattern += type == '%' ? 'f' : type == 'n' ? 'g' : type;
    char buffer[1500];
    const int length =
        std::snprintf(buffer, sizeof buffer, pattern.c_str(), spec.precision.value_or(6), size);
    digits.assign(buffer, static_cast<size_t>(std::min<int>(length, sizeof buffer - 1)));
    if (spec.type == '\0' && digits.find_first_of(".e") == std::string::npos) digits += ".0";
    if (type == '%') digits += '%';
  }
  if (std::isupper(static_cast<unsigned char>(spec.type)) != 0) digits = to_upper(digits);
  if (spec.group != '\0') {
    const size_t point = std::min(digits.find_first_not_of("0123456789"), digits.size());
    digits = group_digits(digits.substr(0, point), spec.group, 3) + digits.substr(point);
  }
  return place(spec, negative, "", digits, budget);
}

std::string character(const Value& value) {
  if (value.is_string() && count_code_points(value.as_string()) == 1) return value.as_string();
  if (!value.is_integral()) throw Failure("%c requires int or char");
  const Int code = value.as_int();
  if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
    throw Failure("%c arg not in range(0x110000)");
  }
  return encode_utf8(std::u32string(1, static_cast<char32_t>(code)));
}

/// One "%" format.
class PercentFormatter {
 public:
  PercentFormatter(const Value& format, const Value& values, Evaluator& evaluator)
      : format_(format), values_(values), evaluator_(evaluator), text_(format.as_string()) {}

  Value run() {
    std::string out;
    while (at_ < text_.size()) {
      if (text_[at_] != '%') {
        out += text_[at_++];
      } else {
        ++at_;
        out += directive();
      }
      budget().growing(out.size());
    }
    const bool is_tuple = values_.kind() == Value::Kind::kTuple;
    const size_t given = is_tuple ? values_.as_items().size() : values_.is_dict() ? used_ : 1;
    if (used_ < given && !by_name_) {
      throw Failure("not all arguments converted during string formatting");
    }
    budget().text(out.size());
    return Value::string_like(format_, std::move(out));
  }

 private:
  Budget& budget() { return evaluator_.budget(); }

  Value next() {
    if (values_.kind() == Value::Kind::kTuple) {
      if (used_ >= values_.as_items().size()) {
        throw Failure("not enough arguments for format string");
      }
      return values_.as_items()[used_++];
    }
    if (used_++ > 0) throw Failure("not enough arguments for format string");
    return values_;
  }

  Int star_or_digits() {
    if (at_ < text_.size() && text_[at_] == '*') {
      ++at_;
      const Value value = next();
      if (!value.is_integral()) throw Failure("* wants int");
      return value.as_int();
    }
    return digits_at(text_, &at_);
  }

  std::optional<Value> name() {
    if (at_ >= text_.size() || text_[at_] != '(') return std::nullopt;
    const size_t end = text_.find(')', at_);
    if (end == std::string::npos) throw Failure("incomplete format key");
    const std::string key = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    if (!values_.is_dict()) throw Failure("format requires a mapping");
    by_name_ = true;
    const Value* found = find(values_, key, budget());
    if (found == nullptr) throw Failure(cat("KeyError: '", key, "'"));
    return *found;
  }

  Spec spec() {
    Spec spec;
    bool left = false;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '-') {
        left = true;
      } else if (c == '+') {
        spec.sign = '+';
      } else if (c == ' ') {
        if (spec.sign == '-') spec.sign = ' ';
      } else if (c == '#') {
        spec.alternate = true;
      } else if (c == '0') {
        spec.zero = true;
      } else {
        break;
      }
    }
    spec.width = star_or_digits();
    if (spec.width < 0) {
      left = true;
      if (spec.width > -(Int{1} << 40)) spec.width = -spec.width;
    }
    if (left) spec.zero = false;
    spec.align = left ? '<' : '>';
    if (at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      spec.precision = precision_of(std::max<Int>(star_or_digits(), 0));
    }
    while (at_ < text_.size() && (text_[at_] == 'l' || text_[at_] == 'h' || text_[at_] == 'L')) {
      ++at_;
    }
    return spec;
  }

  std::string directive() {
    std::optional<Value> value = name();
    Spec spec = this->spec();
    if (at_ >= text_.size()) throw Failure("incomplete format");
    spec.type = text_[at_++];
    if (spec.type == '%') return "%";
    static constexpr std::string_view kTypes = "sradiuoxXeEfFgGc";
    if (kTypes.find(spec.type) == std::string_view::npos) {
      throw Failure(cat("unsupported format character '", spec.type, "'"));
    }
    if (!value) value = next();
    return convert(*value, spec);
  }

  std::string convert(const Value& value, Spec spec) {
    switch (spec.type) {
      case 's': {
        const std::string text =
            format_.is_markup() ? escape(value, budget()).as_string() : to_text(value, budget());
        return place_text(spec, text, budget());
      }
      case 'r':
      case 'a':
        return place_text(spec, to_repr(value, budget()), budget());
      case 'c':
        return place_text(spec, character(value), budget());
      default:
        break;
    }
    if (value.is_undefined()) fail_undefined(value);
    if (!value.is_number()) {
      throw Failure(
          cat("%", spec.type, " format: a real number is required, not ", type_name(value)));
    }
    static constexpr std::string_view kIntegers = "diuoxX";
    if (kIntegers.find(spec.type) == std::string_view::npos) {
      return real_text(spec, value.as_double(), budget());
    }
    if (!value.is_integral() && (spec.type == 'x' || spec.type == 'X' || spec.type == 'o')) {
      throw Failure(cat("%", spec.type, " format: an integer is required, not float"));
    }
    if (!value.is_integral() && !(std::fabs(value.as_double()) < 0x1p126)) {
      throw Failure("cannot convert this float to an integer");
    }
    const Int whole = value.is_integral() ? value.as_int() : static_cast<Int>(value.as_double());
    const std::optional<int> digits = std::exchange(spec.precision, std::nullopt);
    if (!digits) return integer_text(spec, whole, budget());
    Spec exact;
    exact.type = spec.type;
    exact.width = *digits + (whole < 0 ? 1 : 0);
    exact.zero = true;
    return place_text(spec, integer_text(exact, whole, budget()), budget());
  }

  const Value& format_;
  const Value& values_;
  Evaluator& evaluator_;
  const std::string& text_;
  size_t at_ = 0;
  size_t used_ = 0;
  bool by_name_ = false;
};

/// One "{}" format.
class BraceFormatter {
 public:
  BraceFormatter(const Value& format, const Arguments& arguments, Evaluator& evaluator)
      : is_markup_(format.is_markup()), arguments_(arguments), evaluator_(evaluator) {}

  std::string run(std::string_view text, int depth) {
    if (depth > 2) throw Failure("Max string recursion exceeded");
    std::string out;
    size_t at = 0;
    while (at < text.size()) {
      const char c = text[at];
      if ((c == '{' || c == '}') && at + 1 < text.size() && text[at + 1] == c) {
        out += c;
        at += 2;
      } else if (c == '{') {
        out += field(text, &at, depth);
      } else if (c == '}') {
        throw Failure("Single '}' encountered in format string");
      } else {
        out += c;
        ++at;
      }
      budget().growing(out.size());
    }
    budget().text(out.size());
    return out;
  }

 private:
  Budget& budget() { return evaluator_.budget(); }

  std::string field(std::string_view text, size_t* at, int depth) {
    size_t end = *at + 1;
    int open = 1;
    for (; end < text.size(); ++end) {
      if (text[end] == '{') ++open;
      if (text[end] == '}' && --open == 0) break;
    }
    if (end >= text.size()) throw Failure("expected '}' before end of string");
    std::string_view body = text.substr(*at + 1, end - *at - 1);
    *at = end + 1;
    const size_t name_end = std::min(body.find_first_of("!:"), body.size());
    Value value = lookup(body.substr(0, name_end));
    body.remove_prefix(name_end);
    if (body.starts_with('!')) {
      if (body.size() < 2) throw Failure("unmatched '{' in format spec");
      value = converted(value, body[1]);
      body.remove_prefix(2);
      if (!body.empty() && body[0] != ':') throw Failure("expected ':' after conversion specifier");
    }
    if (!body.empty()) body.remove_prefix(1);
    return shown(value, run(body, depth + 1));
  }

  Value converted(const Value& value, char how) {
    if (how == 's') return Value::string(to_text(value, budget()));
    if (how == 'r' || how == 'a') return Value::string(to_repr(value, budget()));
    throw Failure(cat("Unknown conversion specifier ", how));
  }

  // "0.name[key]": an argument, then attributes and items of it.
  Value lookup(std::string_view path) {
    const size_t end = std::min(path.find_first_of(".["), path.size());
    Value value = argument(std::string(path.substr(0, end)));
    path.remove_prefix(end);
    while (!path.empty()) {
      if (path[0] == '.') {
        const size_t stop = std::min(path.find_first_of(".[", 1), path.size());
        value = evaluator_.attribute(value, std::string(path.substr(1, stop - 1)));
        path.remove_prefix(stop);
      } else {
        const size_t stop = path.find(']');
        if (path[0] != '[' || stop == std::string_view::npos) {
          throw Failure("Missing ']' in format string");
        }
        const std::string key(path.substr(1, stop - 1));
        const auto number = parse_int(key);
        value = evaluator_.item(
            value, number && key[0] != '-' ? Value::integer(*number) : Value::string(key));
        path.remove_prefix(stop + 1);
      }
    }
    return value;
  }

  Value argument(const std::string& name) {
    const auto number = parse_int(name);
    if (name.empty() || number) {
      const size_t index = name.empty() ? next_++ : static_cast<size_t>(*number);
      if (index >= arguments_.positional.size()) {
        throw Failure(cat("Replacement index ", index, " out of range for positional args tuple"));
      }
      return arguments_.positional[index];
    }
    for (const auto& [given, value] : arguments_.named) {
      if (given == name) return value;
    }
    throw Failure(cat("KeyError: '", name, "'"));
  }

  static Spec parse(const std::string& text) {
    Spec spec;
    const std::u32string points = decode_utf8(text);
    size_t at = 0;
    const auto is_align = [&](size_t i) {
      return i < points.size() &&
             (points[i] == '<' || points[i] == '>' || points[i] == '^' || points[i] == '=');
    };
    if (is_align(1)) {
      spec.fill = points[0];
      spec.align = static_cast<char>(points[1]);
      at = 2;
    } else if (is_align(0)) {
      spec.align = static_cast<char>(points[0]);
      at = 1;
    }
    const std::string rest = encode_utf8(std::u32string_view(points).substr(at));
    at = 0;
    const auto take = [&](char c) {
      if (at >= rest.size() || rest[at] != c) return false;
      ++at;
      return true;
    };
    if (take('+')) {
      spec.sign = '+';
    } else if (take(' ')) {
      spec.sign = ' ';
    } else {
      take('-');
    }
    spec.alternate = take('#');
    if (take('0') && spec.align == '\0') spec.zero = true;
    spec.width = digits_at(rest, &at);
    if (take(',')) spec.group = ',';
    if (take('_')) spec.group = '_';
    if (take('.')) spec.precision = precision_of(digits_at(rest, &at));
    if (at < rest.size()) spec.type = rest[at++];
    if (at < rest.size()) throw Failure(cat("Invalid format specifier '", text, "'"));
    return spec;
  }

  std::string shown(const Value& value, const std::string& spec_text) {
    if (is_markup_ && spec_text.empty()) return escape(value, budget()).as_string();
    if (spec_text.empty()) return to_text(value, budget());
    Spec spec = parse(spec_text);
    const auto unknown = [&] {
      throw Failure(
          cat("Unknown format code '", spec.type, "' for object of type '", type_name(value), "'"));
    };
    if (value.is_number() && !(value.is_bool() && spec.type == '\0')) {
      static constexpr std::string_view kInteger = "bdoxXn", kReal = "eEfFgGn%";
      if (spec.type == 'c') return place_text(spec, character(value), budget());
      if (value.is_integral() &&
          (spec.type == '\0' || kInteger.find(spec.type) != std::string_view::npos)) {
        return integer_text(spec, value.as_int(), budget());
      }
      if (spec.type != '\0' && kReal.find(spec.type) == std::string_view::npos) unknown();
      return real_text(spec, value.as_double(), budget());
    }
    if (!value.is_string() && !value.is_bool()) {
      throw Failure(cat("unsupported format string passed to ", type_name(value), ".__format__"));
    }
    if (spec.type != '\0' && spec.type != 's') unknown();
    const std::string text = place_text(spec, to_text(value, budget()), budget());
    return is_markup_ && !value.is_markup() ? escape(Value::string(text), budget()).as_string()
                                            : text;
  }

  bool is_markup_;
  const Arguments& arguments_;
  Evaluator& evaluator_;
  size_t next_ = 0;
};

}  // namespace

Value format_percent(const Value& format, const Value& values, Evaluator& evaluator) {
  return PercentFormatter(format, values, evaluator).run();
}

Value format_braces(const Value& format, const Arguments& arguments, Evaluator& evaluator) {
  return Value::string_like(
      format, BraceFormatter(format, arguments, evaluator).run(format.as_string(), 0));
}

}  // namespace galley::text::jinja
