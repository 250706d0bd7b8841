#include <algorithm>

#include "engine/text/jinja_tables.h"
#include "engine/text/jinja_unicode.h"

namespace galley::text::jinja {

namespace {

template <bool (*kHolds)(char32_t)>
Value all_of(Evaluator&, const Value& subject, Arguments& arguments) {
  const Parameters none("str method", arguments, {});
  const std::u32string text = decode_utf8(subject.as_string());
  return Value::boolean(!text.empty() && std::all_of(text.begin(), text.end(), kHolds));
}

bool is_alnum(char32_t c) { return is_alpha(c) || is_numeric(c); }

Value is_ascii_text(Evaluator&, const Value& subject, Arguments&) {
  return Value::boolean(is_ascii(subject.as_string()));
}

Value is_printable_text(Evaluator&, const Value& subject, Arguments&) {
  const std::u32string text = decode_utf8(subject.as_string());
  return Value::boolean(std::all_of(text.begin(), text.end(), is_printable));
}

Value is_identifier(Evaluator&, const Value& subject, Arguments&) {
  const std::u32string text = decode_utf8(subject.as_string());
  return Value::boolean(!text.empty() && (text[0] == '_' || is_alpha(text[0])) &&
                        std::all_of(text.begin(), text.end(), is_word));
}

// Some cased letter, and none of the other case.
template <bool (*kHolds)(char32_t), bool (*kOther)(char32_t)>
Value is_of_case(Evaluator&, const Value& subject, Arguments&) {
  const std::u32string text = decode_utf8(subject.as_string());
  return Value::boolean(std::any_of(text.begin(), text.end(), kHolds) &&
                        std::none_of(text.begin(), text.end(), kOther) &&
                        std::none_of(text.begin(), text.end(), is_title));
}

Value is_title_text(Evaluator&, const Value& subject, Arguments&) {
  bool cased_before = false, any = false;
  for (const char32_t c : decode_utf8(subject.as_string())) {
    const bool upper = is_upper(c) || is_title(c), lower = is_lower(c);
    if ((upper && cased_before) || (lower && !cased_before)) return Value::boolean(false);
    cased_before = upper || lower;
    any |= cased_before;
  }
  return Value::boolean(any);
}

constexpr NamedBuiltin kPredicates[] = {
    {"isalnum", all_of<is_alnum>},
    {"isalpha", all_of<is_alpha>},
    {"isascii", is_ascii_text},
    {"isdecimal", all_of<is_decimal>},
    {"isdigit", all_of<is_digit>},
    {"isidentifier", is_identifier},
    {"islower", is_of_case<is_lower, is_upper>},
    {"isnumeric", all_of<is_numeric>},
    {"isprintable", is_printable_text},
    {"isspace", all_of<is_space>},
    {"istitle", is_title_text},
    {"isupper", is_of_case<is_upper, is_lower>},
};

}  // namespace

std::span<const NamedBuiltin> string_predicates() { return kPredicates; }

}  // namespace galley::text::jinja
