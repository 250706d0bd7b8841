#include "engine/text/tok_pre_tokenizer.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/text/tok_normalizer.h"

namespace galley::text::internal {
namespace {

// The pattern of GPT-2, which ByteLevel applies unless told otherwise.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Cuts every piece at the matches that `find` appends for it.
template <typename Find>
void split_pieces(const AlignedText& text, Find find, SplitBehavior behavior, Invert invert,
                  std::vector<ByteRange>* pieces) {
  std::vector<ByteRange> out;
  std::vector<ByteRange> matches;
  out.reserve(pieces->size());
  for (const ByteRange& piece : *pieces) {
    matches.clear();
    find(text.view().substr(piece.begin, piece.end - piece.begin), &matches);
    split_at_matches(piece.end - piece.begin, matches, behavior, invert, piece.begin, &out);
  }
  pieces->swap(out);
}

// Writes a new text out of the pieces of an old one.
class Rewriter {
 public:
  Rewriter(AlignedText* text, std::vector<ByteRange>* pieces) : text_(text), pieces_(pieces) {}

  void append(std::string_view added, Origin origin) {
    out_.append(added);
    origins_.insert(origins_.end(), added.size(), origin);
  }
  void append_character(char32_t c, Origin origin) {
    append_utf8(&out_, c);
    origins_.resize(out_.size(), origin);
  }
  void keep(size_t begin, size_t end) {
    out_.append(text_->view().substr(begin, end - begin));
    for (; begin < end; ++begin) origins_.push_back(text_->origin(begin));
  }
  void end_piece() {
    ranges_.push_back({start_, out_.size()});
    start_ = out_.size();
  }
  void commit() {
    text_->assign(std::move(out_), std::move(origins_));
    pieces_->swap(ranges_);
  }

 private:
  AlignedText* text_;
  std::vector<ByteRange>* pieces_;
  std::string out_;
  std::vector<Origin> origins_;
  std::vector<ByteRange> ranges_;
  size_t start_ = 0;
};

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex, LastByteLevel mapping)
      : add_prefix_space_(add_prefix_space), mapping_(mapping) {
    if (use_regex) regex_ = std::make_unique<Regex>(kGpt2Pattern, "the pattern of ByteLevel");
  }

  void split(AlignedText* text, std::vector<ByteRange>* pieces) const override {
    if (add_prefix_space_) add_blanks(text, pieces);
    if (regex_) {
      split_pieces(
          *text, [this](std::string_view piece, auto* out) { regex_->find_all(piece, out); },
          SplitBehavior::kIsolated, Invert::kNo, pieces);
    }
    if (mapping_ == LastByteLevel::kMapped) map_bytes(text, pieces);
  }

 private:
  static void add_blanks(AlignedText* text, std::vector<ByteRange>* pieces) {
    Rewriter rewriter(text, pieces);
    for (const ByteRange& piece : *pieces) {
      if (text->view()[piece.begin] != ' ') rewriter.append(" ", text->origin(piece.begin));
      rewriter.keep(piece.begin, piece.end);
      rewriter.end_piece();
    }
    rewriter.commit();
  }
  static void map_bytes(AlignedText* text, std::vector<ByteRange>* pieces) {
    Rewriter rewriter(text, pieces);
    for (const ByteRange& piece : *pieces) {
      for (size_t i = piece.begin; i < piece.end; ++i) {
        rewriter.append_character(byte_to_alphabet(static_cast<unsigned char>(text->view()[i])),
                                  text->origin(i));
      }
      rewriter.end_piece();
    }
    rewriter.commit();
  }

  bool add_prefix_space_;
  LastByteLevel mapping_;
  std::unique_ptr<Regex> regex_;
};

class Split final : public PreTokenizer {
 public:
  Split(Pattern pattern, SplitBehavior behavior, Invert invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void split(AlignedText* text, std::vector<ByteRange>* pieces) const override {
    split_pieces(
        *text, [this](std::string_view piece, auto* out) { pattern_.find_all(piece, out); },
        behavior_, invert_, pieces);
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  Invert invert_;
};

// Cuts at characters: Digits, Punctuation, WhitespaceSplit, CharDelimiterSplit.
class SplitAtCharacters final : public PreTokenizer {
 public:
  using Predicate = std::function<bool(char32_t)>;
  SplitAtCharacters(Predicate wanted, SplitBehavior behavior)
      : wanted_(std::move(wanted)), behavior_(behavior) {}
  void split(AlignedText* text, std::vector<ByteRange>* pieces) const override {
    split_pieces(
        *text, [this](std::string_view piece, auto* out) { find_characters(piece, wanted_, out); },
        behavior_, Invert::kNo, pieces);
  }

 private:
  Predicate wanted_;
  SplitBehavior behavior_;
};

// Runs of word characters, and runs of what is neither a word character nor blank.
class Whitespace final : public PreTokenizer {
 public:
  void split(AlignedText* text, std::vector<ByteRange>* pieces) const override {
    split_pieces(
        *text,
        [](std::string_view piece, std::vector<ByteRange>* out) {
          int last_kind = 0;
          for (size_t offset = 0; offset < piece.size();) {
            const size_t begin = offset;
            const char32_t c = next_utf8(piece, &offset);
            const int kind = is_word(c) ? 1 : is_white_space(c) ? 0 : 2;
            if (kind != 0 && kind == last_kind) {
              out->back().end = offset;
            } else if (kind != 0) {
              out->push_back({begin, offset});
            }
            last_kind = kind;
          }
        },
        SplitBehavior::kRemoved, Invert::kYes, pieces);
  }
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(size_t length) : length_(length) {}
  void split(AlignedText* text, std::vector<ByteRange>* pieces) const override {
    split_pieces(
        *text,
        [this](std::string_view piece, std::vector<ByteRange>* out) {
          size_t begin = 0;
          size_t count = 0;
          for (size_t offset = 0; offset < piece.size();) {
            next_utf8(piece, &offset);
            if (++count == length_ || offset == piece.size()) {
              out->push_back({begin, offset});
              begin = offset;
              count = 0;
            }
          }
        },
        SplitBehavior::kIsolated, Invert::kNo, pieces);
  }

 private:
  size_t length_;
};

enum class PrependScheme { kAlways, kFirst, kNever };

// Blanks become a visible character, which starts the pieces.
class Metaspace final : public PreTokenizer {
 public:
  Metaspace(char32_t replacement, PrependScheme scheme, bool cut) : scheme_(scheme), cut_(cut) {
    append_utf8(&replacement_, replacement);
  }

  void split(AlignedText* text, std::vector<ByteRange>* pieces) const override {
    Rewriter rewriter(text, pieces);
    for (const ByteRange& piece : *pieces) {
      const std::string_view view = text->view().substr(piece.begin, piece.end - piece.begin);
      const Origin first = text->origin(piece.begin);
      const bool prefix = scheme_ == PrependScheme::kAlways ||
                          (scheme_ == PrependScheme::kFirst && first.begin == 0);
      if (prefix && view[0] != ' ' && !view.starts_with(replacement_)) {
        rewriter.append(replacement_, first);
      }
      for (size_t i = 0; i < view.size(); ++i) {
        if (view[i] == ' ') {
          rewriter.append(replacement_, text->origin(piece.begin + i));
        } else {
          rewriter.keep(piece.begin + i, piece.begin + i + 1);
        }
      }
      rewriter.end_piece();
    }
    rewriter.commit();
    if (!cut_) return;
    split_pieces(
        *text, [this](std::string_view piece, auto* out) { find_string(piece, replacement_, out); },
        SplitBehavior::kMergedWithNext, Invert::kNo, pieces);
  }

 private:
  std::string replacement_;
  PrependScheme scheme_;
  bool cut_;
};

SplitBehavior read_behavior(const JsonField& field) {
  const std::string& name = field.string();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  field.unsupported("the behavior \"" + name + "\" is not supported by this version");
}

std::unique_ptr<PreTokenizer> read_metaspace(const JsonField& field) {
  const std::string scheme = field.string_or("prepend_scheme", "always");
  PrependScheme prepend = PrependScheme::kAlways;
  if (scheme == "first") {
    prepend = PrependScheme::kFirst;
  } else if (scheme == "never") {
    prepend = PrependScheme::kNever;
  } else if (scheme != "always") {
    field.at("prepend_scheme")
        .unsupported("the scheme \"" + scheme + "\" is not supported by this version");
  }
  if (!field.boolean_or("add_prefix_space", true) && prepend != PrependScheme::kNever) {
    field.broken("\"add_prefix_space\" is false, but \"prepend_scheme\" is not \"never\"");
  }
  return std::make_unique<Metaspace>(field.at("replacement").character(), prepend,
                                     field.boolean_or("split", true));
}

std::unique_ptr<PreTokenizer> read_step(const JsonField& field, LastByteLevel mapping) {
  const std::string& type = field.at("type").string();
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevel>(field.at("add_prefix_space").boolean(),
                                       field.boolean_or("use_regex", true), mapping);
  }
  if (type == "Split") {
    return std::make_unique<Split>(Pattern(field.at("pattern")),
                                   read_behavior(field.at("behavior")),
                                   field.at("invert").boolean() ? Invert::kYes : Invert::kNo);
  }
  if (type == "Digits") {
    return std::make_unique<SplitAtCharacters>(is_numeric, field.at("individual_digits").boolean()
                                                               ? SplitBehavior::kIsolated
                                                               : SplitBehavior::kContiguous);
  }
  if (type == "Punctuation") {
    return std::make_unique<SplitAtCharacters>(
        is_punctuation,
        field.has("behavior") ? read_behavior(field.at("behavior")) : SplitBehavior::kIsolated);
  }
  if (type == "WhitespaceSplit") {
    return std::make_unique<SplitAtCharacters>(is_white_space, SplitBehavior::kRemoved);
  }
  if (type == "CharDelimiterSplit") {
    const char32_t delimiter = field.at("delimiter").character();
    return std::make_unique<SplitAtCharacters>([delimiter](char32_t c) { return c == delimiter; },
                                               SplitBehavior::kRemoved);
  }
  if (type == "Whitespace") return std::make_unique<Whitespace>();
  if (type == "Metaspace") return read_metaspace(field);
  if (type == "FixedLength") {
    return std::make_unique<FixedLength>(
        static_cast<size_t>(field.at("length").integer(1, INT32_MAX)));
  }
  field.unsupported("the pre-tokenizer type \"" + type +
                    "\" is not supported by this version; supported: ByteLevel, Split, Digits, "
                    "Punctuation, Whitespace, WhitespaceSplit, Metaspace, CharDelimiterSplit, "
                    "BertPreTokenizer, FixedLength, Sequence");
}

void collect(const JsonField& field, std::vector<JsonField>* out) {
  const std::string& type = field.at("type").string();
  if (type != "Sequence") {
    out->push_back(field);
    return;
  }
  for (const JsonField& item : field.at("pretokenizers").items()) collect(item, out);
}

}  // namespace

PreTokenizerChain read_pre_tokenizer(const JsonField* field, LastByteLevel last) {
  PreTokenizerChain chain;
  if (field == nullptr) return chain;
  std::vector<JsonField> steps;
  collect(*field, &steps);
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string& type = steps[i].at("type").string();
    if (type == "BertPreTokenizer") {
      chain.steps.push_back(
          std::make_unique<SplitAtCharacters>(is_white_space, SplitBehavior::kRemoved));
      chain.steps.push_back(
          std::make_unique<SplitAtCharacters>(is_punctuation, SplitBehavior::kIsolated));
      continue;
    }
    const bool raw = i + 1 == steps.size() && type == "ByteLevel" && last == LastByteLevel::kRaw;
    chain.ends_in_raw_bytes = raw;
    chain.steps.push_back(read_step(steps[i], raw ? LastByteLevel::kRaw : LastByteLevel::kMapped));
  }
  return chain;
}

}  // namespace galley::text::internal
