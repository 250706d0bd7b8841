// Added tokens: strings that are taken whole out of a text before anything else looks at it.
//
// Immutable after construction; all methods are safe from several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/text/tok_json.h"
#include "engine/text/tok_text.h"

namespace galley::text::internal {

struct AddedToken {
  std::string content;
  /// What the decoder sees: the normalized content of a normalized token, else the content.
  std::string spelling;
  int32_t id = 0;
  bool single_word = false;  // only between characters that are no letters, digits or "_"
  bool lstrip = false;       // takes the white space on its left along
  bool rstrip = false;
  bool normalized = false;  // looked for in the normalized text, in its normalized spelling
  bool special = false;
};

/// Finds the longest of several strings that starts at a place.
class StringSet {
 public:
  /// Later duplicates and empty strings are ignored.
  void add(std::string_view text, size_t value);
  bool empty() const { return nodes_.size() == 1; }
  bool may_start(unsigned char byte) const { return starts_[byte]; }
  /// Calls `found(length, value)` for each string that `text` starts with, shortest first.
  template <typename Found>
  void for_each_prefix(std::string_view text, Found found) const {
    size_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node == 0) return;
      if (nodes_[node].value >= 0) found(i + 1, static_cast<size_t>(nodes_[node].value));
    }
  }

 private:
  struct Node {
    int64_t value = -1;
    std::vector<std::pair<unsigned char, uint32_t>> children;  // sorted by byte
  };
  size_t child(size_t node, unsigned char byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  bool starts_[256] = {};
};

/// What a search does with added tokens marked special.
struct SpecialRule {
  bool as_text = false;
  std::span<const size_t> breaks;  // see EncodeOptions::text_breaks
};

/// A stretch of a text: an added token, or text in between.
struct Segment {
  ByteRange range;
  const AddedToken* token = nullptr;  // null: text
  bool sealed = false;                // text in which no added token is looked for any more
};

class AddedTokens {
 public:
  AddedTokens() = default;
  /// Reads "added_tokens" (null when the file has none). `model_id` gives the model's id of a
  /// string, `model_size` its number of entries. The ids that the library would give out must be
  /// those of the file, otherwise kBadTokenizer.
  AddedTokens(const JsonField* field,
              const std::function<std::optional<int32_t>(std::string_view)>& model_id,
              size_t model_size);
  /// Builds the search structures; `normalize` gives a string's normalized form.
  void prepare(const std::function<std::string(const std::string&)>& normalize);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  const AddedToken* by_id(int32_t id) const;
  std::optional<int32_t> id_of(std::string_view content) const;
  /// Tokens are left out of decoded text by their spelling, as the library does it.
  bool is_special_spelling(const std::string& spelling) const {
    return special_contents_.contains(spelling);
  }

  /// Cuts the original text at the tokens that are not normalized.
  void split_original(const AlignedText& text, const SpecialRule& rule,
                      std::vector<Segment>* out) const {
    split(text, in_original_, rule, out);
  }
  /// Cuts a normalized stretch at the tokens that are normalized.
  void split_normalized(const AlignedText& text, const SpecialRule& rule,
                        std::vector<Segment>* out) const {
    split(text, in_normalized_, rule, out);
  }

 private:
  void split(const AlignedText& text, const StringSet& set, const SpecialRule& rule,
             std::vector<Segment>* out) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, size_t> by_content_;
  std::unordered_map<int32_t, size_t> by_id_;
  std::unordered_set<std::string> special_contents_;
  StringSet in_original_;
  StringSet in_normalized_;
};

}  // namespace galley::text::internal
