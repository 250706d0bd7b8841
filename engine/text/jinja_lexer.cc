#include "engine/text/jinja_lexer.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "engine/core/strings.h"
#include "engine/text/jinja_unicode.h"

namespace galley::text::jinja {

namespace {

// CRLF and CR become LF; one line end at the very end goes.
std::string normalize_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool is_digit_of(char c, int base) {
  if (base == 16) return std::isxdigit(static_cast<unsigned char>(c)) != 0;
  return c >= '0' && c < '0' + base;
}

// Reads the escapes of a string literal, those of Python's unicode-escape codec.
class Unescaper {
 public:
  Unescaper(std::string_view text, int line) : text_(text), line_(line) {}

  std::string run() {
    while (at_ < text_.size()) {
      if (text_[at_] != '\\') {
        out_.push_back(text_[at_++]);
      } else {
        ++at_;
        escape();
      }
    }
    return std::move(out_);
  }

 private:
  void escape() {
    const char c = text_[at_++];  // the lexer never ends a literal after a backslash
    static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t found = kFrom.find(c); found != std::string_view::npos) {
      out_.push_back(kTo[found]);
    } else if (c == '\n') {
      return;  // a continued line
    } else if (c == 'x') {
      hexadecimal(2);
    } else if (c == 'u') {
      hexadecimal(4);
    } else if (c == 'U') {
      hexadecimal(8);
    } else if (c >= '0' && c <= '7') {
      --at_;
      octal();
    } else if (c == 'N') {
      throw Failure("escapes of the form \\N{name} are not supported", line_);
    } else {
      out_.push_back('\\');
      out_.push_back(c);
    }
  }

  void hexadecimal(size_t digits) {
    char32_t code = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      if (at_ >= text_.size() || !is_digit_of(text_[at_], 16)) {
        throw Failure(cat("truncated \\",
                          digits == 2   ? "x"
                          : digits == 4 ? "u"
                                        : "U",
                          " escape"),
                      line_);
      }
      const char c = text_[at_];
      code = code * 16 + static_cast<char32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    append(code);
  }

  void octal() {
    char32_t code = 0;
    for (int i = 0; i < 3 && at_ < text_.size() && is_digit_of(text_[at_], 8); ++i) {
      code = code * 8 + static_cast<char32_t>(text_[at_++] - '0');
    }
    append(code);
  }

  void append(char32_t code) {
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
      throw Failure("an escape is not a character (surrogate, or beyond U+10FFFF)", line_);
    }
    append_utf8(&out_, code);
  }

  std::string_view text_;
  int line_;
  size_t at_ = 0;
  std::string out_;
};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_lines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) data();
    add(Token::Kind::kEnd);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw Failure(message, line_); }

  bool looking_at(std::string_view text) const {
    return std::string_view(source_).substr(at_, text.size()) == text;
  }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }
  /// Moves on, counting lines.
  void skip(size_t count) {
    line_ +=
        static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                    source_.begin() + static_cast<ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
  }
  void skip_space() {
    const std::string_view rest = std::string_view(source_).substr(at_);
    skip(rest.size() - strip_space(rest, Side::kLeft).size());
  }

  void add(Token::Kind kind, std::string text = {}, Value number = {}) {
    tokens_.push_back({kind, line_, std::move(text), std::move(number)});
  }

  size_t find_tag() const {
    for (size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' &&
          (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#')) {
        return i;
      }
    }
    return std::string::npos;
  }

  // Text up to `end`, where a tag with this sign starts; strips what the sign asks for.
  void add_data(size_t end, char sign, bool may_strip_indent) {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (sign == '-') {
      text = strip_space(text, Side::kRight);
    } else if (sign != '+' && may_strip_indent) {
      const size_t line_end = text.rfind('\n');
      const size_t indent = line_end == std::string_view::npos ? 0 : line_end + 1;
      if ((indent > 0 || line_starting_) && strip_space(text.substr(indent)).empty()) {
        text = text.substr(0, indent);
      }
    }
    if (!text.empty()) add(Token::Kind::kData, std::string(text));
    skip(end - at_);
  }

  char sign_at(size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
  }

  void data() {
    const size_t tag = find_tag();
    if (tag == std::string::npos) {
      add(Token::Kind::kData, source_.substr(at_));
      skip(source_.size() - at_);
      return;
    }
    const char type = source_[tag + 1];
    const char sign = sign_at(tag + 2);
    add_data(tag, sign, type != '{');
    if (type == '%') {
      if (const std::optional<size_t> after = raw_begin(tag)) {
        skip(*after - at_);
        line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
        raw();
        return;
      }
    }
    const int begin_line = line_;
    skip(2 + (sign != '\0' ? 1 : 0));
    if (type == '#') {
      comment();
    } else {
      tokens_.push_back(
          {type == '{' ? Token::Kind::kOutputBegin : Token::Kind::kBlockBegin, begin_line, {}, {}});
      tag_body(type == '{');
    }
  }

  // Where `{% raw %}` at `at` ends, if it is one.
  std::optional<size_t> raw_begin(size_t at) const {
    size_t i = at + 2;
    if (sign_at(i) != '\0') ++i;
    i = after_space(i);
    if (source_.compare(i, 3, "raw") != 0) return std::nullopt;
    i = after_space(i + 3);
    if (source_.compare(i, 2, "%}") == 0) return i + 2;
    if (source_.compare(i, 3, "-%}") == 0) return after_space(i + 3);
    return std::nullopt;
  }

  size_t after_space(size_t at) const {
    if (at > source_.size()) return source_.size();
    const std::string_view rest = std::string_view(source_).substr(at);
    return at + rest.size() - strip_space(rest, Side::kLeft).size();
  }

  void raw() {
    for (size_t i = source_.find("{%", at_); i != std::string::npos;
         i = source_.find("{%", i + 1)) {
      const char sign = sign_at(i + 2);
      size_t end = after_space(i + 2 + (sign != '\0' ? 1 : 0));
      if (source_.compare(end, 6, "endraw") != 0) continue;
      end = after_space(end + 6);
      const char close = sign_at(end);
      if (close != '\0') ++end;
      if (source_.compare(end, 2, "%}") != 0) continue;
      add_data(i, sign, true);
      skip(end + 2 - at_);
      after_tag(close);
      return;
    }
    fail("Missing end of raw directive");
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail("Missing end of comment tag");
    const char close = end > at_ ? sign_at(end - 1) : '\0';
    skip(end + 2 - at_);
    after_tag(close);
  }

  // After the end of a block or a comment: '-' eats white space, else one line end goes.
  void after_tag(char sign) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && peek() == '\n') {
      skip(1);
    }
    line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  bool tag_end(bool output) {
    if (!open_.empty()) return false;
    const std::string_view close = output ? "}}" : "%}";
    char sign = '\0';
    if (!looking_at(close)) {
      sign = peek();
      if (sign != '-' && (output || sign != '+')) return false;
      if (std::string_view(source_).substr(at_ + 1, 2) != close) return false;
    }
    add(output ? Token::Kind::kOutputEnd : Token::Kind::kBlockEnd);
    skip(2 + (sign != '\0' ? 1 : 0));
    if (output && sign == '\0') {
      line_starting_ = false;
    } else {
      after_tag(sign);
    }
    return true;
  }

  void tag_body(bool output) {
    open_.clear();
    while (at_ < source_.size()) {
      skip_space();
      if (at_ >= source_.size() || tag_end(output)) return;
      if (!number() && !name() && !string() && !operation()) {
        size_t offset = at_;
        next_utf8(source_, &offset);
        fail(cat("unexpected char '", source_.substr(at_, offset - at_), "' at ",
                 count_code_points(std::string_view(source_).substr(0, at_))));
      }
    }
  }

  // The end of digits with single underscores between them, from `at`; `at` when there are none.
  size_t digits_end(size_t at, int base) const {
    size_t end = at;
    while (end < source_.size() && is_digit_of(source_[end], base)) {
      ++end;
      if (end + 1 < source_.size() && source_[end] == '_' && is_digit_of(source_[end + 1], base)) {
        ++end;
      }
    }
    return end;
  }

  bool number() {
    if (peek() < '0' || peek() > '9') return false;
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    size_t end = digits_end(at_, 10);
    bool is_float = false;
    if (!after_dot) {
      if (end < source_.size() && source_[end] == '.' && digits_end(end + 1, 10) > end + 1) {
        end = digits_end(end + 1, 10);
        is_float = true;
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        size_t exponent = end + 1;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
          ++exponent;
        }
        if (digits_end(exponent, 10) > exponent) {
          end = digits_end(exponent, 10);
          is_float = true;
        }
      }
    }
    if (is_float) {
      add_float(end);
    } else {
      add_integer();
    }
    return true;
  }

  std::string without_underscores(size_t begin, size_t end) const {
    std::string digits = source_.substr(begin, end - begin);
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    return digits;
  }

  void add_float(size_t end) {
    const std::string digits = without_underscores(at_, end);
    double value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (result.ec != std::errc()) fail(cat("the number ", digits, " cannot be represented"));
    add(Token::Kind::kFloat, digits, Value::real(value));
    skip(end - at_);
  }

  void add_integer() {
    int base = 10;
    size_t begin = at_;
    if (peek() == '0') {
      const char letter = static_cast<char>(peek(1) | 0x20);
      const int asked = letter == 'b' ? 2 : letter == 'o' ? 8 : letter == 'x' ? 16 : 10;
      const size_t from = at_ + 2 + (peek(2) == '_' ? 1 : 0);
      if (asked != 10 && digits_end(from, asked) > from) {
        base = asked;
        begin = from;
      }
    }
    size_t end = digits_end(begin, base);
    if (base == 10 && peek() == '0') {  // 0, 00, 0_0, but 012 is 0 and then 12
      end = begin + 1;
      while (end < source_.size() &&
             (source_[end] == '0' ||
              (source_[end] == '_' && end + 1 < source_.size() && source_[end + 1] == '0'))) {
        ++end;
      }
    }
    Int value = 0;
    for (const char c : without_underscores(begin, end)) {
      const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
      if (__builtin_mul_overflow(value, Int{base}, &value) ||
          __builtin_add_overflow(value, Int{digit}, &value)) {
        fail("an integer is larger than 127 bits");
      }
    }
    add(Token::Kind::kInteger, source_.substr(at_, end - at_), Value::integer(value));
    skip(end - at_);
  }

  bool name() {
    size_t end = at_;
    while (end < source_.size()) {
      size_t next = end;
      if (!is_word(next_utf8(source_, &next))) break;
      end = next;
    }
    if (end == at_) return false;
    size_t offset = at_;
    const char32_t first = next_utf8(source_, &offset);
    if (first != '_' && !is_alpha(first)) fail("Invalid character in identifier");
    add(Token::Kind::kName, source_.substr(at_, end - at_));
    skip(end - at_);
    return true;
  }

  bool string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return false;
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return false;
    const std::string_view body = std::string_view(source_).substr(at_ + 1, end - at_ - 1);
    add(Token::Kind::kString, Unescaper(body, line_).run());
    skip(end + 1 - at_);
    return true;
  }

  bool operation() {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kOne = "+-/*%~[](){}><=.:|,;";
    size_t size = 0;
    for (const std::string_view two : kTwo) {
      if (looking_at(two)) size = 2;
    }
    if (size == 0 && kOne.find(peek()) != std::string_view::npos) size = 1;
    if (size == 0) return false;
    const std::string text = source_.substr(at_, size);
    balance(text[0]);
    add(Token::Kind::kOperator, text);
    skip(size);
    return true;
  }

  void balance(char c) {
    if (c == '(') open_.push_back(')');
    if (c == '[') open_.push_back(']');
    if (c == '{') open_.push_back('}');
    if (c != ')' && c != ']' && c != '}') return;
    if (open_.empty()) fail(cat("unexpected '", c, "'"));
    if (open_.back() != c) fail(cat("unexpected '", c, "', expected '", open_.back(), "'"));
    open_.pop_back();
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last tag ended with a line end
  std::string open_;           // closing brackets that are due
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

std::string describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kData:
      return "template data / text";
    case Token::Kind::kOutputBegin:
      return "begin of print statement";
    case Token::Kind::kOutputEnd:
      return "end of print statement";
    case Token::Kind::kBlockBegin:
      return "begin of statement block";
    case Token::Kind::kBlockEnd:
      return "end of statement block";
    case Token::Kind::kEnd:
      return "end of template";
    default:
      return token.text;
  }
}

}  // namespace galley::text::jinja
