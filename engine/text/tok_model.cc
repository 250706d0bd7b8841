#include "engine/text/tok_model.h"

#include <cstring>

#include "engine/core/hash.h"
#include "engine/core/strings.h"

namespace galley::text::internal {

Vocabulary Vocabulary::read(const JsonField& field) {
  if (!field.json().is_object()) {
    field.broken(cat("must be an object of tokens and ids, not ", field.json().kind_name()));
  }
  Vocabulary out;
  for (const auto& [text, id] : field.json().as_object()) {
    if (!id.is_int()) {
      field.broken(cat("the id of \"", text, "\" must be an integer, not ", id.kind_name()));
    }
    out.add(text, id.as_int(), field);
  }
  return out;
}

void Vocabulary::add(std::string text, int64_t id, const JsonField& where) {
  // No real vocabulary comes near; a wild id must not ask for gigabytes.
  constexpr int64_t kHighestId = int64_t{1} << 24;
  if (id < 0 || id > kHighestId) {
    where.broken(cat("the id of \"", text, "\" is ", id, "; ids lie within 0 and ", kHighestId));
  }
  const auto index = static_cast<size_t>(id);
  if (index < texts_.size() && present_[index]) {
    where.broken(cat("id ", id, " is given to \"", texts_[index], "\" and to \"", text, "\""));
  }
  if (find(text) >= 0) where.broken("the token \"" + text + "\" occurs twice");
  add(std::move(text), id);
}

void Vocabulary::add(std::string text, int64_t id) {
  if ((size_ + 1) * 2 > slots_.size()) grow();
  const auto index = static_cast<size_t>(id);
  if (index >= texts_.size()) {
    texts_.resize(index + 1);
    present_.resize(index + 1);
  }
  insert(index, hash64(text));
  texts_[index] = std::move(text);
  present_[index] = true;
  ++size_;
}

void Vocabulary::insert(size_t id, uint64_t hash) {
  const size_t mask = slots_.size() - 1;
  size_t slot = hash & mask;
  while (slots_[slot].id >= 0) slot = (slot + 1) & mask;
  slots_[slot] = {static_cast<int32_t>(id), static_cast<uint32_t>(hash >> 32)};
}

void Vocabulary::grow() {
  slots_.assign(slots_.empty() ? 1024 : slots_.size() * 4, Slot{});
  for (size_t id = 0; id < texts_.size(); ++id) {
    if (present_[id]) insert(id, hash64(texts_[id]));
  }
}

int32_t Vocabulary::find(std::string_view text) const {
  if (slots_.empty()) return -1;
  const size_t mask = slots_.size() - 1;
  const uint64_t hash = hash64(text);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t at = hash & mask; slots_[at].id >= 0; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.tag == tag && texts_[static_cast<size_t>(slot.id)] == text) return slot.id;
  }
  return -1;
}

const std::string* Vocabulary::text(int32_t id) const {
  const size_t index = static_cast<size_t>(id);
  return id >= 0 && index < texts_.size() && present_[index] ? &texts_[index] : nullptr;
}

const ModelToken* WordCache::find(std::string_view word, size_t* count) const {
  if (slots_.empty() || word.size() > kLongestWord) return nullptr;
  const uint64_t hash = hash64(word);
  for (size_t at = hash % kSlots; slots_[at].word_size != 0; at = (at + 1) % kSlots) {
    const Slot& slot = slots_[at];
    if (slot.hash == hash && slot.word_size == word.size() &&
        std::memcmp(words_.data() + slot.word_at, word.data(), word.size()) == 0) {
      *count = slot.count;
      return tokens_.data() + slot.tokens_at;
    }
  }
  return nullptr;
}

void WordCache::put(std::string_view word, const ModelToken* tokens, size_t count) {
  if (word.empty() || word.size() > kLongestWord) return;
  if (slots_.empty() || used_ * 2 > kSlots) {
    slots_.assign(kSlots, Slot{});
    words_.clear();
    tokens_.clear();
    used_ = 0;
  }
  const uint64_t hash = hash64(word);
  size_t at = hash % kSlots;
  while (slots_[at].word_size != 0) at = (at + 1) % kSlots;
  slots_[at] = {hash, static_cast<uint32_t>(words_.size()), static_cast<uint16_t>(word.size()),
                static_cast<uint16_t>(count), static_cast<uint32_t>(tokens_.size())};
  words_.append(word);
  tokens_.insert(tokens_.end(), tokens, tokens + count);
  ++used_;
}

std::unique_ptr<Model> read_model(const JsonField& field) {
  // Files of old library versions name no type; their keys tell.
  const std::string type =
      field.has("type") ? field.at("type").string()
                        : (field.has("merges") ? std::string("BPE") : field.at("type").string());
  if (type == "BPE") return read_bpe(field);
  if (type == "WordPiece") return read_word_piece(field);
  if (type == "WordLevel") return read_word_level(field);
  if (type == "Unigram") return read_unigram(field);
  field.at("type").unsupported("model type \"" + type +
                               "\" is not supported by this version; supported: BPE, WordPiece, "
                               "WordLevel, Unigram");
}

}  // namespace galley::text::internal
