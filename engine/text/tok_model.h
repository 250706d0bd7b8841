// Models: from a piece of text to token ids; and the vocabulary that they share.
//
// Immutable after construction; tokenize() is safe from several threads when each brings its own
// WordCache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tok_json.h"

namespace galley::text::internal {

/// Strings <-> ids. Ids may have gaps, no string and no id occurs twice.
class Vocabulary {
 public:
  /// Reads an object {"token": id}; broken() with the place of a bad entry.
  static Vocabulary read(const JsonField& field);
  Vocabulary() = default;

  /// `where` is for errors.
  void add(std::string text, int64_t id, const JsonField& where);
  /// The same for a text and an id that are known to be new and good.
  void add(std::string text, int64_t id);
  /// The id of `text`, or -1.
  int32_t find(std::string_view text) const;
  /// The string of `id`, or nullptr.
  const std::string* text(int32_t id) const;
  size_t size() const { return size_; }
  /// Highest id + 1.
  size_t id_limit() const { return texts_.size(); }

 private:
  struct Slot {
    int32_t id = -1;   // -1: free
    uint32_t tag = 0;  // bits of the hash, so that other texts are rarely compared
  };
  void grow();
  void insert(size_t id, uint64_t hash);

  std::vector<std::string> texts_;  // by id
  std::vector<bool> present_;       // by id
  std::vector<Slot> slots_;         // open addressing over hashes of texts
  size_t size_ = 0;
};

/// A token of a piece: bytes [begin, end) of the piece.
struct ModelToken {
  int32_t id;
  uint32_t begin;
  uint32_t end;
};

/// Remembers the tokens of words. Only speed depends on it. For one thread.
class WordCache {
 public:
  /// Tokens of `word` if they are known. The span is valid until the next put().
  const ModelToken* find(std::string_view word, size_t* count) const;
  void put(std::string_view word, const ModelToken* tokens, size_t count);

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t word_at = 0;
    uint16_t word_size = 0;  // 0: free
    uint16_t count = 0;
    uint32_t tokens_at = 0;
  };
  static constexpr size_t kSlots = size_t{1} << 15;
  static constexpr size_t kLongestWord = 64;

  std::vector<Slot> slots_;
  std::string words_;
  std::vector<ModelToken> tokens_;
  size_t used_ = 0;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const Vocabulary& vocabulary() const = 0;
  /// Appends the tokens of a piece that is not empty. `cache` may be null.
  virtual void tokenize(std::string_view piece, WordCache* cache,
                        std::vector<ModelToken>* out) const = 0;
  /// True when tokenize_bytes() gives for raw bytes what tokenize() gives for their spelling in the
  /// byte alphabet.
  virtual bool takes_raw_bytes() const { return false; }
  /// Appends the tokens of raw bytes; only where takes_raw_bytes().
  virtual void tokenize_bytes(std::string_view piece, WordCache* cache,
                              std::vector<ModelToken>* out) const {
    tokenize(piece, cache, out);
  }
};

/// Reads a model; kUnsupported with its name for types this version does not know.
std::unique_ptr<Model> read_model(const JsonField& field);
std::unique_ptr<Model> read_bpe(const JsonField& field);
std::unique_ptr<Model> read_word_piece(const JsonField& field);
std::unique_ptr<Model> read_word_level(const JsonField& field);
std::unique_ptr<Model> read_unigram(const JsonField& field);

}  // namespace galley::text::internal
