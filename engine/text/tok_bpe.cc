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

// (left id, right id) -> merge; open addressing. Most pairs that are asked for do not merge: for
// nearly all of them a few bits say so, which stay in the caches where the table does not.
class MergeTable {
 public:
  explicit MergeTable(size_t count) {
    size_t slots = 32;
    while (slots < count + count / 2) slots *= 2;
    slots_.resize(slots);
    pairs_.reserve(count);
    shift_ = 64 - __builtin_ctzll(slots);
    may_merge_.resize(slots / 16);  // four bits a slot
  }
  // A pair that is listed again takes its later rank.
  void put(int32_t left, int32_t right, Merge merge) {
    const uint64_t hash = hash_of(left, right);
    const size_t at = find(left, right, hash);
    may_merge_[hash >> (shift_ + 4)] |= bit_of(hash);
    if (slots_[at].index == kFree) {
      slots_[at] = {tag_of(hash), static_cast<uint32_t>(pairs_.size())};
      pairs_.push_back({left, right, merge});
    } else {
      pairs_[slots_[at].index].merge = merge;
    }
  }
  Merge get(int32_t left, int32_t right) const {
    const uint64_t hash = hash_of(left, right);
    if ((may_merge_[hash >> (shift_ + 4)] & bit_of(hash)) == 0) return {};
    const uint32_t index = slots_[find(left, right, hash)].index;
    return index == kFree ? Merge{} : pairs_[index].merge;
  }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  struct Slot {
    uint32_t tag = 0;  // bits of the hash
    uint32_t index = kFree;
  };
  struct Pair {
    int32_t left, right;
    Merge merge;
  };
  static uint64_t hash_of(int32_t left, int32_t right) {
    const uint64_t key =
        static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
    return key * 0x9E3779B97F4A7C15u;
  }
  static uint64_t bit_of(uint64_t hash) { return uint64_t{1} << (hash >> 10 & 63); }
  static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 16); }
  size_t find(int32_t left, int32_t right, uint64_t hash) const {
    size_t at = hash >> shift_;
    for (; slots_[at].index != kFree; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].tag != tag_of(hash)) continue;
      const Pair& pair = pairs_[slots_[at].index];
      if (pair.left == left && pair.right == right) break;
    }
    return at;
  }

  std::vector<uint64_t> may_merge_;
  std::vector<Slot> slots_;
  std::vector<Pair> pairs_;
  int shift_;
};

// A part of a word while it is merged.
struct Symbol {
  int32_t id;
  uint32_t length;  // bytes of the piece; 0: melted into the one before
};

// Symbols of a word, in memory of its owner; no more than the word has bytes.
struct Word {
  Symbol* symbols;
  size_t count = 0;
  void push_back(Symbol symbol) { symbols[count++] = symbol; }
};

// A pair of neighbours that may be merged.
struct Candidate {
  uint32_t rank;
  uint32_t at;  // the left one
  int32_t id;
  uint32_t length;  // of both: neighbours only grow, so a stale candidate is shorter
  uint64_t order() const { return uint64_t{rank} << 32 | at; }
};

// The candidate of lowest rank, the leftmost of them.
class HeapQueue {
 public:
  void push(const Candidate& candidate) { heap_.push(candidate); }
  bool pop(Candidate* out) {
    if (heap_.empty()) return false;
    *out = heap_.top();
    heap_.pop();
    return true;
  }

 private:
  struct Later {
    bool operator()(const Candidate& a, const Candidate& b) const { return a.order() > b.order(); }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, Later> heap_;
};

// The same where nothing is pushed that comes before what was popped last (a radix heap): a few
// passes over short lists instead of a walk through a large tree.
class RadixQueue {
 public:
  void push(const Candidate& candidate) {
    const uint64_t differing = candidate.order() ^ last_;
    const int bucket = differing == 0 ? 0 : 64 - __builtin_clzll(differing);
    buckets_[static_cast<size_t>(bucket)].push_back(candidate);
    used_ |= uint64_t{1} << bucket;  // below 64: ranks are far below 2^31
  }
  bool pop(Candidate* out) {
    if (buckets_[0].empty() && !refill()) return false;
    *out = buckets_[0].back();
    buckets_[0].pop_back();
    return true;
  }

 private:
  bool refill() {
    used_ &= ~uint64_t{1};
    if (used_ == 0) return false;
    const auto bucket = static_cast<size_t>(__builtin_ctzll(used_));
    std::vector<Candidate>& from = buckets_[bucket];
    last_ = std::min_element(from.begin(), from.end(), [](const Candidate& a, const Candidate& b) {
              return a.order() < b.order();
            })->order();
    used_ &= ~(uint64_t{1} << bucket);
    for (const Candidate& candidate : from) push(candidate);  // all into lower buckets
    from.clear();
    return true;
  }

  std::array<std::vector<Candidate>, 64> buckets_;  // by the highest bit that differs from last_
  uint64_t used_ = 0;                               // bit i: bucket i may hold something
  uint64_t last_ = 0;
};

// Pairs of characters, as a set.
class CharacterPairs {
 public:
  void add(char32_t left, char32_t right) {
    if ((size_ + 1) * 2 > slots_.size()) grow();
    uint64_t* slot = find(key(left, right));
    size_ += *slot == kFree ? 1 : 0;
    *slot = key(left, right);
  }
  bool contains(char32_t left, char32_t right) const {
    return !slots_.empty() && *const_cast<CharacterPairs*>(this)->find(key(left, right)) != kFree;
  }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;
  static uint64_t key(char32_t left, char32_t right) { return uint64_t{left} << 32 | right; }
  uint64_t* find(uint64_t wanted) {
    const size_t mask = slots_.size() - 1;
    size_t at = (wanted * 0x9E3779B97F4A7C15u >> 32) & mask;
    while (slots_[at] != wanted && slots_[at] != kFree) at = (at + 1) & mask;
    return &slots_[at];
  }
  void grow() {
    std::vector<uint64_t> old(std::max<size_t>(1024, slots_.size() * 2), kFree);
    old.swap(slots_);
    for (const uint64_t pair : old) {
      if (pair != kFree) *find(pair) = pair;
    }
  }

  std::vector<uint64_t> slots_;
  size_t size_ = 0;
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
    const auto spell_it = [this](std::string_view part, Word* word) { return spell(part, word); };
    if (piece.size() <= kLongestWhole || !cuts_pieces_) {
      through_cache(piece, cache, out, spell_it);
      return;
    }
    for (size_t begin = 0; begin < piece.size();) {
      const size_t end = next_cut(piece, begin);
      const size_t first = out->size();
      through_cache(piece.substr(begin, end - begin), cache, out, spell_it);
      for (size_t i = first; i < out->size(); ++i) {
        (*out)[i].begin += static_cast<uint32_t>(begin);
        (*out)[i].end += static_cast<uint32_t>(begin);
      }
      begin = end;
    }
  }

  void tokenize_bytes(std::string_view piece, WordCache* cache,
                      std::vector<ModelToken>* out) const override {
    if (!has_all_bytes_ && std::any_of(piece.begin(), piece.end(), [this](char byte) {
          return byte_ids_[static_cast<unsigned char>(byte)] < 0;
        })) {
      tokenize_spelled_bytes(piece, out);
      return;
    }
    through_cache(piece, cache, out, [this](std::string_view part, Word* word) {
      if (ignore_merges_) {
        if (const int32_t id = raw_words_.find(part); id >= 0) {
          word->push_back({id, static_cast<uint32_t>(part.size())});
          return;
        }
      }
      for (const char byte : part) {
        word->push_back({byte_ids_[static_cast<unsigned char>(byte)], 1});
      }
    });
  }

 private:
  // Pieces up to this size are looked up whole; longer ones are cut first where that is possible.
  static constexpr size_t kLongestWhole = 16;
  // Words up to this size are quicker without a queue; the result is the same.
  static constexpr size_t kShort = 48;

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
    if (piece.size() <= kShort) {
      Symbol symbols[kShort];
      Word word{symbols};
      spell_word(piece, &word);
      merge_short(&word);
      append_tokens(word, out);
    } else {
      std::vector<Symbol> symbols(piece.size());
      Word word{symbols.data()};
      spell_word(piece, &word);
      if (is_monotone_) {
        merge_long<RadixQueue>(&word);
      } else {
        merge_long<HeapQueue>(&word);
      }
      append_tokens(word, out);
    }
    if (cache != nullptr) cache->put(piece, out->data() + first, out->size() - first);
  }

  static void append_tokens(const Word& word, std::vector<ModelToken>* out) {
    uint32_t at = 0;
    for (size_t i = 0; i < word.count; ++i) {
      const Symbol& symbol = word.symbols[i];
      if (symbol.length == 0) continue;
      out->push_back({symbol.id, at, at + symbol.length});
      at += symbol.length;
    }
  }

  void spell(std::string_view piece, Word* word) const;
  bool spell_as_bytes(std::string_view text, Word* word) const;
  void tokenize_spelled_bytes(std::string_view piece, std::vector<ModelToken>* out) const;
  size_t next_cut(std::string_view piece, size_t begin) const;
  void merge_short(Word* word) const;
  template <typename Queue>
  void merge_long(Word* word) const;
  void read_merges(const JsonField& field);
  void note_merges(const std::vector<std::array<int32_t, 3>>& merges);
  void prepare_bytes();
  Merge merge_of(int32_t left, int32_t right) const {
    // Most words start as single bytes.
    const auto l = static_cast<uint32_t>(left), r = static_cast<uint32_t>(right);
    if (l < kLowIds && r < kLowIds && !low_merges_.empty()) return low_merges_[l * kLowIds + r];
    return merges_->get(left, right);
  }

  static constexpr uint32_t kLowIds = 256;

  Vocabulary vocabulary_;
  std::unique_ptr<MergeTable> merges_;
  std::string prefix_;  // continuing_subword_prefix
  std::string suffix_;  // end_of_word_suffix
  int32_t unknown_ = -1;
  bool fuse_unknown_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool takes_raw_bytes_ = false;
  bool has_all_bytes_ = false;               // each byte of the alphabet has a token
  bool is_monotone_ = true;                  // every merge comes after those that make its parts
  bool cuts_pieces_ = false;                 // see next_cut()
  std::vector<Merge> low_merges_;            // [left][right] of ids below kLowIds
  Vocabulary raw_words_;                     // tokens as the bytes that they stand for
  std::vector<bool> characters_;             // code points that are tokens
  CharacterPairs joined_;                    // neighbours inside of some merge's result
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

  prepare_bytes();
  if (const std::string unknown = field.string_or("unk_token", ""); !unknown.empty()) {
    unknown_ = vocabulary_.find(unknown);
    if (unknown_ < 0 && !(takes_raw_bytes_ && has_all_bytes_)) {
      field.at("unk_token").broken("the token \"" + unknown + "\" is not in the vocabulary");
    }
  }
}

void Bpe::prepare_bytes() {
  size_t known = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    std::string spelling;
    append_utf8(&spelling, byte_to_alphabet(static_cast<unsigned char>(byte)));
    byte_ids_[byte] = vocabulary_.find(spelling);
    known += byte_ids_[byte] >= 0 ? 1 : 0;
    char fallback[8];
    std::snprintf(fallback, sizeof(fallback), "<0x%02X>", static_cast<unsigned>(byte));
    fallback_ids_[byte] = vocabulary_.find(fallback);
  }
  has_all_bytes_ = known == 256;
  // Some vocabularies lack bytes that no text has.
  takes_raw_bytes_ = prefix_.empty() && suffix_.empty() && known >= 128;
  if (!takes_raw_bytes_ || !ignore_merges_) return;
  for (size_t id = 0; id < vocabulary_.id_limit(); ++id) {
    const std::string* token = vocabulary_.text(static_cast<int32_t>(id));
    if (token == nullptr) continue;
    std::string bytes;
    for (size_t offset = 0; offset < token->size();) {
      const int byte = alphabet_to_byte(next_utf8(*token, &offset));
      if (byte < 0) break;
      bytes.push_back(static_cast<char>(byte));
      if (offset == token->size()) raw_words_.add(std::move(bytes), static_cast<int64_t>(id));
    }
  }
}

void Bpe::read_merges(const JsonField& field) {
  if (!field.json().is_array()) {
    field.broken(cat("must be a list, not ", field.json().kind_name()));
  }
  const Json::Array& list = field.json().as_array();
  merges_ = std::make_unique<MergeTable>(list.size());
  std::vector<std::array<int32_t, 3>> merges;
  merges.reserve(list.size());
  std::string together;
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
    together.assign(left).append(right.substr(prefix_.size()));
    std::array<int32_t, 3> ids;
    const std::string_view tokens[3] = {left, right, together};
    for (size_t k = 0; k < 3; ++k) {
      ids[k] = vocabulary_.find(tokens[k]);
      if (ids[k] < 0)
        broken(cat("needs the token \"", tokens[k], "\", which is not in the vocabulary"));
    }
    merges_->put(ids[0], ids[1], {static_cast<uint32_t>(merges.size()), ids[2]});
    merges.push_back(ids);
  }
  note_merges(merges);
}

// What merge() and next_cut() need to know of all merges together.
void Bpe::note_merges(const std::vector<std::array<int32_t, 3>>& merges) {
  std::vector<size_t> last_made(vocabulary_.id_limit(), 0);  // rank + 1
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    last_made[static_cast<size_t>(merges[rank][2])] = rank + 1;
  }
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    for (const size_t part : {0, 1}) {
      is_monotone_ = is_monotone_ && last_made[static_cast<size_t>(merges[rank][part])] <= rank;
    }
  }
  low_merges_.resize(size_t{kLowIds} * kLowIds);
  for (const std::array<int32_t, 3>& ids : merges) {
    const auto l = static_cast<uint32_t>(ids[0]), r = static_cast<uint32_t>(ids[1]);
    if (l < kLowIds && r < kLowIds) low_merges_[l * kLowIds + r] = merges_->get(ids[0], ids[1]);
  }
  cuts_pieces_ = prefix_.empty() && suffix_.empty();
  if (!cuts_pieces_) return;
  characters_.resize(0x110000);
  for (size_t id = 0; id < vocabulary_.id_limit(); ++id) {
    const std::string* token = vocabulary_.text(static_cast<int32_t>(id));
    if (token == nullptr || token->empty() || token->size() > 4) continue;
    size_t offset = 0;
    const char32_t c = next_utf8(*token, &offset);
    if (offset == token->size()) characters_[c] = true;
  }
  for (const std::array<int32_t, 3>& ids : merges) {
    // Where the parts meet; inside of them other merges have been.
    const std::string& left = *vocabulary_.text(ids[0]);
    const std::string& right = *vocabulary_.text(ids[1]);
    if (left.empty() || right.empty()) continue;
    size_t last = left.size() - 1;
    while (last > 0 && (static_cast<unsigned char>(left[last]) & 0xC0) == 0x80) --last;
    size_t first = 0;
    const char32_t before = next_utf8(left, &last);
    joined_.add(before, next_utf8(right, &first));
  }
}

// A place behind `begin` that no merge reaches across: the two characters there are tokens, and
// neighbours in no merge. What lies on its two sides is then merged as if the other were not there,
// so that a text without words (SentencePiece's have none) falls into parts that are short and come
// again. The end of the piece where there is no such place.
size_t Bpe::next_cut(std::string_view piece, size_t begin) const {
  size_t offset = begin;
  char32_t last = next_utf8(piece, &offset);
  while (offset < piece.size()) {
    const size_t here = offset;
    const char32_t c = next_utf8(piece, &offset);
    if (characters_[c] && characters_[last] && !joined_.contains(last, c)) return here;
    last = c;
  }
  return piece.size();
}

// The same as tokenize_bytes() for pieces with bytes that are no tokens: through their spelling.
void Bpe::tokenize_spelled_bytes(std::string_view piece, std::vector<ModelToken>* out) const {
  std::string spelling;
  std::vector<uint32_t> places;  // of each byte of the spelling in the piece
  for (size_t i = 0; i < piece.size(); ++i) {
    append_utf8(&spelling, byte_to_alphabet(static_cast<unsigned char>(piece[i])));
    places.resize(spelling.size(), static_cast<uint32_t>(i));
  }
  const size_t first = out->size();
  tokenize(spelling, nullptr, out);  // the cache knows words by their bytes
  const auto limit = static_cast<uint32_t>(spelling.size());
  for (size_t i = first; i < out->size(); ++i) {
    ModelToken& token = (*out)[i];
    const uint32_t end = std::min(token.end, limit);
    const uint32_t begin = std::min(token.begin, end);
    token.begin = begin < end ? places[begin] : static_cast<uint32_t>(piece.size());
    token.end = begin < end ? places[end - 1] + 1 : static_cast<uint32_t>(piece.size());
  }
}

bool Bpe::spell_as_bytes(std::string_view text, Word* word) const {
  for (const char byte : text) {
    if (fallback_ids_[static_cast<unsigned char>(byte)] < 0) return false;
  }
  for (const char byte : text)
    word->push_back({fallback_ids_[static_cast<unsigned char>(byte)], 1});
  return true;
}

void Bpe::spell(std::string_view piece, Word* word) const {
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

void Bpe::merge_short(Word* word) const {
  Merge merges[kShort];  // of symbol i with symbol i + 1
  Symbol* const symbols = word->symbols;
  size_t count = word->count;
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = merge_of(symbols[i].id, symbols[i + 1].id);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == kNoRank) break;
    symbols[best] = {merges[best].id, symbols[best].length + symbols[best + 1].length};
    --count;
    for (size_t i = best + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = best + 1; i + 1 < count; ++i) merges[i] = merges[i + 1];
    if (best > 0) merges[best - 1] = merge_of(symbols[best - 1].id, symbols[best].id);
    if (best + 1 < count) merges[best] = merge_of(symbols[best].id, symbols[best + 1].id);
  }
  word->count = count;
}

template <typename Queue>
void Bpe::merge_long(Word* word) const {
  struct Node {
    Symbol symbol;
    uint32_t before, after;  // count: none
  };
  const auto count = static_cast<uint32_t>(word->count);
  std::vector<Node> nodes(count);
  for (uint32_t i = 0; i < count; ++i) {
    nodes[i] = {word->symbols[i], i > 0 ? i - 1 : count, i + 1};
  }
  Queue queue;
  const auto consider = [&](uint32_t at) {
    const Node& left = nodes[at];
    const Symbol& right = nodes[left.after].symbol;
    const Merge found = merge_of(left.symbol.id, right.id);
    if (found.rank == kNoRank) return;
    queue.push({found.rank, at, found.id, left.symbol.length + right.length});
  };
  for (uint32_t i = 0; i + 1 < count; ++i) consider(i);
  for (Candidate top; queue.pop(&top);) {
    Node& left = nodes[top.at];
    const uint32_t next = left.after;
    if (left.symbol.length == 0 || next == count) continue;
    // The pair at this place may have changed since it was queued.
    if (left.symbol.length + nodes[next].symbol.length != top.length) continue;
    left.symbol = {top.id, top.length};
    nodes[next].symbol.length = 0;
    left.after = nodes[next].after;
    if (left.after < count) nodes[left.after].before = top.at;
    if (left.before < count) consider(left.before);
    if (left.after < count) consider(top.at);
  }
  for (uint32_t i = 0; i < count; ++i) word->symbols[i] = nodes[i].symbol;
}

}  // namespace

std::unique_ptr<Model> read_bpe(const JsonField& field) { return std::make_unique<Bpe>(field); }

}  // namespace galley::text::internal
