// Character classes and normalization forms as Hugging Face's tokenizers library sees them.
//
// Its parts carry tables of different Unicode versions (punctuation of Unicode 8, combining marks
// and normalization of Unicode 9, letters and digits of Unicode 17). Ids must be equal bit by bit,
// so the differences to utf8proc are tables here. The only home of utf8proc. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace galley::text::internal {

/// Unicode White_Space.
bool is_white_space(char32_t c);
/// Nd, Nl, No.
bool is_numeric(char32_t c);
/// `\w` of Rust's regex crate: letters, marks, digits, connectors, joiners.
bool is_word(char32_t c);
/// ASCII punctuation and symbols, or category P*.
bool is_punctuation(char32_t c);
/// Category M*.
bool is_combining_mark(char32_t c);
/// Category Mn, as BERT's normalizer knows it.
bool is_nonspacing_mark(char32_t c);
/// CJK ideographs as BERT's normalizer lists them.
bool is_cjk_ideograph(char32_t c);
/// Control, format and private use (Cc, Cf, Co) but tab and line ends.
bool is_control(char32_t c);
/// Full lower case of one character: one code point, or two for U+0130.
void append_lower(char32_t c, std::u32string* out);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

/// One character of a transformed text: what became of the characters of the old text.
/// `delta` 0: it replaces the next old character; > 0: it is new; -n: it replaces one and swallows
/// the n after it.
struct Change {
  char32_t c;
  int delta;
};

/// The characters of `text` in the given form, in order, with their changes.
std::vector<Change> normalize(std::string_view text, NormalForm form);
/// Bytes [begin, end) of a text.
struct ByteRange {
  size_t begin;
  size_t end;
};
/// The next stretch from `start` on that `form` may change, as a quick look at the bytes shows; it
/// can be normalized on its own. Empty, at the text's end, when there is none.
ByteRange next_doubtful_stretch(std::string_view text, size_t start, NormalForm form);

}  // namespace galley::text::internal
