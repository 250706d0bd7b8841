// Decoders: from token spellings back to text.
//
// Each is immutable and safe from several threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tok_json.h"

namespace galley::text::internal {

/// How a decoder's text grows when tokens are added at the end.
enum class DecoderKind {
  kByteLevel,    // ByteLevel alone: bytes follow bytes
  kGrowing,      // text only grows, but for a trailing run of byte tokens
  kLastDiffers,  // as kGrowing, but the last token is decoded in a way of its own
  kAtEnd,        // later tokens may change earlier text
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  /// Changes the list of texts in place; the decoded text is all of them joined.
  virtual void apply(std::vector<std::string>* tokens) const = 0;
};

struct DecoderChain {
  std::vector<std::unique_ptr<Decoder>> steps;
  DecoderKind kind = DecoderKind::kGrowing;
  /// Joins the decoded texts: a blank when the file has no decoder.
  std::string_view between;

  std::string decode(std::vector<std::string> tokens) const;
};

/// Reads a decoder (null: none); kUnsupported with its name for types this version does not know.
DecoderChain read_decoder(const JsonField* field);

/// The byte that "<0x0A>" stands for, or -1.
int byte_of_fallback_token(std::string_view token);
/// Appends the bytes that a token of a byte-level vocabulary stands for: those of the byte
/// alphabet, or the token's own UTF-8 when any of its characters is outside of the alphabet.
void append_bytes_of_token(std::string_view token, std::string* out);
/// Appends `bytes` as UTF-8, with one U+FFFD for each maximal ill-formed part. Returns how many
/// bytes were used: all of them, or fewer when kKeep and the end may still become a character.
enum class OpenEnd { kKeep, kReplace };
size_t append_lossy(std::string_view bytes, OpenEnd open_end, std::string* out);

}  // namespace galley::text::internal
