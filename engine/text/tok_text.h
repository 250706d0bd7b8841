// AlignedText: a text on its way through normalizer and pre-tokenizer that remembers, for every
// byte, which bytes of the original text it came from; and the rules by which matches split a text.
//
// Follows NormalizedString of Hugging Face's tokenizers library: offsets of tokens, and the
// question whether a piece starts the text, depend on its bookkeeping. Values for one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/strings.h"
#include "engine/text/tok_regex.h"
#include "engine/text/tok_unicode.h"

namespace galley::text::internal {

/// Bytes [begin, end) of the original text.
struct Origin {
  uint32_t begin;
  uint32_t end;
};

class AlignedText {
 public:
  /// Borrows `original`, which starts at byte `base` of the whole text and outlives this value.
  AlignedText(std::string_view original, size_t base)
      : view_(original), base_(static_cast<uint32_t>(base)) {}
  /// A stretch of `parent`, which it borrows: `parent` outlives this value unchanged.
  AlignedText(const AlignedText& parent, ByteRange stretch);
  // The view may point into owned_, so a copy or move would dangle.
  AlignedText(const AlignedText&) = delete;
  AlignedText& operator=(const AlignedText&) = delete;

  std::string_view view() const { return view_; }
  size_t size() const { return view_.size(); }
  /// Origin of the byte at `offset`; all bytes of one character share it.
  Origin origin(size_t offset) const;
  /// Origin of the bytes [begin, end), begin < end.
  Origin origin(size_t begin, size_t end) const {
    return {origin(begin).begin, origin(end - 1).end};
  }

  /// Replaces the whole text. `removed_first`: characters dropped before the first change.
  void transform(const std::vector<Change>& changes, size_t removed_first);
  /// Brings the text into a Unicode normalization form; touches only stretches that need it.
  void normalize(NormalForm form);
  /// Puts `content` in place of every match; it inherits the origin of the match's last byte.
  void replace(const std::vector<ByteRange>& matches, std::string_view content);
  /// Puts `prefix` before a text that is not empty; it inherits the origin of the first character.
  void prepend(std::string_view prefix);
  /// The text and the origin of each of its bytes.
  void assign(std::string text, std::vector<Origin> origins);

 private:
  class Writer;

  std::string_view view_;
  std::string owned_;
  std::vector<Origin> origins_;  // one per byte; empty while the text is the original itself
  bool is_original_ = true;
  uint32_t base_;
};

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
enum class Invert { kNo, kYes };

/// Cuts a text of `size` bytes at its matches (sorted, disjoint) and appends the parts that remain,
/// none of them empty, each moved by `shift`. With kYes everything between the matches is the
/// match.
void split_at_matches(size_t size, const std::vector<ByteRange>& matches, SplitBehavior behavior,
                      Invert invert, size_t shift, std::vector<ByteRange>* out);

/// Matches of every character that `wanted` accepts.
template <typename Predicate>
void find_characters(std::string_view text, Predicate wanted, std::vector<ByteRange>* out) {
  for (size_t offset = 0; offset < text.size();) {
    const size_t begin = offset;
    const unsigned char byte = static_cast<unsigned char>(text[offset]);
    char32_t c = byte;
    if (byte < 0x80) {
      ++offset;
    } else {
      c = next_utf8(text, &offset);
    }
    if (wanted(c)) out->push_back({begin, offset});
  }
}

/// Matches of a string that is not empty, from left to right.
void find_string(std::string_view text, std::string_view needle, std::vector<ByteRange>* out);

/// The 256 characters that stand for bytes in byte-level vocabularies.
char32_t byte_to_alphabet(unsigned char byte);
/// The byte that `c` stands for, or -1.
int alphabet_to_byte(char32_t c);

}  // namespace galley::text::internal
