// Lexer: template source to tokens, with Jinja's rules for line ends and white space (trim_blocks
// and lstrip_blocks on, as for chat templates).
//
// A pure function; safe from any thread. Throws Failure with its line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja_value.h"

namespace galley::text::jinja {

struct Token {
  enum class Kind {
    kData,         // text outside of tags
    kOutputBegin,  // {{
    kOutputEnd,    // }}
    kBlockBegin,   // {%
    kBlockEnd,     // %}
    kName,
    kString,  // unescaped
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  int line = 1;
  std::string text;  // data, name, string, operator
  Value number;      // kInteger, kFloat
};

/// The tokens of `source` (well-formed UTF-8), with a kEnd at the end.
std::vector<Token> tokenize(std::string_view source);

/// As messages name it: "end of statement block", "name"...
std::string describe(const Token& token);

}  // namespace galley::text::jinja
