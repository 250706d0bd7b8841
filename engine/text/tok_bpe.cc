// Byte pair encoding as Hugging Face's tokenizers library does it.
#include <algorithm>
#include <array>
#include <cstdio>
#include <queue>

#include "engine/core/strings.h"
#include "engine/text/tok_model.h"
#include "engine/text/tok_text.h"

namespace galley::text::internal {
namespace {

constexpr uint32_t kNoRank = UINT32_MAX;

struct Merge {
  uint32_t rank = kNoRank;
  int32_t id = -1;
};

// (left id, right id) -> merge; open addressing.
class MergeTable {
 public:
  explicit MergeTable(size_t count) {
    size_t slots = 16;
    while (slots < count * 2) slots *= 2;
    slots_.resize(slots);
    shift_ = 64 - __builtin_ctzll(slots);
  }
  // A pair that is listed again takes its later rank.
  void put(int32_t left, int32_t right, Merge merge) {
    Slot* slot = find(key(left, right));
    *slot = {key(left, right), merge};
  }
  const Merge& get(int32_t left, int32_t right) const { return find(key(left, right))->merge; }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };
  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  const Slot* find(uint64_t wanted) const {
    size_t at = wanted * 0x9E3779B97F4A7C15u >> shift_;
    while (slots_[at].key != wanted && slots_[at].key != kFree) at = (at + 1) & (slots_.size() - 1);
    return &slots_[at];
  }
  Slot* find(uint64_t wanted) {
    return const_cast<Slot*>(static_cast<const MergeTable*>(this)->find(wanted));
  }

  std::vector<Slot> slots_;
  int shift_;
};

// A part of a word while it is merged.
struct Symbol {
  int32_t id;
  uint32_t length;  // bytes of the piece; 0: melted into the one before
};

class Bpe final : public Model {
 public:
  explicit Bpe(const JsonField& field);

  const Vocabulary& vocabulary() const override { return vocabulary_; }
  bool takes_raw_bytes() const override { return takes_raw_bytes_; }

  void tokenize(std::string_view piece, WordCache* cache,
                std::vector<ModelToken>* out) const override {
    if (ignore_merges_) {
      if (const int32_t id = vocabulary_.find(piece); id >= 0) {
        out->push_back({id, 0, static_cast<uint32_t>(piece.size())});
        return;
      }
    }
    through_cache(piece, cache, out, [&](std::vector<Symbol>* word) { spell(piece, word); });
  }

  void tokenize_bytes(std::string_view piece, WordCache* cache,
                      std::vector<ModelToken>* out) const override {
    through_cache(piece, cache, out, [&](std::vector<Symbol>* word) {
      if (ignore_merges_) {
        if (const int32_t id = whole_word(piece); id >= 0) {
          word->push_back({id, static_cast<uint32_t>(piece.size())});
          return;
        }
      }
      for (const char byte : piece) {
        word->push_back({byte_ids_[static_cast<unsigned char>(byte)], 1});
      }
    });
  }

 private:
  template <typename Spell>
  void through_cache(std::string_view piece, WordCache* cache, std::vector<ModelToken>* out,
                     Spell spell_word) const {
    size_t count = 0;
    if (cache != nullptr) {
      if (const ModelToken* known = cache->find(piece, &count)) {
        out->insert(out->end(), known, known + count);
        return;
      }
    }
    const size_t first = out->size();
    std::vector<Symbol> word;
    word.reserve(piece.size());
    spell_word(&word);
    merge(&word);
    uint32_t at = 0;
    for (const Symbol& symbol : word) {
      if (symbol.length == 0) continue;
      out->push_back({symbol.id, at, at + symbol.length});
      at += symbol.length;
    }
    if (cache != nullptr) cache->put(piece, out->data() + first, out->size() - first);
  }

  int32_t whole_word(std::string_view bytes) const;
  void spell(std::string_view piece, std::vector<Symbol>* word) const;
  bool spell_as_bytes(std::string_view text, std::vector<Symbol>* word) const;
  void merge(std::vector<Symbol>* word) const {
    // Short words are quicker without a queue; the result is the same.
    constexpr size_t kShort = 48;
    if (word->size() <= kShort) {
      merge_short(word);
    } else {
      merge_long(word);
    }
  }
  void merge_short(std::vector<Symbol>* word) const;
  void merge_long(std::vector<Symbol>* word) const;
  void read_merges(const JsonField& field);

  Vocabulary vocabulary_;
  std::unique_ptr<MergeTable> merges_;
  std::string prefix_;  // continuing_subword_prefix
  std::string suffix_;  // end_of_word_suffix
  int32_t unknown_ = -1;
  bool fuse_unknown_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool takes_raw_bytes_ = false;
  std::array<int32_t, 256> byte_ids_{};      // of the byte alphabet's characters
  std::array<int32_t, 256> fallback_ids_{};  // of "<0x00>" and so on
};

Bpe::Bpe(const JsonField& field) : vocabulary_(Vocabulary::read(field.at("vocab"))) {
  if (field.has("dropout") && field.at("dropout").number() != 0) {
    field.at("dropout").unsupported("dropout makes ids random; it must be null or 0");
  }
  prefix_ = field.string_or("continuing_subword_prefix", "");
  suffix_ = field.string_or("end_of_word_suffix", "");
  fuse_unknown_ = field.boolean_or("fuse_unk", false);
  byte_fallback_ = field.boolean_or("byte_fallback", false);
  ignore_merges_ = field.boolean_or("ignore_merges", false);
  read_merges(field.at("merges"));

  takes_raw_bytes_ = prefix_.empty() && suffix_.empty() && vocabulary_.size() >= 256;
  for (size_t byte = 0; byte < 256; ++byte) {
    std::string spelling;
    append_utf8(&spelling, byte_to_alphabet(static_cast<unsigned char>(byte)));
    byte_ids_[byte] = vocabulary_.find(spelling);
    takes_raw_bytes_ = takes_raw_bytes_ && byte_ids_[byte] >= 0;
    char fallback[8];
    std::snprintf(fallback, sizeof(fallback), "<0x%02X>", static_cast<unsigned>(byte));
    fallback_ids_[byte] = vocabulary_.find(fallback);
  }
  if (const std::string unknown = field.string_or("unk_token", ""); !unknown.empty()) {
    unknown_ = vocabulary_.find(unknown);
    if (unknown_ < 0 && !takes_raw_bytes_) {
      field.at("unk_token").broken("the token \"" + unknown + "\" is not in the vocabulary");
    }
  }
}

void Bpe::read_merges(const JsonField& field) {
  if (!field.json().is_array()) {
    field.broken(cat("must be a list, not ", field.json().kind_name()));
  }
  const Json::Array& list = field.json().as_array();
  merges_ = std::make_unique<MergeTable>(list.size());
  uint32_t rank = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto broken = [&](const std::string& message) {
      field.broken(cat("entry ", i, " ", message));
    };
    std::string_view left;
    std::string_view right;
    if (list[i].is_string()) {
      const std::string& line = list[i].as_string();
      if (line.starts_with("#version")) continue;
      const size_t blank = line.find(' ');
      if (blank == std::string::npos || line.find(' ', blank + 1) != std::string::npos) {
        broken("\"" + line + "\" must be two tokens with one blank between them");
      }
      left = std::string_view(line).substr(0, blank);
      right = std::string_view(line).substr(blank + 1);
    } else if (list[i].is_array() && list[i].as_array().size() == 2 &&
               list[i].as_array()[0].is_string() && list[i].as_array()[1].is_string()) {
      left = list[i].as_array()[0].as_string();
      right = list[i].as_array()[1].as_string();
    } else {
      broken("must be a string \"a b\" or a list of two strings");
    }
    if (right.size() < prefix_.size()) broken("is shorter than continuing_subword_prefix");
    const std::string together = cat(left, right.substr(prefix_.size()));
    int32_t ids[3];
    const std::string_view tokens[3] = {left, right, together};
    for (int k = 0; k < 3; ++k) {
      ids[k] = vocabulary_.find(tokens[k]);
      if (ids[k] < 0)
        broken(cat("needs the token \"", tokens[k], "\", which is not in the vocabulary"));
    }
    merges_->put(ids[0], ids[1], {rank++, ids[2]});
  }
}

int32_t Bpe::whole_word(std::string_view bytes) const {
  std::string spelling;
  for (const char byte : bytes) {
    append_utf8(&spelling, byte_to_alphabet(static_cast<unsigned char>(byte)));
  }
  return vocabulary_.find(spelling);
}

bool Bpe::spell_as_bytes(std::string_view text, std::vector<Symbol>* word) const {
  for (const char byte : text) {
    if (fallback_ids_[static_cast<unsigned char>(byte)] < 0) return false;
  }
  for (const char byte : text)
    word->push_back({fallback_ids_[static_cast<unsigned char>(byte)], 1});
  return true;
}

void Bpe::spell(std::string_view piece, std::vector<Symbol>* word) const {
  // Unknown characters wait here until a known one comes. Byte tokens are written past them, in the
  // order of the library.
  uint32_t waiting = 0;
  const auto settle = [&] {
    if (waiting > 0) word->push_back({unknown_, waiting});
    waiting = 0;
  };
  std::string affixed;
  for (size_t offset = 0; offset < piece.size();) {
    const size_t begin = offset;
    next_utf8(piece, &offset);
    std::string_view text = piece.substr(begin, offset - begin);
    const uint32_t length = static_cast<uint32_t>(text.size());
    const bool needs_prefix = begin > 0 && !prefix_.empty();
    const bool needs_suffix = offset == piece.size() && !suffix_.empty();
    if (needs_prefix || needs_suffix) {
      affixed = cat(needs_prefix ? prefix_ : "", text, needs_suffix ? suffix_ : "");
      text = affixed;
    }
    if (const int32_t id = vocabulary_.find(text); id >= 0) {
      settle();
      word->push_back({id, length});
    } else if (byte_fallback_ && spell_as_bytes(text, word)) {
      continue;
    } else if (unknown_ >= 0) {
      if (!fuse_unknown_) settle();
      waiting += length;
    }
  }
  settle();
}

void Bpe::merge_short(std::vector<Symbol>* word) const {
  Merge merges[64];  // of symbol i with symbol i + 1
  std::vector<Symbol>& symbols = *word;
  size_t count = symbols.size();
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = merges_->get(symbols[i].id, symbols[i + 1].id);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == kNoRank) break;
    symbols[best] = {merges[best].id, symbols[best].length + symbols[best + 1].length};
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    --count;
    for (size_t i = best + 1; i + 1 < count; ++i) merges[i] = merges[i + 1];
    if (best > 0) merges[best - 1] = merges_->get(symbols[best - 1].id, symbols[best].id);
    if (best + 1 < count) merges[best] = merges_->get(symbols[best].id, symbols[best + 1].id);
  }
}

void Bpe::merge_long(std::vector<Symbol>* word) const {
  std::vector<Symbol>& symbols = *word;
  const size_t count = symbols.size();
  std::vector<size_t> before(count);
  std::vector<size_t> after(count);  // count: none
  for (size_t i = 0; i < count; ++i) {
    before[i] = i - 1;
    after[i] = i + 1;
  }
  struct Candidate {
    uint32_t rank;
    size_t at;
    int32_t id;
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  std::priority_queue<Candidate> queue;
  const auto consider = [&](size_t at) {
    const Merge& found = merges_->get(symbols[at].id, symbols[after[at]].id);
    if (found.rank != kNoRank) queue.push({found.rank, at, found.id});
  };
  for (size_t i = 0; i + 1 < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    const size_t next = after[top.at];
    if (symbols[top.at].length == 0 || next == count) continue;
    // The pair at this place may have changed since it was queued.
    if (merges_->get(symbols[top.at].id, symbols[next].id).id != top.id) continue;
    symbols[top.at] = {top.id, symbols[top.at].length + symbols[next].length};
    symbols[next].length = 0;
    after[top.at] = after[next];
    if (after[next] < count) before[after[next]] = top.at;
    if (top.at > 0) consider(before[top.at]);
    if (after[top.at] < count) consider(top.at);
  }
}

}  // namespace

std::unique_ptr<Model> read_bpe(const JsonField& field) { return std::make_unique<Bpe>(field); }

}  // namespace galley::text::internal
