#include <cctype>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/text/tok_regex.h"

namespace galley::text::internal {
namespace {

// Code points that Oniguruma 6.9.10 (Unicode 16) has in a property and PCRE2 10.42 (Unicode 14) has
// not. A newer PCRE2 already has them; naming them twice does no harm. Other properties are
// refused.
struct Property {
  const char* name;
  const char* added;
};
// clang-format off
constexpr Property kProperties[] = {
    {"L",
     "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}"
     "\\x{10D4A}-\\x{10D65}\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}"
     "\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}"
     "\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}"
     "\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}"
     "\\x{16D40}-\\x{16D6C}\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}"
     "\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}"
     "\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"},
    {"Lu",
     "\\x{1C89}\\x{A7CB}-\\x{A7CC}\\x{A7DA}\\x{A7DC}\\x{10D50}-\\x{10D65}"},
    {"Ll",
     "\\x{1C8A}\\x{A7CD}\\x{A7DB}\\x{10D70}-\\x{10D85}\\x{1DF25}-\\x{1DF2A}"},
    {"Lm",
     "\\x{10D4E}\\x{10D6F}\\x{16D40}-\\x{16D42}\\x{16D6B}-\\x{16D6C}\\x{1E030}-\\x{1E06D}"
     "\\x{1E4EB}"},
    {"Lo",
     "\\x{105C0}-\\x{105F3}\\x{10D4A}-\\x{10D4D}\\x{10D4F}\\x{10EC2}-\\x{10EC4}"
     "\\x{1123F}-\\x{11240}\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}"
     "\\x{113B7}\\x{113D1}\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}"
     "\\x{11F12}-\\x{11F33}\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}"
     "\\x{16100}-\\x{1611D}\\x{16D43}-\\x{16D6A}\\x{18CFF}\\x{1B132}\\x{1B155}"
     "\\x{1E4D0}-\\x{1E4EA}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}\\x{2EBF0}-\\x{2EE5D}"
     "\\x{31350}-\\x{323AF}"},
    {"M",
     "\\x{897}\\x{CF3}\\x{ECE}\\x{10D69}-\\x{10D6D}\\x{10EFC}-\\x{10EFF}\\x{11241}"
     "\\x{113B8}-\\x{113C0}\\x{113C2}\\x{113C5}\\x{113C7}-\\x{113CA}\\x{113CC}-\\x{113D0}"
     "\\x{113D2}\\x{113E1}-\\x{113E2}\\x{11F00}-\\x{11F01}\\x{11F03}\\x{11F34}-\\x{11F3A}"
     "\\x{11F3E}-\\x{11F42}\\x{11F5A}\\x{13440}\\x{13447}-\\x{13455}\\x{1611E}-\\x{1612F}"
     "\\x{1E08F}\\x{1E4EC}-\\x{1E4EF}\\x{1E5EE}-\\x{1E5EF}"},
    {"Mn",
     "\\x{897}\\x{ECE}\\x{10D69}-\\x{10D6D}\\x{10EFC}-\\x{10EFF}\\x{11241}"
     "\\x{113BB}-\\x{113C0}\\x{113CE}\\x{113D0}\\x{113D2}\\x{113E1}-\\x{113E2}"
     "\\x{11F00}-\\x{11F01}\\x{11F36}-\\x{11F3A}\\x{11F40}\\x{11F42}\\x{11F5A}\\x{13440}"
     "\\x{13447}-\\x{13455}\\x{1611E}-\\x{16129}\\x{1612D}-\\x{1612F}\\x{1E08F}"
     "\\x{1E4EC}-\\x{1E4EF}\\x{1E5EE}-\\x{1E5EF}"},
    {"N",
     "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}"
     "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}"
     "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}"},
    {"P",
     "\\x{1B4E}-\\x{1B4F}\\x{1B7F}\\x{10D6E}\\x{113D4}-\\x{113D5}\\x{113D7}-\\x{113D8}"
     "\\x{11B00}-\\x{11B09}\\x{11BE1}\\x{11F43}-\\x{11F4F}\\x{16D6D}-\\x{16D6F}\\x{1E5FF}"},
    {"S",
     "\\x{2427}-\\x{2429}\\x{2FFC}-\\x{2FFF}\\x{31E4}-\\x{31E5}\\x{31EF}"
     "\\x{10D8E}-\\x{10D8F}\\x{1CC00}-\\x{1CCEF}\\x{1CD00}-\\x{1CEB3}\\x{1F6DC}"
     "\\x{1F774}-\\x{1F776}\\x{1F77B}-\\x{1F77F}\\x{1F7D9}\\x{1F8B2}-\\x{1F8BB}"
     "\\x{1F8C0}-\\x{1F8C1}\\x{1FA75}-\\x{1FA77}\\x{1FA87}-\\x{1FA89}\\x{1FA8F}"
     "\\x{1FAAD}-\\x{1FAAF}\\x{1FABB}-\\x{1FABF}\\x{1FAC6}\\x{1FACE}-\\x{1FACF}"
     "\\x{1FADA}-\\x{1FADC}\\x{1FADF}\\x{1FAE8}-\\x{1FAE9}\\x{1FAF7}-\\x{1FAF8}"
     "\\x{1FBCB}-\\x{1FBEF}"},
    {"Nd",
     "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}"
     "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1E4F0}-\\x{1E4F9}"
     "\\x{1E5F1}-\\x{1E5FA}"},
    {"Lt", ""},
    {"Z", ""},
    {"Cc", ""},
    {"Cf",
     "\\x{13439}-\\x{1343F}"},
    {"Co", ""},
    {"Mc",
     "\\x{CF3}\\x{113B8}-\\x{113BA}\\x{113C2}\\x{113C5}\\x{113C7}-\\x{113CA}"
     "\\x{113CC}-\\x{113CD}\\x{113CF}\\x{1171E}\\x{11F03}\\x{11F34}-\\x{11F35}"
     "\\x{11F3E}-\\x{11F3F}\\x{11F41}\\x{1612A}-\\x{1612C}"},
    {"Me", ""},
    {"Nl", ""},
    {"No",
     "\\x{1D2C0}-\\x{1D2D3}"},
    {"Pc", ""},
    {"Pd",
     "\\x{10D6E}"},
    {"Pe", ""},
    {"Pf", ""},
    {"Pi", ""},
    {"Po",
     "\\x{1B4E}-\\x{1B4F}\\x{1B7F}\\x{113D4}-\\x{113D5}\\x{113D7}-\\x{113D8}"
     "\\x{11B00}-\\x{11B09}\\x{11BE1}\\x{11F43}-\\x{11F4F}\\x{16D6D}-\\x{16D6F}\\x{1E5FF}"},
    {"Ps", ""},
    {"Sc", ""},
    {"Sk", ""},
    {"Sm",
     "\\x{10D8E}-\\x{10D8F}"},
    {"So",
     "\\x{2427}-\\x{2429}\\x{2FFC}-\\x{2FFF}\\x{31E4}-\\x{31E5}\\x{31EF}"
     "\\x{1CC00}-\\x{1CCEF}\\x{1CD00}-\\x{1CEB3}\\x{1F6DC}\\x{1F774}-\\x{1F776}"
     "\\x{1F77B}-\\x{1F77F}\\x{1F7D9}\\x{1F8B2}-\\x{1F8BB}\\x{1F8C0}-\\x{1F8C1}"
     "\\x{1FA75}-\\x{1FA77}\\x{1FA87}-\\x{1FA89}\\x{1FA8F}\\x{1FAAD}-\\x{1FAAF}"
     "\\x{1FABB}-\\x{1FABF}\\x{1FAC6}\\x{1FACE}-\\x{1FACF}\\x{1FADA}-\\x{1FADC}\\x{1FADF}"
     "\\x{1FAE8}-\\x{1FAE9}\\x{1FAF7}-\\x{1FAF8}\\x{1FBCB}-\\x{1FBEF}"},
    {"Zl", ""},
    {"Zp", ""},
    {"Zs", ""},
    {"Arabic",
     "\\x{897}\\x{10EC2}-\\x{10EC4}\\x{10EFC}-\\x{10EFF}"},
    {"Armenian", ""},
    {"Bengali", ""},
    {"Cyrillic",
     "\\x{1C89}-\\x{1C8A}\\x{1E030}-\\x{1E06D}\\x{1E08F}"},
    {"Devanagari",
     "\\x{11B00}-\\x{11B09}"},
    {"Ethiopic", ""},
    {"Georgian", ""},
    {"Greek", ""},
    {"Gujarati", ""},
    {"Gurmukhi", ""},
    {"Han",
     "\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"},
    {"Hangul", ""},
    {"Hebrew", ""},
    {"Hiragana",
     "\\x{1B132}"},
    {"Kannada",
     "\\x{CF3}"},
    {"Katakana",
     "\\x{1B155}"},
    {"Khmer", ""},
    {"Lao",
     "\\x{ECE}"},
    {"Latin",
     "\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{1DF25}-\\x{1DF2A}"},
    {"Malayalam", ""},
    {"Mongolian", ""},
    {"Myanmar",
     "\\x{116D0}-\\x{116E3}"},
    {"Oriya", ""},
    {"Sinhala", ""},
    {"Tamil", ""},
    {"Telugu", ""},
    {"Thai", ""},
    {"Tibetan", ""},
    {"Common",
     "\\x{2427}-\\x{2429}\\x{2FFC}-\\x{2FFF}\\x{31E4}-\\x{31E5}\\x{31EF}"
     "\\x{1CC00}-\\x{1CCF9}\\x{1CD00}-\\x{1CEB3}\\x{1D2C0}-\\x{1D2D3}\\x{1F6DC}"
     "\\x{1F774}-\\x{1F776}\\x{1F77B}-\\x{1F77F}\\x{1F7D9}\\x{1F8B2}-\\x{1F8BB}"
     "\\x{1F8C0}-\\x{1F8C1}\\x{1FA75}-\\x{1FA77}\\x{1FA87}-\\x{1FA89}\\x{1FA8F}"
     "\\x{1FAAD}-\\x{1FAAF}\\x{1FABB}-\\x{1FABF}\\x{1FAC6}\\x{1FACE}-\\x{1FACF}"
     "\\x{1FADA}-\\x{1FADC}\\x{1FADF}\\x{1FAE8}-\\x{1FAE9}\\x{1FAF7}-\\x{1FAF8}"
     "\\x{1FBCB}-\\x{1FBEF}"},
    {"Inherited", ""},
    {"Bopomofo", ""},
    {"w",
     "\\x{897}\\x{CF3}\\x{ECE}\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}"
     "\\x{105C0}-\\x{105F3}\\x{10D40}-\\x{10D65}\\x{10D69}-\\x{10D6D}\\x{10D6F}-\\x{10D85}"
     "\\x{10EC2}-\\x{10EC4}\\x{10EFC}-\\x{10EFF}\\x{1123F}-\\x{11241}\\x{11380}-\\x{11389}"
     "\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}-\\x{113C0}\\x{113C2}\\x{113C5}"
     "\\x{113C7}-\\x{113CA}\\x{113CC}-\\x{113D3}\\x{113E1}-\\x{113E2}\\x{116D0}-\\x{116E3}"
     "\\x{11BC0}-\\x{11BE0}\\x{11BF0}-\\x{11BF9}\\x{11F00}-\\x{11F10}\\x{11F12}-\\x{11F3A}"
     "\\x{11F3E}-\\x{11F42}\\x{11F50}-\\x{11F5A}\\x{1342F}\\x{13440}-\\x{13455}"
     "\\x{13460}-\\x{143FA}\\x{16100}-\\x{16139}\\x{16D40}-\\x{16D6C}\\x{16D70}-\\x{16D79}"
     "\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1CCF0}-\\x{1CCF9}\\x{1DF25}-\\x{1DF2A}"
     "\\x{1E030}-\\x{1E06D}\\x{1E08F}\\x{1E4D0}-\\x{1E4F9}\\x{1E5D0}-\\x{1E5FA}\\x{2B739}"
     "\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"},
};
// clang-format on

// \w of Oniguruma (beside the additions of row "w"), \s and its complement, hexadecimal digits.
constexpr const char* kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
// Outside of classes Oniguruma looks Latin-1 up in another table, which has these digits too.
constexpr const char* kWordOfLatin1 = "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
constexpr const char* kSpace =
    "\\x09-\\x0D\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}"
    "\\x{3000}";
constexpr const char* kNoSpace =
    "\\x00-\\x08\\x0E-\\x1F\\x21-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}"
    "\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{"
    "10FFFF}";
constexpr const char* kHexDigits = "0-9A-Fa-f";

// Lead bytes of three-byte characters named in the additions: E0 E1 EA, and E2 E3 for symbols.
constexpr uint32_t kLeadBytes = 1u << 0 | 1u << 1 | 1u << 10;
constexpr uint32_t kLeadBytesOfSymbols = 1u << 2 | 1u << 3;

// What Oniguruma has in a property beyond PCRE2; nullptr for properties that were not compared.
const char* added_to(std::string_view name) {
  for (const Property& property : kProperties) {
    if (property.name == name) return property.added;
  }
  return nullptr;
}

enum class Place { kOutside, kInClass };

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : in_(pattern), where_(where) {}

  RegexTranslation run() {
    while (at_ < in_.size()) {
      if (in_[at_] == '\\') {
        escape(Place::kOutside);
      } else if (in_[at_] == '[') {
        character_class();
      } else if (in_.substr(at_, 2) == "(?") {
        group();
      } else if (in_.substr(at_, 2) == "{,") {
        both("{0,");
        at_ += 2;
      } else if (in_.substr(at_, 2) == "}+") {
        refuse("}+");
      } else if (in_.substr(at_, 2) == "(*") {
        refuse("(*");
      } else {
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw Error(Reason::kUnsupported, cat(where_, ": \"", what, "\" in the pattern \"", in_,
                                          "\" is not supported by this version"));
  }
  [[noreturn]] void broken(std::string_view what) const {
    throw Error(Reason::kBadTokenizer, cat(where_, ": the pattern \"", in_, "\" ", what));
  }
  void both(std::string_view text) {
    out_.plain += text;
    out_.extended += text;
  }
  void copy(size_t count) {
    both(in_.substr(at_, count));
    at_ += count;
  }

  // A set written as the inside of a class; outside of one it gets its own brackets.
  void set(std::string_view plain, std::string_view extended, Place place, bool negated) {
    if (place == Place::kInClass) {
      if (negated) refuse("a negated class inside of [...]");
      out_.plain += plain;
      out_.extended += extended;
      if (plain != extended) out_.lead_bytes |= kLeadBytes;
      return;
    }
    const std::string_view open = negated ? "[^" : "[";
    out_.plain += cat(open, plain, "]");
    out_.extended += cat(open, extended, "]");
    if (plain != extended) out_.lead_bytes |= kLeadBytes;
  }

  std::string word_set() const { return cat(kWord, added_to("w")); }

  void space(Place place, bool negated) {
    // PCRE2's \s has U+180E (lead byte E1) beside the white space of Unicode.
    out_.lead_bytes |= kLeadBytes;
    out_.plain += negated ? "\\S" : "\\s";
    if (place == Place::kInClass) {
      out_.extended += negated ? kNoSpace : kSpace;
    } else {
      out_.extended += cat(negated ? "[^" : "[", kSpace, "]");
    }
  }

  void property(Place place, bool negated) {
    size_t end = at_ + 3;
    if (in_.substr(at_ + 2, 1) != "{" || (end = in_.find('}', at_)) == std::string_view::npos) {
      broken("has \\p without a name in braces");
    }
    std::string name(in_.substr(at_ + 3, end - at_ - 3));
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.erase(0, 1);
    }
    if (added_to(name) == nullptr || name == "w") refuse("\\p{" + name + "}");
    const std::string added = added_to(name);
    // Longer names are scripts.
    const std::string in_pcre2 = name.size() <= 2 ? name : "sc:" + name;
    at_ = end + 1;
    out_.lead_bytes |= kLeadBytes;
    if (name == "S" || name == "So" || name == "Common") out_.lead_bytes |= kLeadBytesOfSymbols;
    if (place == Place::kInClass) {
      if (negated && !added.empty()) refuse("\\P{" + name + "} inside of [...]");
      both(cat(negated ? "\\P{" : "\\p{", in_pcre2, "}"));
      out_.extended += added;
      return;
    }
    out_.plain += cat(negated ? "\\P{" : "\\p{", in_pcre2, "}");
    out_.extended += added.empty() ? cat(negated ? "\\P{" : "\\p{", in_pcre2, "}")
                                   : cat(negated ? "[^" : "[", "\\p{", in_pcre2, "}", added, "]");
  }

  void escape(Place place) {
    if (at_ + 1 >= in_.size()) broken("ends in a backslash");
    const char letter = in_[at_ + 1];
    switch (letter) {
      case 's':
      case 'S':
        at_ += 2;
        return space(place, letter == 'S');
      case 'w':
      case 'W':
        at_ += 2;
        if (place == Place::kInClass) return set(kWord, word_set(), place, letter == 'W');
        return set(cat(kWord, kWordOfLatin1), cat(word_set(), kWordOfLatin1), place, letter == 'W');
      case 'd':
      case 'D':
        at_ += 2;
        return set("\\p{Nd}", cat("\\p{Nd}", added_to("Nd")), place, letter == 'D');
      case 'h':
      case 'H':
        at_ += 2;
        return set(kHexDigits, kHexDigits, place, letter == 'H');
      case 'p':
      case 'P':
        return property(place, letter == 'P');
      case 'v':
        at_ += 2;
        return both("\\x0B");
      case 'u':
        return unicode_escape();
      case 'b':
      case 'B':
        if (place == Place::kInClass) return copy(2);
        at_ += 2;
        return boundary(letter == 'B');
      default:
        break;
    }
    const bool known = std::string_view("nrtfaexAzZ").find(letter) != std::string_view::npos;
    if (std::isalpha(static_cast<unsigned char>(letter)) && !known) {
      refuse(in_.substr(at_, 2));
    }
    copy(2);
  }

  void unicode_escape() {
    const std::string_view digits = in_.substr(at_ + 2, 4);
    for (const char digit : digits) {
      if (!std::isxdigit(static_cast<unsigned char>(digit))) broken("has a bad \\u escape");
    }
    if (digits.size() != 4) broken("has a bad \\u escape");
    both(cat("\\x{", digits, "}"));
    at_ += 6;
  }

  void boundary(bool negated) {
    const std::string plain = cat("[", kWord, kWordOfLatin1, "]");
    const std::string extended = cat("[", word_set(), kWordOfLatin1, "]");
    const auto write = [&](const std::string& word) {
      return negated ? cat("(?:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))")
                     : cat("(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))");
    };
    out_.plain += write(plain);
    out_.extended += write(extended);
    out_.lead_bytes |= kLeadBytes;
  }

  void character_class() {
    copy(1);
    if (in_.substr(at_, 1) == "^") copy(1);
    if (in_.substr(at_, 1) == "]") copy(1);
    while (at_ < in_.size() && in_[at_] != ']') {
      if (in_[at_] == '\\') {
        escape(Place::kInClass);
      } else if (in_[at_] == '[') {
        refuse("[ inside of [...]");
      } else if (in_.substr(at_, 2) == "&&") {
        refuse("&& inside of [...]");
      } else {
        copy(1);
      }
    }
    if (at_ >= in_.size()) broken("has a [ without a ]");
    copy(1);
  }

  void group() {
    for (const std::string_view start : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (in_.substr(at_, start.size()) == start) return copy(start.size());
    }
    copy(2);
    const size_t flags = at_;
    while (at_ < in_.size() && in_[at_] != ')' && in_[at_] != ':') {
      const char flag = in_[at_];
      if (flag == 'i' || flag == '-' || flag == 'x') {
        copy(1);
      } else if (flag == 'm') {  // "." matches line ends
        both("s");
        ++at_;
      } else {
        refuse("(?" + std::string(in_.substr(flags, at_ - flags + 1)));
      }
    }
  }

  std::string_view in_;
  const std::string& where_;
  size_t at_ = 0;
  RegexTranslation out_;
};

}  // namespace

RegexTranslation translate_regex(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

}  // namespace galley::text::internal
