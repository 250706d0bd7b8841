#include "engine/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "engine/text/tok_parts.h"

namespace galley::text {

Tokenizer::Tokenizer(std::shared_ptr<const internal::TokenizerParts> parts)
    : parts_(std::move(parts)) {}

Tokenizer Tokenizer::load(const std::string& path) {
  if (!path_exists(path)) {
    throw Error(Reason::kMissingPath, "there is no tokenizer at " + path);
  }
  const std::string file = is_directory(path) ? path_join(path, "tokenizer.json") : path;
  if (!path_exists(file)) {
    throw Error(Reason::kMissingPath,
                path + " has no tokenizer.json; models without one are not supported");
  }
  return parse(read_file(file), file);
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& where) {
  return Tokenizer(std::make_shared<const internal::TokenizerParts>(json, where));
}

Encoding Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  return parts_->encode(text, options, internal::WordCaching::kYes);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, SkipSpecial skip) const {
  return parts_->decode(ids, skip);
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  return parts_->find(token);
}

const std::string& Tokenizer::id_to_token(int32_t id) const {
  const std::string* token = parts_->spelling(id);
  if (token == nullptr) {
    throw Error(Reason::kBadData, cat("no token has the id ", id,
                                      "; the vocabulary's ids lie below ", vocabulary_size()));
  }
  return *token;
}

bool Tokenizer::is_special(int32_t id) const { return parts_->is_special(id); }

size_t Tokenizer::vocabulary_size() const { return parts_->id_limit(); }

std::vector<std::string> Tokenizer::special_token_strings() const {
  std::vector<std::pair<int32_t, std::string>> special;
  for (const internal::AddedToken& token : parts_->added().tokens()) {
    if (token.special) special.emplace_back(token.id, token.content);
  }
  std::sort(special.begin(), special.end());
  std::vector<std::string> out;
  out.reserve(special.size());
  for (auto& [id, content] : special) out.push_back(std::move(content));
  return out;
}

const std::string& Tokenizer::hash() const { return parts_->hash(); }

}  // namespace galley::text
