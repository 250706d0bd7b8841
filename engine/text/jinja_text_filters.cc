// Filters that take text.
#include <algorithm>

#include "engine/core/strings.h"
#include "engine/text/jinja_evaluator.h"
#include "engine/text/jinja_operators.h"
#include "engine/text/jinja_tables.h"
#include "engine/text/jinja_unicode.h"

namespace galley::text::jinja {

namespace {

// Jinja's soft_str(): strings and markup stay, everything else becomes a string.
Value soft_string(Evaluator& evaluator, const Value& value) {
  return value.is_string() ? value : Value::string(to_text(value, evaluator.budget()));
}

Value made(Evaluator& evaluator, const Value& like, std::string text) {
  evaluator.budget().text(text.size());
  return Value::string_like(like, std::move(text));
}

template <std::string (*kChange)(std::string_view)>
Value changed(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters none("filter", arguments, {});
  const Value text = soft_string(evaluator, subject);
  return made(evaluator, text, kChange(text.as_string()));
}

Value trim(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("trim", arguments, {"chars"});
  const Value text = soft_string(evaluator, subject);
  const std::string& all = text.as_string();
  return made(evaluator, text,
              std::string(given.given(0) ? strip_characters(all, given.string(0), Side::kBoth)
                                         : strip_space(all)));
}

// Words begin after white space, dashes and opening brackets.
Value title(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters none("title", arguments, {});
  const Value text = soft_string(evaluator, subject);
  std::string out;
  std::u32string word;
  const auto flush = [&] {
    if (word.empty()) return;
    out += to_upper(encode_utf8(word.substr(0, 1)));
    out += to_lower(encode_utf8(word.substr(1)));
    word.clear();
  };
  bool between = false;
  for (const char32_t c : decode_utf8(text.as_string())) {
    const bool separates = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (separates != between) flush();
    between = separates;
    word.push_back(c);
  }
  flush();
  return made(evaluator, text, std::move(out));
}

Value replace(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("replace", arguments, {"old", "new", "count"}, 2);
  Budget& budget = evaluator.budget();
  const Int count = given.given(2) ? given.integer(2, -1) : -1;
  const std::string from = to_text(given.value(0), budget);
  if (!evaluator.autoescape()) {
    return Value::string(replace_text(to_text(subject, budget), from,
                                      to_text(given.value(1), budget), count, budget));
  }
  Value text = soft_string(evaluator, subject);
  if (given.value(0).is_markup() || (given.value(1).is_markup() && !text.is_markup())) {
    text = escape(text, budget);
  }
  const std::string to = text.is_markup() ? escape(given.value(1), budget).as_string()
                                          : to_text(given.value(1), budget);
  return Value::string_like(text, replace_text(text.as_string(), from, to, count, budget));
}

Value indent(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("indent", arguments, {"width", "first", "blank"});
  if (subject.is_undefined()) fail_undefined(subject);
  if (!subject.is_string()) {
    throw Failure(cat("indent() needs a string, not '", type_name(subject), "'"));
  }
  Budget& budget = evaluator.budget();
  std::string by;
  if (given.has(0) && given.value(0).is_string()) {
    by = given.string(0);
  } else {
    by = pad_text("", given.integer(0, 4), " ", Align::kLeft, budget);
  }
  std::string out = given.flag(1) ? by : "";
  bool first = true;
  for (const std::string& line : split_lines(subject.as_string() + "\n", false)) {
    if (!first) out += "\n";
    if (!first && (given.flag(2) || !line.empty())) out += by;
    first = false;
    out += line;
    budget.growing(out.size());
  }
  return made(evaluator, subject, std::move(out));
}

Value center(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("center", arguments, {"width"});
  const Value text = soft_string(evaluator, subject);
  return Value::string_like(text, pad_text(text.as_string(), given.integer(0, 80), " ",
                                           Align::kCenter, evaluator.budget()));
}

Value truncate(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("truncate", arguments, {"length", "killwords", "end", "leeway"});
  if (!subject.is_string()) {
    throw Failure(cat("truncate() needs a string, not '", type_name(subject), "'"));
  }
  const std::string end = given.has(2) ? given.string(2) : "...";
  const Int limit = given.integer(0, 255), leeway = given.given(3) ? given.integer(3, 5) : 5;
  const auto end_length = static_cast<Int>(count_code_points(end));
  if (limit < end_length) {
    throw Failure(cat("expected length >= ", int_text(end_length), ", got ", int_text(limit)));
  }
  if (leeway < 0) throw Failure(cat("expected leeway >= 0, got ", int_text(leeway)));
  const std::string& text = subject.as_string();
  const auto length = static_cast<Int>(count_code_points(text));
  if (length <= limit || length - limit <= leeway) return subject;
  std::string kept = text.substr(0, byte_offset(text, static_cast<size_t>(limit - end_length)));
  if (!given.flag(1)) kept = kept.substr(0, kept.rfind(' '));
  return made(evaluator, subject, kept + end);
}

Value wordcount(Evaluator& evaluator, const Value& subject, Arguments&) {
  Int count = 0;
  bool inside = false;
  const Value text = soft_string(evaluator, subject);
  for (const char32_t c : decode_utf8(text.as_string())) {
    if (is_word(c) && !inside) ++count;
    inside = is_word(c);
  }
  return Value::integer(count);
}

// Lines are broken at blanks; words longer than a line are cut.
std::vector<std::string> wrap_line(const std::string& line, size_t width, bool break_words) {
  std::vector<std::string> lines;
  std::u32string current;
  std::vector<std::u32string> chunks;
  for (const char32_t c : decode_utf8(line)) {
    const bool blank = c == ' ' || c == '\t';
    const bool joins =
        !chunks.empty() && (chunks.back()[0] == ' ' || chunks.back()[0] == '\t') == blank;
    if (!joins) chunks.emplace_back();
    chunks.back().push_back(c);
  }
  const auto blank = [](const std::u32string& chunk) {
    return chunk[0] == ' ' || chunk[0] == '\t';
  };
  const auto flush = [&] {
    std::string text = encode_utf8(current);
    lines.emplace_back(strip_characters(text, " \t", Side::kRight));
    current.clear();
  };
  for (std::u32string chunk : chunks) {
    if (current.empty() && !lines.empty() && blank(chunk)) continue;
    if (!current.empty() && current.size() + chunk.size() > width) {
      if (blank(chunk)) {
        flush();
        continue;
      }
      flush();
    }
    while (break_words && chunk.size() > width) {
      current = chunk.substr(0, width);
      chunk = chunk.substr(width);
      flush();
    }
    current += chunk;
  }
  if (!current.empty()) flush();
  return lines;
}

Value wordwrap(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("wordwrap", arguments,
                         {"width", "break_long_words", "wrapstring", "break_on_hyphens"});
  const Value text = soft_string(evaluator, subject);
  const Int width = given.integer(0, 79);
  if (width <= 0) throw Failure(cat("invalid width ", int_text(width), " (must be > 0)"));
  const std::string between = given.given(2) ? given.string(2) : "\n";
  const auto limit = static_cast<Int>(evaluator.budget().limits().max_text_bytes);
  std::string out;
  bool first = true;
  for (const std::string& line : split_lines(text.as_string(), false)) {
    const auto size = static_cast<size_t>(std::min(width, limit));
    if (!first) out += between;
    first = false;
    out += join(wrap_line(line, size, given.flag(1, true)), between);
    evaluator.budget().growing(out.size());
  }
  return made(evaluator, text, std::move(out));
}

Value format_filter(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    throw Failure("can't handle positional and keyword arguments at the same time");
  }
  Value values;
  if (!arguments.named.empty()) {
    Pairs pairs;
    for (const auto& [name, value] : arguments.named) {
      pairs.emplace_back(Value::string(name), value);
    }
    values = Value::dict(std::move(pairs), evaluator.budget());
  } else {
    values = Value::tuple(arguments.positional, evaluator.budget());
  }
  return format_percent(soft_string(evaluator, subject), values, evaluator);
}

std::string quote_url(std::string_view text, bool for_query) {
  static constexpr std::string_view kSafe = "_.-~";
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       kSafe.find(c) != std::string_view::npos || (c == '/' && !for_query);
    if (plain) {
      out += c;
    } else if (for_query && c == ' ') {
      out += '+';
    } else {
      out += format("%%%02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
    }
  }
  return out;
}

Value urlencode(Evaluator& evaluator, const Value& subject, Arguments&) {
  Budget& budget = evaluator.budget();
  if (subject.is_string() || !iterable(subject)) {
    return made(evaluator, Value::string(""), quote_url(to_text(subject, budget), false));
  }
  std::string out;
  const auto append = [&](const Value& key, const Value& value) {
    if (!out.empty()) out += '&';
    out += quote_url(to_text(key, budget), true) + "=" + quote_url(to_text(value, budget), true);
    budget.growing(out.size());
  };
  if (subject.is_dict()) {
    for (const auto& [key, value] : subject.as_pairs()) append(key, value);
  } else {
    for (const Value& item : iterate(subject, budget)) {
      const Items pair = iterate(item, budget);
      if (pair.size() != 2) throw Failure("urlencode() needs pairs");
      append(pair[0], pair[1]);
    }
  }
  return made(evaluator, Value::string(""), std::move(out));
}

Value escape_filter(Evaluator& evaluator, const Value& subject, Arguments&) {
  return escape(subject, evaluator.budget());
}

Value forceescape(Evaluator& evaluator, const Value& subject, Arguments&) {
  return escape(Value::string(to_text(subject, evaluator.budget())), evaluator.budget());
}

Value safe(Evaluator& evaluator, const Value& subject, Arguments&) {
  return Value::markup(to_text(subject, evaluator.budget()));
}

Value string_filter(Evaluator& evaluator, const Value& subject, Arguments&) {
  return soft_string(evaluator, subject);
}

// Without tags and comments, white space as single blanks.
Value striptags(Evaluator& evaluator, const Value& subject, Arguments&) {
  std::string text = to_text(subject, evaluator.budget());
  for (const auto& [open, close] : {std::pair{"<!--", "-->"}, std::pair{"<", ">"}}) {
    std::string out;
    size_t at = 0;
    while (true) {
      const size_t begin = text.find(open, at);
      const size_t end = begin == std::string::npos ? begin : text.find(close, begin);
      if (end == std::string::npos) break;
      out.append(text, at, begin - at);
      at = end + std::string_view(close).size();
    }
    text = out.append(text, at);
  }
  std::string out;
  bool blank = false;
  for (size_t offset = 0; offset < text.size();) {
    const char32_t c = next_utf8(text, &offset);
    if (is_space(c)) {
      blank = !out.empty();
      continue;
    }
    if (blank) out += ' ';
    blank = false;
    append_utf8(&out, c);
  }
  return made(evaluator, Value::string(""), std::move(out));
}

constexpr NamedBuiltin kFilters[] = {
    {"capitalize", changed<capitalize>},
    {"center", center},
    {"e", escape_filter},
    {"escape", escape_filter},
    {"forceescape", forceescape},
    {"format", format_filter},
    {"indent", indent},
    {"lower", changed<to_lower>},
    {"replace", replace},
    {"safe", safe},
    {"string", string_filter},
    {"striptags", striptags},
    {"title", title},
    {"trim", trim},
    {"truncate", truncate},
    {"upper", changed<to_upper>},
    {"urlencode", urlencode},
    {"wordcount", wordcount},
    {"wordwrap", wordwrap},
};

}  // namespace

std::span<const NamedBuiltin> text_filters() { return kFilters; }

}  // namespace galley::text::jinja
