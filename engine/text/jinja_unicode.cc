#include "engine/text/jinja_unicode.h"

#include <utf8proc.h>

#include <algorithm>

#include "engine/core/strings.h"

namespace galley::text::jinja {

namespace {

struct LongCase {
  char32_t code;
  std::u32string_view upper, title;
};

// Letters whose upper or title form is longer than one (Unicode's SpecialCasing.txt).
constexpr LongCase kLongCases[] = {
    // clang-format off
    {0x00DF, U"SS", U"Ss"},
    {0x0149, U"\u02bcN", U"\u02bcN"},
    {0x01F0, U"J\u030c", U"J\u030c"},
    {0x0390, U"\u0399\u0308\u0301", U"\u0399\u0308\u0301"},
    {0x03B0, U"\u03a5\u0308\u0301", U"\u03a5\u0308\u0301"},
    {0x0587, U"\u0535\u0552", U"\u0535\u0582"},
    {0x1E96, U"H\u0331", U"H\u0331"},
    {0x1E97, U"T\u0308", U"T\u0308"},
    {0x1E98, U"W\u030a", U"W\u030a"},
    {0x1E99, U"Y\u030a", U"Y\u030a"},
    {0x1E9A, U"A\u02be", U"A\u02be"},
    {0x1F50, U"\u03a5\u0313", U"\u03a5\u0313"},
    {0x1F52, U"\u03a5\u0313\u0300", U"\u03a5\u0313\u0300"},
    {0x1F54, U"\u03a5\u0313\u0301", U"\u03a5\u0313\u0301"},
    {0x1F56, U"\u03a5\u0313\u0342", U"\u03a5\u0313\u0342"},
    {0x1F80, U"\u1f08\u0399", U"\u1f88"},
    {0x1F81, U"\u1f09\u0399", U"\u1f89"},
    {0x1F82, U"\u1f0a\u0399", U"\u1f8a"},
    {0x1F83, U"\u1f0b\u0399", U"\u1f8b"},
    {0x1F84, U"\u1f0c\u0399", U"\u1f8c"},
    {0x1F85, U"\u1f0d\u0399", U"\u1f8d"},
    {0x1F86, U"\u1f0e\u0399", U"\u1f8e"},
    {0x1F87, U"\u1f0f\u0399", U"\u1f8f"},
    {0x1F88, U"\u1f08\u0399", U"\u1f88"},
    {0x1F89, U"\u1f09\u0399", U"\u1f89"},
    {0x1F8A, U"\u1f0a\u0399", U"\u1f8a"},
    {0x1F8B, U"\u1f0b\u0399", U"\u1f8b"},
    {0x1F8C, U"\u1f0c\u0399", U"\u1f8c"},
    {0x1F8D, U"\u1f0d\u0399", U"\u1f8d"},
    {0x1F8E, U"\u1f0e\u0399", U"\u1f8e"},
    {0x1F8F, U"\u1f0f\u0399", U"\u1f8f"},
    {0x1F90, U"\u1f28\u0399", U"\u1f98"},
    {0x1F91, U"\u1f29\u0399", U"\u1f99"},
    {0x1F92, U"\u1f2a\u0399", U"\u1f9a"},
    {0x1F93, U"\u1f2b\u0399", U"\u1f9b"},
    {0x1F94, U"\u1f2c\u0399", U"\u1f9c"},
    {0x1F95, U"\u1f2d\u0399", U"\u1f9d"},
    {0x1F96, U"\u1f2e\u0399", U"\u1f9e"},
    {0x1F97, U"\u1f2f\u0399", U"\u1f9f"},
    {0x1F98, U"\u1f28\u0399", U"\u1f98"},
    {0x1F99, U"\u1f29\u0399", U"\u1f99"},
    {0x1F9A, U"\u1f2a\u0399", U"\u1f9a"},
    {0x1F9B, U"\u1f2b\u0399", U"\u1f9b"},
    {0x1F9C, U"\u1f2c\u0399", U"\u1f9c"},
    {0x1F9D, U"\u1f2d\u0399", U"\u1f9d"},
    {0x1F9E, U"\u1f2e\u0399", U"\u1f9e"},
    {0x1F9F, U"\u1f2f\u0399", U"\u1f9f"},
    {0x1FA0, U"\u1f68\u0399", U"\u1fa8"},
    {0x1FA1, U"\u1f69\u0399", U"\u1fa9"},
    {0x1FA2, U"\u1f6a\u0399", U"\u1faa"},
    {0x1FA3, U"\u1f6b\u0399", U"\u1fab"},
    {0x1FA4, U"\u1f6c\u0399", U"\u1fac"},
    {0x1FA5, U"\u1f6d\u0399", U"\u1fad"},
    {0x1FA6, U"\u1f6e\u0399", U"\u1fae"},
    {0x1FA7, U"\u1f6f\u0399", U"\u1faf"},
    {0x1FA8, U"\u1f68\u0399", U"\u1fa8"},
    {0x1FA9, U"\u1f69\u0399", U"\u1fa9"},
    {0x1FAA, U"\u1f6a\u0399", U"\u1faa"},
    {0x1FAB, U"\u1f6b\u0399", U"\u1fab"},
    {0x1FAC, U"\u1f6c\u0399", U"\u1fac"},
    {0x1FAD, U"\u1f6d\u0399", U"\u1fad"},
    {0x1FAE, U"\u1f6e\u0399", U"\u1fae"},
    {0x1FAF, U"\u1f6f\u0399", U"\u1faf"},
    {0x1FB2, U"\u1fba\u0399", U"\u1fba\u0345"},
    {0x1FB3, U"\u0391\u0399", U"\u1fbc"},
    {0x1FB4, U"\u0386\u0399", U"\u0386\u0345"},
    {0x1FB6, U"\u0391\u0342", U"\u0391\u0342"},
    {0x1FB7, U"\u0391\u0342\u0399", U"\u0391\u0342\u0345"},
    {0x1FBC, U"\u0391\u0399", U"\u1fbc"},
    {0x1FC2, U"\u1fca\u0399", U"\u1fca\u0345"},
    {0x1FC3, U"\u0397\u0399", U"\u1fcc"},
    {0x1FC4, U"\u0389\u0399", U"\u0389\u0345"},
    {0x1FC6, U"\u0397\u0342", U"\u0397\u0342"},
    {0x1FC7, U"\u0397\u0342\u0399", U"\u0397\u0342\u0345"},
    {0x1FCC, U"\u0397\u0399", U"\u1fcc"},
    {0x1FD2, U"\u0399\u0308\u0300", U"\u0399\u0308\u0300"},
    {0x1FD3, U"\u0399\u0308\u0301", U"\u0399\u0308\u0301"},
    {0x1FD6, U"\u0399\u0342", U"\u0399\u0342"},
    {0x1FD7, U"\u0399\u0308\u0342", U"\u0399\u0308\u0342"},
    {0x1FE2, U"\u03a5\u0308\u0300", U"\u03a5\u0308\u0300"},
    {0x1FE3, U"\u03a5\u0308\u0301", U"\u03a5\u0308\u0301"},
    {0x1FE4, U"\u03a1\u0313", U"\u03a1\u0313"},
    {0x1FE6, U"\u03a5\u0342", U"\u03a5\u0342"},
    {0x1FE7, U"\u03a5\u0308\u0342", U"\u03a5\u0308\u0342"},
    {0x1FF2, U"\u1ffa\u0399", U"\u1ffa\u0345"},
    {0x1FF3, U"\u03a9\u0399", U"\u1ffc"},
    {0x1FF4, U"\u038f\u0399", U"\u038f\u0345"},
    {0x1FF6, U"\u03a9\u0342", U"\u03a9\u0342"},
    {0x1FF7, U"\u03a9\u0342\u0399", U"\u03a9\u0342\u0345"},
    {0x1FFC, U"\u03a9\u0399", U"\u1ffc"},
    {0xFB00, U"FF", U"Ff"},
    {0xFB01, U"FI", U"Fi"},
    {0xFB02, U"FL", U"Fl"},
    {0xFB03, U"FFI", U"Ffi"},
    {0xFB04, U"FFL", U"Ffl"},
    {0xFB05, U"ST", U"St"},
    {0xFB06, U"ST", U"St"},
    {0xFB13, U"\u0544\u0546", U"\u0544\u0576"},
    {0xFB14, U"\u0544\u0535", U"\u0544\u0565"},
    {0xFB15, U"\u0544\u053b", U"\u0544\u056b"},
    {0xFB16, U"\u054e\u0546", U"\u054e\u0576"},
    {0xFB17, U"\u0544\u053d", U"\u0544\u056d"},
    // clang-format on
};

const LongCase* find_long_case(char32_t c) {
  const auto* end = std::end(kLongCases);
  const auto* found =
      std::lower_bound(std::begin(kLongCases), end, c,
                       [](const LongCase& row, char32_t code) { return row.code < code; });
  return found != end && found->code == c ? found : nullptr;
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_cased(char32_t c) { return is_lower(c) || is_upper(c) || is_title(c); }

bool is_case_ignorable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2018 || c == 0x2019;
  }
}

void append_upper(std::u32string* out, char32_t c) {
  if (const LongCase* row = find_long_case(c)) {
    out->append(row->upper);
  } else {
    out->push_back(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
}

void append_title(std::u32string* out, char32_t c) {
  if (const LongCase* row = find_long_case(c)) {
    out->append(row->title);
  } else {
    out->push_back(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
  }
}

// A capital sigma at the end of a word becomes the final form.
bool is_final_sigma(const std::u32string& text, size_t at) {
  size_t before = at;
  while (before > 0 && is_case_ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  size_t after = at + 1;
  while (after < text.size() && is_case_ignorable(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

void append_lower(std::u32string* out, const std::u32string& text, size_t at) {
  const char32_t c = text[at];
  if (c == 0x3A3) {
    out->push_back(is_final_sigma(text, at) ? 0x3C2 : 0x3C3);
  } else if (c == 0x130) {
    out->append(U"i\u0307");
  } else {
    out->push_back(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

template <typename Predicate>
std::string_view strip_where(std::string_view text, Side side, Predicate removable) {
  size_t begin = 0;
  if (side != Side::kRight) {
    while (begin < text.size()) {
      size_t next = begin;
      if (!removable(next_utf8(text, &next))) break;
      begin = next;
    }
  }
  size_t end = text.size();
  if (side != Side::kLeft) {
    while (end > begin) {
      size_t start = end - 1;
      while (start > begin && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
      size_t offset = start;
      if (!removable(next_utf8(text, &offset))) break;
      end = start;
    }
  }
  return text.substr(begin, end - begin);
}

}  // namespace

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::u32string decode_utf8(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t offset = 0; offset < text.size();) out.push_back(next_utf8(text, &offset));
  return out;
}

std::string encode_utf8(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : text) append_utf8(&out, c);
  return out;
}

size_t byte_offset(std::string_view text, size_t index) {
  size_t offset = 0;
  for (; offset < text.size(); ++offset) {
    if ((static_cast<unsigned char>(text[offset]) & 0xC0) == 0x80) continue;
    if (index-- == 0) break;
  }
  return offset;
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_alpha(char32_t c) {
  const auto found = category(c);
  return found >= UTF8PROC_CATEGORY_LU && found <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_digit(char32_t c) {
  return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
         (c >= 0x2460 && c <= 0x2468) || (c >= 0x2474 && c <= 0x247C) ||
         (c >= 0x2488 && c <= 0x2490);
}
bool is_numeric(char32_t c) {
  const auto found = category(c);
  return found == UTF8PROC_CATEGORY_ND || found == UTF8PROC_CATEGORY_NL ||
         found == UTF8PROC_CATEGORY_NO;
}
bool is_lower(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA ||
         (c >= 0x2170 && c <= 0x217F) || (c >= 0x24D0 && c <= 0x24E9);
}
bool is_upper(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LU || (c >= 0x2160 && c <= 0x216F) ||
         (c >= 0x24B6 && c <= 0x24CF);
}
bool is_title(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_word(char32_t c) { return c == '_' || is_alpha(c) || is_numeric(c); }

std::string to_upper(std::string_view text) {
  std::u32string out;
  for (const char32_t c : decode_utf8(text)) append_upper(&out, c);
  return encode_utf8(out);
}

std::string to_lower(std::string_view text) {
  const std::u32string source = decode_utf8(text);
  std::u32string out;
  for (size_t i = 0; i < source.size(); ++i) append_lower(&out, source, i);
  return encode_utf8(out);
}

std::string to_title(std::string_view text) {
  const std::u32string source = decode_utf8(text);
  std::u32string out;
  bool inside = false;
  for (size_t i = 0; i < source.size(); ++i) {
    if (inside) {
      append_lower(&out, source, i);
    } else {
      append_title(&out, source[i]);
    }
    inside = is_cased(source[i]);
  }
  return encode_utf8(out);
}

std::string capitalize(std::string_view text) {
  const std::u32string source = decode_utf8(text);
  std::u32string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (i == 0) {
      append_title(&out, source[i]);
    } else {
      append_lower(&out, source, i);
    }
  }
  return encode_utf8(out);
}

std::string swap_case(std::string_view text) {
  const std::u32string source = decode_utf8(text);
  std::u32string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (is_upper(source[i])) {
      append_lower(&out, source, i);
    } else if (is_lower(source[i])) {
      append_upper(&out, source[i]);
    } else {
      out.push_back(source[i]);
    }
  }
  return encode_utf8(out);
}

std::string_view strip_space(std::string_view text, Side side) {
  return strip_where(text, side, is_space);
}

std::string_view strip_characters(std::string_view text, std::string_view characters, Side side) {
  std::u32string set = decode_utf8(characters);
  std::sort(set.begin(), set.end());
  return strip_where(text, side,
                     [&](char32_t c) { return std::binary_search(set.begin(), set.end(), c); });
}

}  // namespace galley::text::jinja
