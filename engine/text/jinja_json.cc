// json.dumps() of Python, as the tojson filter of transformers calls it.
#include <algorithm>
#include <cmath>

#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "engine/text/jinja_evaluator.h"
#include "engine/text/jinja_tables.h"

namespace galley::text::jinja {

namespace {

class JsonWriter {
 public:
  JsonWriter(const Parameters& given, Budget& budget) : budget_(budget) {
    ascii_ = given.flag(0);
    if (given.given(1)) {
      indented_ = true;
      if (given.value(1).is_string()) {
        indent_ = given.string(1);
      } else {
        indent_ = pad_text("", given.integer(1, 0), " ", Align::kLeft, budget);
      }
      between_ = ",";
    }
    if (given.given(2)) {
      const Items separators = iterate(given.value(2), budget);
      if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
        throw Failure("tojson: separators must be two strings");
      }
      between_ = separators[0].as_string();
      colon_ = separators[1].as_string();
    }
    sort_keys_ = given.flag(3);
  }

  std::string run(const Value& value) {
    write(value, 0);
    budget_.text(out_.size());
    return std::move(out_);
  }

 private:
  void write(const Value& value, size_t level) {
    budget_.step();
    switch (value.kind()) {
      case Value::Kind::kNone:
        out_ += "null";
        break;
      case Value::Kind::kBool:
        out_ += value.as_bool() ? "true" : "false";
        break;
      case Value::Kind::kInt:
        out_ += int_text(value.as_int());
        break;
      case Value::Kind::kFloat:
        out_ += real(value.as_double());
        break;
      case Value::Kind::kString:
        quote(value.as_string());
        break;
      case Value::Kind::kList:
      case Value::Kind::kTuple:
        write_list(value.as_items(), level);
        break;
      case Value::Kind::kDict:
        write_dict(value.as_pairs(), level);
        break;
      default:
        throw Failure(cat("Object of type ", type_name(value), " is not JSON serializable"));
    }
    budget_.growing(out_.size());
  }

  static std::string real(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return format_double_repr(value);
  }

  void new_line(size_t level) {
    if (!indented_) return;
    out_ += '\n';
    for (size_t i = 0; i < level; ++i) out_ += indent_;
    budget_.growing(out_.size());
  }

  void write_list(const Items& items, size_t level) {
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += between_;
      new_line(level + 1);
      write(items[i], level + 1);
    }
    if (!items.empty()) new_line(level);
    out_ += ']';
  }

  static std::string key_text(const Value& key) {
    switch (key.kind()) {
      case Value::Kind::kString:
        return key.as_string();
      case Value::Kind::kNone:
        return "null";
      case Value::Kind::kBool:
        return key.as_bool() ? "true" : "false";
      case Value::Kind::kInt:
        return int_text(key.as_int());
      case Value::Kind::kFloat:
        return real(key.as_double());
      default:
        throw Failure(cat("keys must be str, int, float, bool or None, not ", type_name(key)));
    }
  }

  void write_dict(const Pairs& pairs, size_t level) {
    std::vector<const std::pair<Value, Value>*> order;
    for (const auto& pair : pairs) order.push_back(&pair);
    if (sort_keys_) {
      std::stable_sort(order.begin(), order.end(), [&](const auto* a, const auto* b) {
        return less(a->first, b->first, budget_);
      });
    }
    out_ += '{';
    for (size_t i = 0; i < order.size(); ++i) {
      if (i > 0) out_ += between_;
      new_line(level + 1);
      quote(key_text(order[i]->first));
      out_ += colon_;
      write(order[i]->second, level + 1);
    }
    if (!order.empty()) new_line(level);
    out_ += '}';
  }

  void escape_unit(unsigned unit) { out_ += format("\\u%04x", unit); }

  void quote(const std::string& text) {
    static constexpr std::string_view kFrom = "\"\\\b\f\n\r\t", kTo = "\"\\bfnrt";
    out_ += '"';
    for (size_t offset = 0; offset < text.size();) {
      const size_t begin = offset;
      const char32_t c = next_utf8(text, &offset);
      const size_t known = c < 0x80 ? kFrom.find(static_cast<char>(c)) : std::string_view::npos;
      const bool is_mark = c >= 0xFDD0 && c <= 0xFDEF;
      if (known != std::string_view::npos) {
        out_ += '\\';
        out_ += kTo[known];
      } else if (c < 0x20 || (ascii_ && c > 0x7E && c < 0x10000 && !is_mark)) {
        escape_unit(c);
      } else if (ascii_ && c >= 0x10000) {
        escape_unit(0xD800 + ((c - 0x10000) >> 10));
        escape_unit(0xDC00 + ((c - 0x10000) & 0x3FF));
      } else {
        out_.append(text, begin, offset - begin);
      }
    }
    out_ += '"';
    budget_.growing(out_.size());
  }

  Budget& budget_;
  bool ascii_ = false, indented_ = false, sort_keys_ = false;
  std::string indent_, between_ = ", ", colon_ = ": ";
  std::string out_;
};

}  // namespace

Value filter_tojson(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("tojson", arguments,
                         {"ensure_ascii", "indent", "separators", "sort_keys"});
  return Value::string(JsonWriter(given, evaluator.budget()).run(subject));
}

}  // namespace galley::text::jinja
