#include <algorithm>
#include <unordered_set>
#include <vector>

#include "engine/core/strings.h"
#include "engine/text/dataset_line.h"

namespace galley::text {
namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A JSON reader that builds nothing: it finds the first fault and says what it is.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::optional<LineFault> run() {
    while (!syntax_) {
      skip_blanks();
      if (state_ == State::kEnd) {
        if (at_ < text_.size()) fail("text goes on after the end of the value");
        break;
      }
      if (at_ == text_.size()) {
        fail(
            "the text ends before the value does; a row is one line, or an item of one JSON array");
        break;
      }
      step();
    }
    if (syntax_) return syntax_;
    if (too_deep_) return too_deep_;
    if (duplicate_) return duplicate_;
    return unicode_;
  }

 private:
  enum class State { kValue, kFirstItem, kFirstKey, kKey, kColon, kAfterValue, kEnd };

  void skip_blanks() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) {
      ++at_;
    }
  }
  void fail(std::string why) { fail_at(at_, std::move(why)); }
  void fail_at(size_t offset, std::string why) {
    if (!syntax_) syntax_ = LineFault{FaultKind::kJsonSyntax, offset, std::move(why)};
  }

  void step() {
    const char c = text_[at_];
    switch (state_) {
      case State::kFirstItem:
        if (c == ']') return close('[');
        return value(c);
      case State::kValue:
        return value(c);
      case State::kFirstKey:
        if (c == '}') return close('{');
        return key(c);
      case State::kKey:
        return key(c);
      case State::kColon:
        if (c != ':') return fail("a colon is expected after the key");
        ++at_;
        state_ = State::kValue;
        return;
      case State::kAfterValue:
        return after_value(c);
      case State::kEnd:
        return;
    }
  }

  void after_value(char c) {
    const bool in_object = open_.back() == '{';
    if (c == ',') {
      ++at_;
      state_ = in_object ? State::kKey : State::kValue;
    } else if (c == '}' || c == ']') {
      close(c == '}' ? '{' : '[');
    } else {
      fail(in_object ? "a comma or } is expected here" : "a comma or ] is expected here");
    }
  }

  void open(char bracket) {
    if (open_.size() >= kMaxRowDepth && !too_deep_) {
      too_deep_ =
          LineFault{FaultKind::kTooDeep, at_, cat("nested deeper than ", kMaxRowDepth, " levels")};
    }
    open_.push_back(bracket);
    // Beyond the bound the row is refused anyway, and keys would cost memory without end.
    if (bracket == '{' && open_.size() <= kMaxRowDepth) keys_.emplace_back();
    ++at_;
    state_ = bracket == '{' ? State::kFirstKey : State::kFirstItem;
  }

  void close(char bracket) {
    if (open_.back() != bracket) return fail("this bracket closes nothing that is open");
    if (bracket == '{' && open_.size() <= kMaxRowDepth) keys_.pop_back();
    open_.pop_back();
    ++at_;
    value_done();
  }

  void value_done() { state_ = open_.empty() ? State::kEnd : State::kAfterValue; }

  void key(char c) {
    if (c == '}') return fail("a comma before the closing bracket");
    if (c != '"') return fail("a key in double quotes is expected here");
    const size_t begin = at_;
    std::string decoded;
    if (!string(&decoded)) return;
    const bool tracked = open_.size() <= kMaxRowDepth;
    if (tracked && !keys_.back().insert(std::move(decoded)).second && !duplicate_) {
      duplicate_ =
          LineFault{FaultKind::kDuplicateKey, begin, "this key occurs twice in one object"};
    }
    state_ = State::kColon;
  }

  void value(char c) {
    if (c == '{' || c == '[') return open(c);
    if (c == '"') {
      if (string(nullptr)) value_done();
      return;
    }
    if (c == '-' || is_digit(c)) {
      if (number()) value_done();
      return;
    }
    for (const std::string_view word : {"true", "false", "null"}) {
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return value_done();
      }
    }
    if (c == ']' || c == '}') return fail("a comma before the closing bracket");
    if (c == '\'') return fail("strings take double quotes");
    if (c == 'N' || c == 'I') return fail("NaN, Infinity and None are not JSON");
    if (c == 'T' || c == 'F') return fail("JSON writes true and false in lower case");
    fail("a JSON value is expected here");
  }

  bool number() {
    const size_t begin = at_;
    if (text_[at_] == '-') ++at_;
    const auto digits = [&] {
      const size_t first = at_;
      while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
      return at_ - first;
    };
    const size_t first = at_;
    const size_t whole = digits();
    if (whole == 0) {
      fail_at(begin, "NaN, Infinity and a bare sign are not JSON numbers");
      return false;
    }
    if (whole > 1 && text_[first] == '0') {
      fail_at(begin, "a number may not begin with 0");
      return false;
    }
    if (at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      if (digits() == 0) fail("digits are expected after the decimal point");
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
      if (digits() == 0) fail("digits are expected in the exponent");
    }
    return !syntax_;
  }

  // Reads the string at `at_`; appends its value to `decoded` when given.
  bool string(std::string* decoded) {
    ++at_;
    while (true) {
      if (at_ == text_.size()) {
        fail("a string is not closed");
        return false;
      }
      const auto byte = static_cast<unsigned char>(text_[at_]);
      if (byte == '"') {
        ++at_;
        return true;
      }
      if (byte == '\\') {
        if (!escape(decoded)) return false;
        continue;
      }
      if (byte < 0x20) {
        fail(byte == '\t' ? "a raw tab inside a string; write \\t"
             : byte == '\n'
                 ? "a raw line end inside a string; write \\n"
                 : cat("a raw control character inside a string; write ", format("\\u%04x", byte)));
        return false;
      }
      if (decoded != nullptr) decoded->push_back(text_[at_]);
      ++at_;
    }
  }

  // \uXXXX at `at_`, which is moved behind it; -1 when it is not one.
  int unit() {
    if (text_.substr(at_, 2) != "\\u" || at_ + 6 > text_.size()) return -1;
    int code = 0;
    for (size_t i = at_ + 2; i < at_ + 6; ++i) {
      const int digit = hex_value(text_[i]);
      if (digit < 0) return -1;
      code = code * 16 + digit;
    }
    at_ += 6;
    return code;
  }

  bool escape(std::string* decoded) {
    const size_t begin = at_;
    const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    if (c == 'u') {
      const int high = unit();
      if (high < 0) {
        fail("\\u takes four hexadecimal digits");
        return false;
      }
      char32_t code = static_cast<char32_t>(high);
      if (high >= 0xD800 && high < 0xE000) {
        const size_t after = at_;
        const int low = high < 0xDC00 ? unit() : -1;
        if (low >= 0xDC00 && low < 0xE000) {
          code = 0x10000 + (static_cast<char32_t>(high - 0xD800) << 10) +
                 static_cast<char32_t>(low - 0xDC00);
        } else {
          at_ = after;
          code = 0xFFFD;
          if (!unicode_) {
            unicode_ = LineFault{FaultKind::kInvalidUnicode, begin,
                                 "an escaped surrogate without its partner"};
          }
        }
      }
      if (decoded != nullptr) append_utf8(decoded, code);
      return true;
    }
    constexpr std::string_view kEscapes = "\"\\/bfnrt";
    constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    const size_t index = c == '\0' ? std::string_view::npos : kEscapes.find(c);
    if (index == std::string_view::npos) {
      fail("this escape is not JSON; a backslash itself is written \\\\");
      return false;
    }
    if (decoded != nullptr) decoded->push_back(kValues[index]);
    at_ += 2;
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
  State state_ = State::kValue;
  std::vector<char> open_;
  std::vector<std::unordered_set<std::string>> keys_;  // of the open objects
  std::optional<LineFault> syntax_, too_deep_, duplicate_, unicode_;
};

}  // namespace

std::optional<LineFault> scan_json(std::string_view text) { return Scanner(text).run(); }

}  // namespace galley::text
