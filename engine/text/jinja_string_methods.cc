#include <algorithm>
#include <cstring>

#include "engine/core/strings.h"
#include "engine/text/jinja_evaluator.h"
#include "engine/text/jinja_operators.h"
#include "engine/text/jinja_tables.h"
#include "engine/text/jinja_unicode.h"

namespace galley::text::jinja {

namespace {

// A string of the subject's kind, charged.
Value made(Evaluator& evaluator, const Value& subject, std::string text) {
  evaluator.budget().text(text.size());
  return Value::string_like(subject, std::move(text));
}

template <std::string (*kChange)(std::string_view)>
Value changed(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters none("str method", arguments, {});
  return made(evaluator, subject, kChange(subject.as_string()));
}

template <Side kSide>
Value strip(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("strip", arguments, {"chars"});
  const std::string& text = subject.as_string();
  return made(evaluator, subject,
              std::string(given.given(0) ? strip_characters(text, given.string(0), kSide)
                                         : strip_space(text, kSide)));
}

Value list_of(Evaluator& evaluator, const Value& subject, std::vector<std::string> parts) {
  Items items;
  for (std::string& part : parts) items.push_back(Value::string_like(subject, std::move(part)));
  return Value::list(std::move(items), evaluator.budget());
}

// At white space, from the left; at most `limit` times unless it is negative.
std::vector<std::string> split_space(std::string_view text, Int limit) {
  std::vector<std::string> parts;
  text = strip_space(text, Side::kLeft);
  while (!text.empty()) {
    if (limit == 0) {
      parts.emplace_back(text);
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      size_t next = end;
      if (is_space(next_utf8(text, &next))) break;
      end = next;
    }
    parts.emplace_back(text.substr(0, end));
    text = strip_space(text.substr(end), Side::kLeft);
    if (limit > 0) --limit;
  }
  return parts;
}

std::vector<std::string> split_space_right(std::string_view text, Int limit) {
  std::vector<std::string> parts;
  text = strip_space(text, Side::kRight);
  while (!text.empty()) {
    if (limit == 0) {
      parts.emplace_back(text);
      break;
    }
    size_t begin = text.size();
    while (begin > 0) {
      size_t start = begin - 1;
      while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
      size_t offset = start;
      if (is_space(next_utf8(text, &offset))) break;
      begin = start;
    }
    parts.emplace_back(text.substr(begin));
    text = strip_space(text.substr(0, begin), Side::kRight);
    if (limit > 0) --limit;
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

// Offsets of all occurrences that do not overlap, from the left.
std::vector<size_t> occurrences(std::string_view text, std::string_view needle, Budget& budget) {
  std::vector<size_t> found;
  budget.scan(text.size());
  size_t at = 0;
  while (at <= text.size()) {
    const void* hit = memmem(text.data() + at, text.size() - at, needle.data(), needle.size());
    if (hit == nullptr) break;
    at = static_cast<size_t>(static_cast<const char*>(hit) - text.data());
    found.push_back(at);
    at += needle.size();
  }
  budget.items(found.size());
  return found;
}

std::vector<std::string> cut(std::string_view text, const std::vector<size_t>& at, size_t width) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (const size_t offset : at) {
    parts.emplace_back(text.substr(begin, offset - begin));
    begin = offset + width;
  }
  parts.emplace_back(text.substr(begin));
  return parts;
}

std::string_view separator_of(const Parameters& given) {
  const std::string& separator = given.string(0);
  if (separator.empty()) throw Failure("empty separator");
  return separator;
}

Value split(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("split", arguments, {"sep", "maxsplit"});
  const Int limit = given.integer(1, -1);
  const std::string& text = subject.as_string();
  evaluator.budget().text(text.size());
  if (!given.given(0)) return list_of(evaluator, subject, split_space(text, limit));
  const std::string_view separator = separator_of(given);
  std::vector<size_t> at = occurrences(text, separator, evaluator.budget());
  if (limit >= 0 && static_cast<Int>(at.size()) > limit) at.resize(static_cast<size_t>(limit));
  return list_of(evaluator, subject, cut(text, at, separator.size()));
}

// The last occurrence. The search takes time for each pair of characters, and is charged so.
size_t find_last(std::string_view text, std::string_view needle, Budget& budget) {
  budget.step(static_cast<int64_t>(text.size() * (needle.size() + 1) / 4096) + 1);
  return text.rfind(needle);
}

// Offsets that do not overlap, seen from the right, ascending.
std::vector<size_t> occurrences_right(std::string_view text, std::string_view needle, Int limit,
                                      Budget& budget) {
  std::vector<size_t> found;
  size_t end = text.size();
  while (limit != 0) {
    const size_t at = find_last(text.substr(0, end), needle, budget);
    if (at == std::string_view::npos) break;
    found.push_back(at);
    end = at;
    if (limit > 0) --limit;
  }
  std::reverse(found.begin(), found.end());
  return found;
}

Value rsplit(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("rsplit", arguments, {"sep", "maxsplit"});
  const Int limit = given.integer(1, -1);
  const std::string& text = subject.as_string();
  evaluator.budget().text(text.size());
  if (!given.given(0)) return list_of(evaluator, subject, split_space_right(text, limit));
  const std::string_view separator = separator_of(given);
  const auto at = occurrences_right(text, separator, limit, evaluator.budget());
  return list_of(evaluator, subject, cut(text, at, separator.size()));
}

Value splitlines(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("splitlines", arguments, {"keepends"});
  evaluator.budget().text(subject.as_string().size());
  return list_of(evaluator, subject, split_lines(subject.as_string(), given.flag(0)));
}

Value partition_at(Evaluator& evaluator, const Value& subject, size_t at, size_t width,
                   bool from_right) {
  const std::string& text = subject.as_string();
  const auto part = [&](std::string piece) {
    return Value::string_like(subject, std::move(piece));
  };
  evaluator.budget().text(text.size());
  Items items;
  if (at == std::string::npos) {
    items = {part(from_right ? "" : text), part(""), part(from_right ? text : "")};
  } else {
    items = {part(text.substr(0, at)), part(text.substr(at, width)), part(text.substr(at + width))};
  }
  return Value::tuple(std::move(items), evaluator.budget());
}

Value partition(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("partition", arguments, {"sep"}, 1);
  const std::string_view separator = separator_of(given);
  const size_t at = find_text(subject.as_string(), separator, 0, evaluator.budget());
  return partition_at(evaluator, subject, at, separator.size(), false);
}

Value rpartition(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("rpartition", arguments, {"sep"}, 1);
  const std::string_view separator = separator_of(given);
  const auto at = occurrences_right(subject.as_string(), separator, 1, evaluator.budget());
  return partition_at(evaluator, subject, at.empty() ? std::string::npos : at[0], separator.size(),
                      true);
}

Value replace(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("replace", arguments, {"old", "new", "count"}, 2);
  Budget& budget = evaluator.budget();
  std::string to = given.string(1);
  if (subject.is_markup()) to = escape(given.value(1), budget).as_string();
  return Value::string_like(subject, replace_text(subject.as_string(), given.string(0), to,
                                                  given.integer(2, -1), budget));
}

Value join_method(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("join", arguments, {"iterable"}, 1);
  Budget& budget = evaluator.budget();
  std::string text;
  size_t index = 0;
  for (const Value& item : iterate(given.value(0), budget)) {
    if (!item.is_string()) {
      throw Failure(
          cat("sequence item ", index, ": expected str instance, ", type_name(item), " found"));
    }
    if (index++ > 0) text += subject.as_string();
    text += subject.is_markup() ? escape(item, budget).as_string() : item.as_string();
    budget.growing(text.size());
  }
  return made(evaluator, subject, std::move(text));
}

// The part [start, end) that the optional arguments 1 and 2 ask for, in bytes.
std::pair<size_t, size_t> window(const std::string& text, const Parameters& given) {
  const auto length = static_cast<Int>(count_code_points(text));
  const SliceRange range =
      slice_range(length, given.value_or(1, Value()), given.value_or(2, Value()), Value());
  // An empty window still has its place; one that starts beyond the end matches nothing.
  const bool beyond = given.given(1) && given.value(1).as_int() > length;
  if (beyond) return {std::string::npos, 0};
  return {byte_offset(text, static_cast<size_t>(range.start)),
          byte_offset(text, static_cast<size_t>(range.start + range.count))};
}

template <bool kAtEnd>
Value has_affix(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given(kAtEnd ? "endswith" : "startswith", arguments, {"affix", "start", "end"},
                         1);
  const std::string& text = subject.as_string();
  evaluator.budget().scan(text.size());
  const auto [begin, end] = window(text, given);
  if (begin == std::string::npos) return Value::boolean(false);
  const std::string_view part = std::string_view(text).substr(begin, end - begin);
  const auto matches = [&](const Value& affix) {
    if (affix.is_undefined()) fail_undefined(affix);
    if (!affix.is_string()) {
      throw Failure(cat(kAtEnd ? "endswith" : "startswith",
                        " first arg must be str or a tuple of str, not ", type_name(affix)));
    }
    return kAtEnd ? part.ends_with(affix.as_string()) : part.starts_with(affix.as_string());
  };
  if (given.value(0).kind() != Value::Kind::kTuple) return Value::boolean(matches(given.value(0)));
  const Items& affixes = given.value(0).as_items();
  return Value::boolean(std::any_of(affixes.begin(), affixes.end(), matches));
}

Int position(Evaluator& evaluator, const Value& subject, const Parameters& given, bool last) {
  const std::string& text = subject.as_string();
  const std::string& needle = given.string(0);
  const auto [begin, end] = window(text, given);
  if (begin == std::string::npos) return -1;
  const std::string_view part = std::string_view(text).substr(begin, end - begin);
  Budget& budget = evaluator.budget();
  const size_t at = last ? find_last(part, needle, budget) : find_text(part, needle, 0, budget);
  if (at == std::string_view::npos) return -1;
  return static_cast<Int>(count_code_points(std::string_view(text).substr(0, begin + at)));
}

template <bool kLast>
Value find_method_of(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("find", arguments, {"sub", "start", "end"}, 1);
  return Value::integer(position(evaluator, subject, given, kLast));
}

template <bool kLast>
Value index_method(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("index", arguments, {"sub", "start", "end"}, 1);
  const Int at = position(evaluator, subject, given, kLast);
  if (at < 0) throw Failure("substring not found");
  return Value::integer(at);
}

Value count(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("count", arguments, {"sub", "start", "end"}, 1);
  const std::string& text = subject.as_string();
  const auto [begin, end] = window(text, given);
  if (begin == std::string::npos) return Value::integer(0);
  const std::string_view part = std::string_view(text).substr(begin, end - begin);
  if (given.string(0).empty()) {
    return Value::integer(static_cast<Int>(count_code_points(part)) + 1);
  }
  return Value::integer(
      static_cast<Int>(occurrences(part, given.string(0), evaluator.budget()).size()));
}

template <bool kSuffix>
Value remove_affix(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given(kSuffix ? "removesuffix" : "removeprefix", arguments, {"affix"}, 1);
  const std::string& text = subject.as_string();
  const std::string& affix = given.string(0);
  if (kSuffix ? text.ends_with(affix) : text.starts_with(affix)) {
    return made(evaluator, subject,
                text.substr(kSuffix ? 0 : affix.size(), text.size() - affix.size()));
  }
  return subject;
}

template <Align kAlign>
Value pad(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("center, ljust or rjust", arguments, {"width", "fillchar"}, 1);
  const std::string fill = given.has(1) ? given.string(1) : " ";
  if (count_code_points(fill) != 1) {
    throw Failure("The fill character must be exactly one character long");
  }
  return Value::string_like(subject, pad_text(subject.as_string(), given.integer(0, 0), fill,
                                              kAlign, evaluator.budget()));
}

Value zfill(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("zfill", arguments, {"width"}, 1);
  const std::string& text = subject.as_string();
  const bool is_signed = text.starts_with("-") || text.starts_with("+");
  const std::string body = text.substr(is_signed ? 1 : 0);
  const Int width = given.integer(0, 0) - (is_signed ? 1 : 0);
  return Value::string_like(subject,
                            text.substr(0, is_signed ? 1 : 0) +
                                pad_text(body, width, "0", Align::kRight, evaluator.budget()));
}

Value expandtabs(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("expandtabs", arguments, {"tabsize"});
  const Int size = given.integer(0, 8);
  std::string out;
  Int column = 0;
  for (const char c : subject.as_string()) {
    if (c == '\t') {
      const Int blanks = size > 0 ? size - column % size : 0;
      if (blanks > static_cast<Int>(evaluator.budget().limits().max_text_bytes)) {
        evaluator.budget().growing(evaluator.budget().limits().max_text_bytes + 1);
      }
      out.append(static_cast<size_t>(blanks), ' ');
      column += blanks;
      evaluator.budget().growing(out.size());
    } else {
      out += c;
      column = c == '\n' || c == '\r' ? 0 : column + ((c & 0xC0) != 0x80 ? 1 : 0);
    }
  }
  return made(evaluator, subject, std::move(out));
}

Value format_method(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  return format_braces(subject, arguments, evaluator);
}

// Full case folding is upper case and then lower case, but for a few letters of dead scripts.
std::string fold_case(std::string_view text) { return to_lower(to_upper(to_lower(text))); }

constexpr NamedBuiltin kMethods[] = {
    {"capitalize", changed<capitalize>},
    {"casefold", changed<fold_case>},
    {"center", pad<Align::kCenter>},
    {"count", count},
    {"endswith", has_affix<true>},
    {"expandtabs", expandtabs},
    {"find", find_method_of<false>},
    {"format", format_method},
    {"index", index_method<false>},
    {"join", join_method},
    {"ljust", pad<Align::kLeft>},
    {"lower", changed<to_lower>},
    {"lstrip", strip<Side::kLeft>},
    {"partition", partition},
    {"removeprefix", remove_affix<false>},
    {"removesuffix", remove_affix<true>},
    {"replace", replace},
    {"rfind", find_method_of<true>},
    {"rindex", index_method<true>},
    {"rjust", pad<Align::kRight>},
    {"rpartition", rpartition},
    {"rsplit", rsplit},
    {"rstrip", strip<Side::kRight>},
    {"split", split},
    {"splitlines", splitlines},
    {"startswith", has_affix<false>},
    {"strip", strip<Side::kBoth>},
    {"swapcase", changed<swap_case>},
    {"title", changed<to_title>},
    {"upper", changed<to_upper>},
    {"zfill", zfill},
};

}  // namespace

std::span<const NamedBuiltin> string_methods() { return kMethods; }

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t offset = 0; offset < text.size();) {
    const size_t at = offset;
    const char32_t c = next_utf8(text, &offset);
    const bool ends =
        (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == '\r' && offset < text.size() && text[offset] == '\n') ++offset;
    lines.emplace_back(text.substr(begin, (keep_ends ? offset : at) - begin));
    begin = offset;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string replace_text(std::string_view text, std::string_view from, std::string_view to,
                         Int count, Budget& budget) {
  std::vector<size_t> at;
  if (from.empty()) {  // before each character, and at the end
    for (size_t offset = 0; offset < text.size(); next_utf8(text, &offset)) at.push_back(offset);
    at.push_back(text.size());
    budget.items(at.size());
  } else {
    at = occurrences(text, from, budget);
  }
  if (count >= 0 && static_cast<Int>(at.size()) > count) at.resize(static_cast<size_t>(count));
  budget.text(text.size() - at.size() * from.size() + at.size() * to.size());
  std::string out;
  size_t begin = 0;
  for (const size_t offset : at) {
    out.append(text.substr(begin, offset - begin));
    out.append(to);
    begin = offset + from.size();
  }
  return out.append(text.substr(begin));
}

std::string pad_text(std::string_view text, Int width, std::string_view fill, Align align,
                     Budget& budget) {
  const auto length = static_cast<Int>(count_code_points(text));
  if (width <= length) return std::string(text);
  const auto limit = static_cast<Int>(budget.limits().max_text_bytes);
  const auto missing = static_cast<size_t>(std::min(width - length, limit + 1));
  budget.text(text.size() + missing * fill.size());
  size_t left = 0;
  if (align == Align::kRight) left = missing;
  if (align == Align::kMiddle) left = missing / 2;
  // The odd blank of center() goes to the left when the width is odd.
  if (align == Align::kCenter) left = missing / 2 + (missing & static_cast<size_t>(width) & 1);
  std::string out;
  for (size_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (size_t i = left; i < missing; ++i) out += fill;
  return out;
}

}  // namespace galley::text::jinja
