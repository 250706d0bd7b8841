// Normalizers: the first thing that happens to a text between added tokens.
//
// Each is immutable; apply() is safe from several threads.
#pragma once

#include <memory>

#include "engine/text/tok_json.h"
#include "engine/text/tok_text.h"

namespace galley::text::internal {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Changes the text in place; Error(kBadData) only when a pattern gives up.
  virtual void apply(AlignedText* text) const = 0;
};

/// Reads a normalizer; kUnsupported with its name for types this version does not know.
std::unique_ptr<Normalizer> read_normalizer(const JsonField& field);

/// A pattern of Replace and Split: a plain string or a regular expression.
class Pattern {
 public:
  /// Reads {"String": ...} or {"Regex": ...}.
  explicit Pattern(const JsonField& field);
  void find_all(std::string_view text, std::vector<ByteRange>* out) const;

 private:
  std::string string_;
  std::unique_ptr<Regex> regex_;  // null for a plain string
};

}  // namespace galley::text::internal
