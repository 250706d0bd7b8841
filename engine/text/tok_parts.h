// TokenizerParts: the parts of one tokenizer, in the order in which a text passes them.
//
// Immutable after construction but for the pool of word caches, which is locked.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tok_added.h"
#include "engine/text/tok_decoder.h"
#include "engine/text/tok_model.h"
#include "engine/text/tok_normalizer.h"
#include "engine/text/tok_post_processor.h"
#include "engine/text/tok_pre_tokenizer.h"
#include "engine/text/tokenizer.h"

namespace galley::text::internal {

enum class WordCaching { kNo, kYes };

class TokenizerParts {
 public:
  /// `where` names the file in errors.
  TokenizerParts(std::string_view json, const std::string& where);

  Encoding encode(std::string_view text, const EncodeOptions& options, WordCaching caching) const;
  std::string decode(std::span<const int32_t> ids, SkipSpecial skip) const;

  /// The spelling of `id`, or nullptr.
  const std::string* spelling(int32_t id) const;
  std::optional<int32_t> find(std::string_view token) const;
  bool is_special(int32_t id) const;
  size_t id_limit() const;
  const AddedTokens& added() const { return added_; }
  const DecoderChain& decoder() const { return decoder_; }
  const std::string& hash() const { return hash_; }

 private:
  struct Work;

  void read(const JsonField& top);
  void encode_text(AlignedText* text, Work* work) const;
  void encode_stretch(AlignedText* text, Work* work) const;
  bool is_shown(const std::string* spelling, SkipSpecial skip) const;
  void push_added(const AlignedText& text, const Segment& segment, Work* work) const;
  std::unique_ptr<WordCache> borrow_cache() const;
  void give_cache_back(std::unique_ptr<WordCache> cache) const;

  std::unique_ptr<Normalizer> normalizer_;  // null: none
  PreTokenizerChain pre_tokenizer_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<PostProcessor> post_processor_;  // null: none
  DecoderChain decoder_;
  AddedTokens added_;
  std::string hash_;

  // Word caches that no encode() uses right now. Guarded by caches_mutex_.
  mutable std::mutex caches_mutex_;
  mutable std::vector<std::unique_ptr<WordCache>> caches_;
};

}  // namespace galley::text::internal
