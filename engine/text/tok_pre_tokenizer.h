// Pre-tokenizers: cut a normalized text into the pieces that the model sees one by one.
//
// Each is immutable; split() is safe from several threads.
#pragma once

#include <memory>
#include <vector>

#include "engine/text/tok_json.h"
#include "engine/text/tok_text.h"

namespace galley::text::internal {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Cuts each of `pieces` (ranges of `text`, none empty) further; may rewrite the text.
  virtual void split(AlignedText* text, std::vector<ByteRange>* pieces) const = 0;
};

/// A text's whole way into pieces.
struct PreTokenizerChain {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  /// The chain ends in ByteLevel and leaves the pieces as raw bytes: the model must look them up as
  /// bytes instead of characters of the byte alphabet, which saves the detour.
  bool ends_in_raw_bytes = false;

  void split(AlignedText* text, std::vector<ByteRange>* pieces) const {
    for (const auto& step : steps) step->split(text, pieces);
  }
};

enum class LastByteLevel { kMapped, kRaw };

/// Reads a pre-tokenizer (null: none, one piece). kRaw asks for raw bytes where the chain ends in
/// ByteLevel. kUnsupported with its name for types this version does not know.
PreTokenizerChain read_pre_tokenizer(const JsonField* field, LastByteLevel last);

}  // namespace galley::text::internal
