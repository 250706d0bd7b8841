// Regex: patterns of tokenizer.json, written for Oniguruma, run by PCRE2 with equal results.
//
// A pattern is translated: `\s`, `\w`, `\d`, `\h`, `\v`, `\b` and properties get Oniguruma's
// meaning and its Unicode version. What cannot be translated faithfully is refused by name. The
// only home of PCRE2. Immutable after construction; matching is safe from several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tok_unicode.h"

namespace galley::text::internal {

class Regex {
 public:
  /// `where` names the pattern in errors. kUnsupported for constructs that differ between the two
  /// engines, kBadTokenizer for a pattern that is no regular expression.
  Regex(std::string_view pattern, const std::string& where);
  ~Regex();
  Regex(Regex&& other) noexcept;
  Regex& operator=(Regex&& other) noexcept;

  /// Appends all matches in `text` from left to right to `out`. An empty match directly behind the
  /// match before it is skipped. Error(kBadData) when the pattern backtracks beyond its limit.
  void find_all(std::string_view text, std::vector<ByteRange>* out) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

/// What the Oniguruma pattern means in PCRE2's syntax; for tests of the translation.
struct RegexTranslation {
  std::string plain;     // exact while a text has none of the lead bytes below
  std::string extended;  // exact for every text, slower
  uint32_t lead_bytes =
      0;  // bit i: lead byte 0xE0 + i asks for `extended`; 4-byte characters always
};
RegexTranslation translate_regex(std::string_view pattern, const std::string& where);

}  // namespace galley::text::internal
