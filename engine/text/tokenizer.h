// Tokenizer: a model's tokenizer.json, read into text -> token ids and ids -> text, bit-equal with
// Hugging Face's tokenizers library; StreamDecoder: the same text, handed out as tokens arrive.
//
// The file is interpreted as it stands: normalizer, pre-tokenizer, model, post-processor, decoder
// and added tokens. A part that this version does not know is refused by name at load, never
// guessed. `truncation` and `padding` sections are ignored: callers cut and pack themselves.
//
// A Tokenizer is an immutable value behind a shared pointer: copies are cheap and all const methods
// may be called from several threads at once. A StreamDecoder belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace galley::text {

struct EncodeOptions {
  /// Run the post-processor, which adds begin and end tokens where the file says so.
  bool add_special_tokens = true;
  /// Added tokens marked special are ordinary text (`encode_special_tokens` of the library); added
  /// tokens that are not marked special are still taken whole.
  bool special_as_text = false;
  /// Sorted byte offsets in the text: an added token marked special whose occurrence strictly spans
  /// such an offset (begin < offset < end) is ordinary text there. This is how special-token
  /// strings inside chat messages stay text while those that the template writes are special.
  std::span<const size_t> text_breaks;
};

struct Encoding {
  std::vector<int32_t> ids;
  /// Bytes [begin, end) of the original text for each id; 0, 0 for tokens that the post-processor
  /// added. Tokens that are parts of one character all span the whole character.
  std::vector<size_t> begin;
  std::vector<size_t> end;
};

enum class SkipSpecial { kNo, kYes };

namespace internal {
class TokenizerParts;
}

class Tokenizer {
 public:
  /// Reads `path`: a tokenizer.json, or a folder that holds one. Errors: kMissingPath (no such
  /// file), kBadTokenizer (broken; says where), kUnsupported (well formed, but a part is not known
  /// here).
  static Tokenizer load(const std::string& path);
  /// The same from the text of a tokenizer.json; `where` names it in errors.
  static Tokenizer parse(std::string_view json, const std::string& where);

  /// Error(kBadData) when `text` is not well-formed UTF-8.
  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// The text of `ids`; kYes leaves added tokens marked special out. Ids outside of the vocabulary
  /// give nothing, as in the library (embeddings may be longer than the vocabulary).
  std::string decode(std::span<const int32_t> ids, SkipSpecial skip) const;

  std::optional<int32_t> token_to_id(std::string_view token) const;
  /// The token as the vocabulary spells it (an added token that is normalized: its normalized
  /// spelling); Error(kBadData) when no token has this id.
  const std::string& id_to_token(int32_t id) const;
  /// True for added tokens marked special.
  bool is_special(int32_t id) const;
  /// Highest id + 1, added tokens included. The model's embedding may have more rows.
  size_t vocabulary_size() const;
  /// Contents of all added tokens marked special, in the order of their ids.
  std::vector<std::string> special_token_strings() const;
  /// Fingerprint of the file: 32 hexadecimal digits.
  const std::string& hash() const;

  /// For StreamDecoder and tests of parts.
  const internal::TokenizerParts& parts() const { return *parts_; }

 private:
  explicit Tokenizer(std::shared_ptr<const internal::TokenizerParts> parts);
  // Shared: copies of a tokenizer are handed to workers, requests and decoders.
  std::shared_ptr<const internal::TokenizerParts> parts_;
};

/// Text of a growing sequence of ids, special tokens kept. The pieces and the final flush() joined
/// equal decode() of all ids; a piece never changes text that was handed out before.
///
/// Byte-level tokenizers hold back at most the start of one character (3 bytes); ill-formed parts
/// become U+FFFD as soon as the next byte proves them ill-formed. Byte-fallback tokenizers hold
/// back a run of byte tokens until it ends.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&& other) noexcept;
  StreamDecoder& operator=(StreamDecoder&& other) noexcept;

  /// The text that became certain with this id, often empty.
  std::string push(int32_t id);
  /// What was held back; the decoder is as new afterwards.
  std::string flush();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace galley::text
