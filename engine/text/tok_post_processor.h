// Post-processors: trim the offsets of tokens and put special tokens around them.
//
// Each is immutable and safe from several threads.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "engine/text/tok_json.h"
#include "engine/text/tokenizer.h"

namespace galley::text::internal {

/// Tokens on their way out, with what the post-processors need to know of them.
struct Draft {
  std::string_view text;  // the original text
  Encoding encoding;
  /// Spellings of tokens, for trimming blanks; views into the vocabulary or the draft's texts.
  std::vector<std::string_view> spellings;
  size_t first = 0;  // index of the text's first token, behind those that were added
};

class PostProcessor {
 public:
  virtual ~PostProcessor() = default;
  /// True when it reads Draft::spellings.
  virtual bool needs_spellings() const { return false; }
  /// True when it can add tokens.
  virtual bool adds_tokens() const { return false; }
  /// `add_special_tokens` false: only offsets are touched.
  virtual void apply(Draft* draft, bool add_special_tokens) const = 0;
};

/// Reads a post-processor; kUnsupported with its name for types this version does not know.
std::unique_ptr<PostProcessor> read_post_processor(const JsonField& field);

}  // namespace galley::text::internal
