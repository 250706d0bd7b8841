#include "engine/text/tok_added.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::text::internal {

void StringSet::add(std::string_view text, size_t value) {
  if (text.empty()) return;
  starts_[static_cast<unsigned char>(text[0])] = true;
  size_t node = 0;
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    size_t next = child(node, byte);
    if (next == 0) {
      next = nodes_.size();
      auto& children = nodes_[node].children;
      children.insert(std::lower_bound(children.begin(), children.end(),
                                       std::pair<unsigned char, uint32_t>(byte, 0)),
                      {byte, static_cast<uint32_t>(next)});
      nodes_.emplace_back();
    }
    node = next;
  }
  if (nodes_[node].value < 0) nodes_[node].value = static_cast<int64_t>(value);
}

size_t StringSet::child(size_t node, unsigned char byte) const {
  const auto& children = nodes_[node].children;
  const auto found = std::lower_bound(children.begin(), children.end(),
                                      std::pair<unsigned char, uint32_t>(byte, 0));
  return found != children.end() && found->first == byte ? found->second : 0;
}

namespace {

AddedToken read_token(const JsonField& field) {
  AddedToken token;
  token.content = field.at("content").string();
  if (token.content.empty()) field.at("content").broken("must not be empty");
  token.id = static_cast<int32_t>(field.at("id").integer(0, INT32_MAX));
  token.single_word = field.at("single_word").boolean();
  token.lstrip = field.at("lstrip").boolean();
  token.rstrip = field.at("rstrip").boolean();
  token.normalized = field.at("normalized").boolean();
  token.special = field.at("special").boolean();
  return token;
}

}  // namespace

AddedTokens::AddedTokens(const JsonField* field,
                         const std::function<std::optional<int32_t>(std::string_view)>& model_id,
                         size_t model_size) {
  if (field == nullptr) return;
  // The library ignores the ids of the file and numbers the tokens anew, from the size of the
  // model's vocabulary on. A file whose ids are others would mean different tokens to different
  // readers.
  int64_t highest = -1;
  for (const JsonField& item : field->items()) {
    AddedToken token = read_token(item);
    if (by_content_.contains(token.content)) {
      item.broken("the token \"" + token.content + "\" is listed twice");
    }
    const std::optional<int32_t> known = model_id(token.content);
    const int64_t size = static_cast<int64_t>(model_size);
    const int64_t expected = known ? *known : std::max(highest + 1, size);
    if (token.id != expected) {
      item.broken(cat("the token \"", token.content, "\" has id ", token.id, ", but ",
                      known ? "the vocabulary gives it " : "the next free id is ", expected));
    }
    if (!by_id_.emplace(token.id, tokens_.size()).second) {
      item.broken(cat("id ", token.id, " is given to two added tokens"));
    }
    highest = std::max(highest, expected);
    by_content_.emplace(token.content, tokens_.size());
    tokens_.push_back(std::move(token));
  }
}

void AddedTokens::prepare(const std::function<std::string(const std::string&)>& normalize) {
  // Special tokens first: they win where two tokens have one normalized spelling.
  for (const bool special : {true, false}) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      AddedToken& token = tokens_[i];
      if (token.special != special) continue;
      token.spelling = token.normalized ? normalize(token.content) : token.content;
      if (token.spelling.empty()) {
        throw Error(Reason::kUnsupported, cat("the added token \"", token.content,
                                              "\" is nothing after normalization, which this "
                                              "version does not support"));
      }
      (token.normalized ? in_normalized_ : in_original_).add(token.spelling, i);
      if (special) special_contents_.insert(token.content);
    }
  }
}

const AddedToken* AddedTokens::by_id(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

std::optional<int32_t> AddedTokens::id_of(std::string_view content) const {
  const auto found = by_content_.find(std::string(content));
  if (found == by_content_.end()) return std::nullopt;
  return tokens_[found->second].id;
}

namespace {

bool word_before(std::string_view text, size_t offset) {
  if (offset == 0) return false;
  size_t begin = offset - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return is_word(next_utf8(text, &begin));
}

bool word_after(std::string_view text, size_t offset) {
  return offset < text.size() && is_word(next_utf8(text, &offset));
}

size_t skip_space_left(std::string_view text, size_t offset) {
  while (offset > 0) {
    size_t begin = offset - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    size_t after = begin;
    if (!is_white_space(next_utf8(text, &after))) break;
    offset = begin;
  }
  return offset;
}

size_t skip_space_right(std::string_view text, size_t offset) {
  while (offset < text.size()) {
    size_t after = offset;
    if (!is_white_space(next_utf8(text, &after))) break;
    offset = after;
  }
  return offset;
}

// True when a break lies strictly inside of the original bytes of [begin, end).
bool is_broken(const AlignedText& text, size_t begin, size_t end, std::span<const size_t> breaks) {
  if (breaks.empty()) return false;
  const Origin origin = text.origin(begin, end);
  const auto next = std::upper_bound(breaks.begin(), breaks.end(), size_t{origin.begin});
  return next != breaks.end() && *next < origin.end;
}

struct Match {
  size_t length = 0;
  size_t token = 0;
  bool broken = false;
};

}  // namespace

void AddedTokens::split(const AlignedText& text, const StringSet& set, const SpecialRule& rule,
                        std::vector<Segment>* out) const {
  const std::string_view view = text.view();
  size_t done = 0;  // everything before is in `out`
  const auto text_until = [&](size_t end) {
    if (done < end) out->push_back({{done, end}});
  };
  for (size_t at = 0; !set.empty() && at < view.size();) {
    if (!set.may_start(static_cast<unsigned char>(view[at]))) {
      ++at;
      continue;
    }
    // The longest token that starts here; one that a break makes text only where no other does.
    Match match;
    set.for_each_prefix(view.substr(at), [&](size_t length, size_t token) {
      const bool broken = tokens_[token].special && is_broken(text, at, at + length, rule.breaks);
      if (!broken || match.length == 0 || match.broken) match = {length, token, broken};
    });
    if (match.length == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[match.token];
    size_t begin = at;
    size_t end = at + match.length;
    at = end;
    if (match.broken) {
      text_until(begin);
      out->push_back({{begin, end}, nullptr, true});
      done = end;
      continue;
    }
    if (token.special && rule.as_text) continue;
    if (token.single_word && (word_before(view, begin) || word_after(view, end))) continue;
    if (token.lstrip) begin = std::max(skip_space_left(view, begin), done);
    if (token.rstrip) end = skip_space_right(view, end);
    text_until(begin);
    out->push_back({{begin, end}, &token});
    done = end;
  }
  text_until(view.size());
}

}  // namespace galley::text::internal
