#include "engine/text/tok_parts.h"

#include <algorithm>
#include <deque>

#include "engine/core/error.h"
#include "engine/core/hash.h"
#include "engine/core/strings.h"

namespace galley::text::internal {

// What one encode() has in its hands.
struct TokenizerParts::Work {
  Draft draft;
  SpecialRule rule;
  WordCache* cache = nullptr;
  bool needs_spellings = false;
  std::deque<std::string> kept_spellings;  // of added tokens that took blanks along
  std::vector<ByteRange> pieces;
  std::vector<ModelToken> tokens;

  void push(int32_t id, size_t begin, size_t end) {
    draft.encoding.ids.push_back(id);
    draft.encoding.begin.push_back(begin);
    draft.encoding.end.push_back(end);
  }
};

TokenizerParts::TokenizerParts(std::string_view json, const std::string& where)
    : hash_(hash128_hex(json)) {
  const Json document = parse_json_or_throw(json, where, Reason::kBadTokenizer);
  read(JsonField::top(&document, where));
}

void TokenizerParts::read(const JsonField& top) {
  if (!top.json().is_object()) top.broken("must be an object");
  static constexpr std::string_view kKeys[] = {"version",      "truncation",    "padding",
                                               "added_tokens", "normalizer",    "model",
                                               "decoder",      "pre_tokenizer", "post_processor"};
  for (const auto& [key, value] : top.json().as_object()) {
    if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys)) {
      top.unsupported("the key \"" + key + "\" is not supported by this version");
    }
  }
  if (top.has("version") && top.at("version").string() != "1.0") {
    top.at("version").unsupported("version \"" + top.at("version").string() +
                                  "\" is not supported; supported: \"1.0\"");
  }
  const auto member = [&](std::string_view key) {
    return top.has(key) ? std::optional<JsonField>(top.at(key)) : std::nullopt;
  };
  const auto pointer = [](const std::optional<JsonField>& field) {
    return field ? &*field : nullptr;
  };
  model_ = read_model(top.at("model"));
  if (const auto field = member("normalizer")) normalizer_ = read_normalizer(*field);
  pre_tokenizer_ =
      read_pre_tokenizer(pointer(member("pre_tokenizer")),
                         model_->takes_raw_bytes() ? LastByteLevel::kRaw : LastByteLevel::kMapped);
  if (const auto field = member("post_processor")) post_processor_ = read_post_processor(*field);
  decoder_ = read_decoder(pointer(member("decoder")));
  const Vocabulary& vocabulary = model_->vocabulary();
  added_ = AddedTokens(
      pointer(member("added_tokens")),
      [&](std::string_view text) {
        const int32_t id = vocabulary.find(text);
        return id >= 0 ? std::optional<int32_t>(id) : std::nullopt;
      },
      vocabulary.size());
  added_.prepare([&](const std::string& content) {
    AlignedText text(content, 0);
    if (normalizer_) normalizer_->apply(&text);
    return std::string(text.view());
  });
}

std::unique_ptr<WordCache> TokenizerParts::borrow_cache() const {
  const std::lock_guard<std::mutex> lock(caches_mutex_);
  if (caches_.empty()) return std::make_unique<WordCache>();
  std::unique_ptr<WordCache> cache = std::move(caches_.back());
  caches_.pop_back();
  return cache;
}

void TokenizerParts::give_cache_back(std::unique_ptr<WordCache> cache) const {
  const std::lock_guard<std::mutex> lock(caches_mutex_);
  caches_.push_back(std::move(cache));
}

Encoding TokenizerParts::encode(std::string_view text, const EncodeOptions& options,
                                WordCaching caching) const {
  size_t bad = 0;
  if (!is_valid_utf8(text, &bad)) {
    throw Error(Reason::kBadData, cat("the text is not valid UTF-8 at byte ", bad));
  }
  if (text.size() > UINT32_MAX / 2) {
    throw Error(Reason::kBadData, "a text of more than 2 GiB cannot be tokenized in one piece");
  }
  std::unique_ptr<WordCache> cache = caching == WordCaching::kYes ? borrow_cache() : nullptr;
  Work work;
  work.draft.text = text;
  work.rule = {options.special_as_text, options.text_breaks};
  work.cache = cache.get();
  work.needs_spellings = post_processor_ && post_processor_->needs_spellings();

  const AlignedText whole(text, 0);
  std::vector<Segment> segments;
  added_.split_original(whole, work.rule, &segments);
  for (const Segment& segment : segments) {
    if (segment.token != nullptr) {
      push_added(whole, segment, &work);
      continue;
    }
    AlignedText part(text.substr(segment.range.begin, segment.range.end - segment.range.begin),
                     segment.range.begin);
    if (normalizer_) normalizer_->apply(&part);
    if (segment.sealed) {
      encode_stretch(&part, &work);
    } else {
      encode_text(&part, &work);
    }
  }
  if (post_processor_) post_processor_->apply(&work.draft, options.add_special_tokens);
  if (cache) give_cache_back(std::move(cache));
  return std::move(work.draft.encoding);
}

void TokenizerParts::push_added(const AlignedText& text, const Segment& segment, Work* work) const {
  const Origin origin = text.origin(segment.range.begin, segment.range.end);
  work->push(segment.token->id, origin.begin, origin.end);
  if (!work->needs_spellings) return;
  const size_t length = segment.range.end - segment.range.begin;
  work->kept_spellings.emplace_back(text.view().substr(segment.range.begin, length));
  work->draft.spellings.push_back(work->kept_spellings.back());
}

// A normalized text: added tokens that are normalized, and stretches between them.
void TokenizerParts::encode_text(AlignedText* text, Work* work) const {
  std::vector<Segment> segments;
  added_.split_normalized(*text, work->rule, &segments);
  for (const Segment& segment : segments) {
    if (segment.token != nullptr) {
      push_added(*text, segment, work);
    } else if (segment.range.end - segment.range.begin == text->size()) {
      encode_stretch(text, work);
    } else {
      AlignedText stretch(*text, segment.range);
      encode_stretch(&stretch, work);
    }
  }
}

void TokenizerParts::encode_stretch(AlignedText* text, Work* work) const {
  if (text->size() == 0) return;
  work->pieces.assign(1, {0, text->size()});
  pre_tokenizer_.split(text, &work->pieces);
  Encoding& encoding = work->draft.encoding;
  for (const ByteRange& piece : work->pieces) {
    const std::string_view view = text->view().substr(piece.begin, piece.end - piece.begin);
    work->tokens.clear();
    if (pre_tokenizer_.ends_in_raw_bytes) {
      model_->tokenize_bytes(view, work->cache, &work->tokens);
    } else {
      model_->tokenize(view, work->cache, &work->tokens);
    }
    for (const ModelToken& token : work->tokens) {
      encoding.ids.push_back(token.id);
      // Affixes and byte tokens can reach past the piece; they belong to its end.
      const size_t end = std::min(piece.begin + token.end, piece.end);
      const size_t begin = std::min(piece.begin + token.begin, end);
      const Origin origin =
          begin < end ? text->origin(begin, end)
                      : Origin{text->origin(piece.end - 1).end, text->origin(piece.end - 1).end};
      encoding.begin.push_back(origin.begin);
      encoding.end.push_back(origin.end);
      if (work->needs_spellings) work->draft.spellings.push_back(*spelling(token.id));
    }
  }
}

bool TokenizerParts::is_shown(const std::string* spelling, SkipSpecial skip) const {
  if (spelling == nullptr) return false;
  return skip == SkipSpecial::kNo || !added_.is_special_spelling(*spelling);
}

std::string TokenizerParts::decode(std::span<const int32_t> ids, SkipSpecial skip) const {
  if (decoder_.kind == DecoderKind::kByteLevel) {
    std::string bytes;
    for (const int32_t id : ids) {
      const std::string* token = spelling(id);
      if (!is_shown(token, skip)) continue;
      append_bytes_of_token(*token, &bytes);
    }
    std::string text;
    append_lossy(bytes, OpenEnd::kReplace, &text);
    return text;
  }
  std::vector<std::string> tokens;
  for (const int32_t id : ids) {
    const std::string* token = spelling(id);
    if (!is_shown(token, skip)) continue;
    tokens.push_back(*token);
  }
  return decoder_.decode(std::move(tokens));
}

const std::string* TokenizerParts::spelling(int32_t id) const {
  if (const AddedToken* token = added_.by_id(id)) return &token->spelling;
  return model_->vocabulary().text(id);
}

std::optional<int32_t> TokenizerParts::find(std::string_view token) const {
  if (const auto id = added_.id_of(token)) return id;
  const int32_t id = model_->vocabulary().find(token);
  return id >= 0 ? std::optional<int32_t>(id) : std::nullopt;
}

bool TokenizerParts::is_special(int32_t id) const {
  const AddedToken* token = added_.by_id(id);
  return token != nullptr && token->special;
}

size_t TokenizerParts::id_limit() const {
  size_t limit = model_->vocabulary().id_limit();
  for (const AddedToken& token : added_.tokens()) {
    limit = std::max(limit, static_cast<size_t>(token.id) + 1);
  }
  return limit;
}

}  // namespace galley::text::internal
