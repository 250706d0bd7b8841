// Operators on values, with Python's rules: arithmetic, membership, slices, escaping.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/text/jinja_value.h"

namespace galley::text::jinja {

class Evaluator;

/// left OP right for + - * / // % **.
Value arithmetic(std::string_view op, const Value& left, const Value& right, Evaluator& evaluator);
/// + or - of a number.
Value unary(std::string_view op, const Value& value);
/// `item in container`.
bool contains(const Value& container, const Value& item, Budget& budget);

/// Positions of a Python slice over `length` items: `count` of them from `start` by `step`.
struct SliceRange {
  Int start = 0, step = 1, count = 0;
};
SliceRange slice_range(Int length, const Value& start, const Value& stop, const Value& step);
Value slice(const Value& value, const Value& start, const Value& stop, const Value& step,
            Budget& budget);

/// With & < > ' " as HTML entities; markup stays as it is.
Value escape(const Value& value, Budget& budget);

/// The offset of `needle` in `text` from `from` on, or npos; linear time.
size_t find_text(std::string_view text, std::string_view needle, size_t from, Budget& budget);

/// `format % values` (jinja_format.cc).
Value format_percent(const Value& format, const Value& values, Evaluator& evaluator);
/// format.format(...) of Python.
Value format_braces(const Value& format, const Arguments& arguments, Evaluator& evaluator);

}  // namespace galley::text::jinja
