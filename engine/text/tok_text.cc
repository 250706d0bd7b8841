#include "engine/text/tok_text.h"

#include <algorithm>
#include <array>
#include <optional>

#include "engine/core/error.h"

namespace galley::text::internal {
namespace {

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

}  // namespace

AlignedText::AlignedText(const AlignedText& parent, ByteRange stretch)
    : view_(parent.view_.substr(stretch.begin, stretch.end - stretch.begin)),
      is_original_(parent.is_original_),
      base_(parent.origin(stretch.begin).begin) {
  if (is_original_) return;
  const auto first = parent.origins_.begin();
  origins_.assign(first + static_cast<std::ptrdiff_t>(stretch.begin),
                  first + static_cast<std::ptrdiff_t>(stretch.end));
}

Origin AlignedText::origin(size_t offset) const {
  if (!is_original_) return origins_[offset];
  size_t begin = offset;
  while (begin > 0 && is_continuation(view_[begin])) --begin;
  size_t end = offset + 1;
  while (end < view_.size() && is_continuation(view_[end])) ++end;
  return {base_ + static_cast<uint32_t>(begin), base_ + static_cast<uint32_t>(end)};
}

void AlignedText::assign(std::string text, std::vector<Origin> origins) {
  owned_ = std::move(text);
  origins_ = std::move(origins);
  view_ = owned_;
  is_original_ = false;
}

// Writes the text that will replace an old one, from left to right.
class AlignedText::Writer {
 public:
  explicit Writer(const AlignedText& old) : old_(old) {
    text_.reserve(old.size());
    origins_.reserve(old.size());
  }

  void keep_until(size_t end) {
    text_.append(old_.view_.substr(at_, end - at_));
    for (; at_ < end; ++at_) origins_.push_back(old_.origin(at_));
  }
  void skip_until(size_t end) { at_ = end; }
  void skip_characters(size_t count) {
    for (; count > 0 && at_ < old_.size(); --count) next_utf8(old_.view_, &at_);
  }
  /// Origin of the byte before the place that is reached.
  Origin before() const { return at_ > 0 ? old_.origin(at_ - 1) : Origin{old_.base_, old_.base_}; }
  void add(std::string_view content, Origin from) {
    text_.append(content);
    origins_.insert(origins_.end(), content.size(), from);
  }
  void apply(const std::vector<Change>& changes) {
    for (const Change& change : changes) {
      Origin from = before();
      if (change.delta <= 0) {
        if (at_ < old_.size()) from = old_.origin(at_);
        skip_characters(1 + static_cast<size_t>(-change.delta));
      }
      append_utf8(&text_, change.c);
      origins_.resize(text_.size(), from);
    }
  }
  void commit_to(AlignedText* text) { text->assign(std::move(text_), std::move(origins_)); }

 private:
  const AlignedText& old_;
  size_t at_ = 0;  // in the old text
  std::string text_;
  std::vector<Origin> origins_;
};

void AlignedText::transform(const std::vector<Change>& changes, size_t removed_first) {
  Writer writer(*this);
  writer.skip_characters(removed_first);
  writer.apply(changes);
  writer.commit_to(this);
}

void AlignedText::replace(const std::vector<ByteRange>& matches, std::string_view content) {
  if (matches.empty()) return;
  Writer writer(*this);
  for (const ByteRange& match : matches) {
    writer.keep_until(match.begin);
    writer.skip_until(match.end);
    writer.add(content, writer.before());
  }
  writer.keep_until(size());
  writer.commit_to(this);
}

void AlignedText::normalize(NormalForm form) {
  std::optional<Writer> writer;  // once something has changed
  for (size_t at = 0; at < size();) {
    const ByteRange stretch = next_doubtful_stretch(view_, at, form);
    at = stretch.end;
    const std::string_view old = view_.substr(stretch.begin, stretch.end - stretch.begin);
    const std::vector<Change> changes = internal::normalize(old, form);
    size_t offset = 0;
    const bool same = std::all_of(changes.begin(), changes.end(), [&](const Change& change) {
      return change.delta == 0 && offset < old.size() && next_utf8(old, &offset) == change.c;
    });
    if (same && offset == old.size()) continue;
    if (!writer) writer.emplace(*this);
    writer->keep_until(stretch.begin);
    writer->apply(changes);
    writer->skip_until(stretch.end);
  }
  if (!writer) return;
  writer->keep_until(size());
  writer->commit_to(this);
}

void AlignedText::prepend(std::string_view prefix) {
  if (view_.empty()) return;
  std::vector<Origin> origins(prefix.size(), origin(0));
  origins.reserve(prefix.size() + view_.size());
  for (size_t i = 0; i < view_.size(); ++i) origins.push_back(origin(i));
  std::string text(prefix);
  text.append(view_);
  assign(std::move(text), std::move(origins));
}

namespace {

struct Part {
  ByteRange range;
  bool is_match;
};

std::vector<Part> cover(size_t size, const std::vector<ByteRange>& matches, Invert invert) {
  std::vector<Part> parts;
  parts.reserve(matches.size() * 2 + 1);
  const bool match = invert == Invert::kNo;
  size_t at = 0;
  for (const ByteRange& range : matches) {
    if (at != range.begin) parts.push_back({{at, range.begin}, !match});
    parts.push_back({range, match});
    at = range.end;
  }
  if (at != size) parts.push_back({{at, size}, !match});
  return parts;
}

// Neighbours melt as the library's folds do: `joins` looks at this part's and the last part's kind.
template <typename Joins>
std::vector<ByteRange> fold(const std::vector<Part>& parts, Joins joins) {
  std::vector<ByteRange> out;
  bool last_is_match = false;
  for (const Part& part : parts) {
    if (joins(part.is_match, last_is_match) && !out.empty()) {
      out.back().begin = std::min(out.back().begin, part.range.begin);
      out.back().end = std::max(out.back().end, part.range.end);
    } else {
      out.push_back(part.range);
    }
    last_is_match = part.is_match;
  }
  return out;
}

void append_parts(const std::vector<ByteRange>& parts, size_t shift, std::vector<ByteRange>* out) {
  for (const ByteRange& part : parts) {
    if (part.begin < part.end) out->push_back({part.begin + shift, part.end + shift});
  }
}

}  // namespace

void split_at_matches(size_t size, const std::vector<ByteRange>& matches, SplitBehavior behavior,
                      Invert invert, size_t shift, std::vector<ByteRange>* out) {
  if (behavior == SplitBehavior::kIsolated) {
    size_t at = 0;
    for (const ByteRange& match : matches) {
      if (at < match.begin) out->push_back({at + shift, match.begin + shift});
      if (match.begin < match.end) out->push_back({match.begin + shift, match.end + shift});
      at = match.end;
    }
    if (at < size) out->push_back({at + shift, size + shift});
    return;
  }
  std::vector<Part> parts = cover(size, matches, invert);
  switch (behavior) {
    case SplitBehavior::kIsolated:
      break;
    case SplitBehavior::kRemoved:
      for (const Part& part : parts) {
        if (!part.is_match) append_parts({part.range}, shift, out);
      }
      break;
    case SplitBehavior::kContiguous:
      append_parts(fold(parts, [](bool is_match, bool last) { return is_match == last; }), shift,
                   out);
      break;
    case SplitBehavior::kMergedWithPrevious:
      append_parts(fold(parts, [](bool is_match, bool last) { return is_match && !last; }), shift,
                   out);
      break;
    case SplitBehavior::kMergedWithNext: {
      std::reverse(parts.begin(), parts.end());
      std::vector<ByteRange> ranges =
          fold(parts, [](bool is_match, bool last) { return is_match && !last; });
      std::reverse(ranges.begin(), ranges.end());
      append_parts(ranges, shift, out);
      break;
    }
  }
}

void find_string(std::string_view text, std::string_view needle, std::vector<ByteRange>* out) {
  GALLEY_CHECK(!needle.empty());
  for (size_t at = text.find(needle); at != std::string_view::npos;
       at = text.find(needle, at + needle.size())) {
    out->push_back({at, at + needle.size()});
  }
}

namespace {

// Printable Latin-1 characters stand for themselves, the other bytes for U+0100 and up, in order.
struct ByteAlphabet {
  std::array<char32_t, 256> of_byte{};
  std::array<int, 0x144> of_character{};

  constexpr ByteAlphabet() {
    for (int& byte : of_character) byte = -1;
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      const char32_t c = printable ? static_cast<char32_t>(byte) : next++;
      of_byte[static_cast<size_t>(byte)] = c;
      of_character[c] = byte;
    }
  }
};
constexpr ByteAlphabet kByteAlphabet;

}  // namespace

char32_t byte_to_alphabet(unsigned char byte) { return kByteAlphabet.of_byte[byte]; }

int alphabet_to_byte(char32_t c) {
  return c < kByteAlphabet.of_character.size() ? kByteAlphabet.of_character[c] : -1;
}

}  // namespace galley::text::internal
