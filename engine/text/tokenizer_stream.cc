#include <utility>

#include "engine/text/tok_parts.h"
#include "engine/text/tokenizer.h"

namespace galley::text {

using internal::DecoderKind;

struct StreamDecoder::State {
  Tokenizer tokenizer;
  std::string bytes;         // kByteLevel: held back
  std::vector<int32_t> ids;  // else: recent ids, those of a trailing run of byte tokens last
  size_t num_settled = 0;    // of ids
  size_t given_bytes = 0;    // of the text of the settled ids

  const internal::TokenizerParts& parts() const { return tokenizer.parts(); }

  std::string push_bytes(int32_t id) {
    const std::string* token = parts().spelling(id);
    if (token == nullptr) return "";
    internal::append_bytes_of_token(*token, &bytes);
    std::string piece;
    bytes.erase(0, internal::append_lossy(bytes, internal::OpenEnd::kKeep, &piece));
    return piece;
  }

  enum class Future { kOpen, kNone };

  // The text of `some` ids that later ids cannot change.
  std::string certain_text(std::span<const int32_t> some, Future future) const {
    std::string text = parts().decode(some, SkipSpecial::kNo);
    if (future == Future::kNone || parts().decoder().kind != DecoderKind::kLastDiffers) return text;
    // What the last token is when nothing follows and what it is before another: both begin alike.
    std::vector<std::string> tokens;
    for (const int32_t id : some) {
      if (const std::string* token = parts().spelling(id)) tokens.push_back(*token);
    }
    tokens.emplace_back();
    const std::string longer = parts().decoder().decode(std::move(tokens));
    size_t same = 0;
    while (same < std::min(text.size(), longer.size()) && text[same] == longer[same]) ++same;
    while (same > 0 && same < text.size() &&
           (static_cast<unsigned char>(text[same]) & 0xC0) == 0x80)
      --same;
    text.resize(same);
    return text;
  }

  // The text by which the settled ids have grown.
  std::string grow(Future future) {
    std::string text = certain_text(std::span(ids).first(num_settled), future);
    std::string piece = text.substr(std::min(given_bytes, text.size()));
    given_bytes = text.size();
    forget();
    return piece;
  }

  // What a token adds to the text does not depend on what came long before: a few ids that have
  // some text are as good as all.
  void forget() {
    constexpr size_t kMany = 128;
    constexpr size_t kEnough = 16;
    if (num_settled < kMany) return;
    const std::span<const int32_t> recent = std::span(ids).subspan(num_settled - kEnough, kEnough);
    const std::string text = certain_text(recent, Future::kOpen);
    if (text.empty()) return;
    ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(num_settled - kEnough));
    num_settled = kEnough;
    given_bytes = text.size();
  }
};

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer) : state_(new State{tokenizer}) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&& other) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&& other) noexcept = default;

std::string StreamDecoder::push(int32_t id) {
  State& state = *state_;
  const DecoderKind kind = state.parts().decoder().kind;
  if (kind == DecoderKind::kByteLevel) return state.push_bytes(id);
  state.ids.push_back(id);
  if (kind == DecoderKind::kAtEnd) return "";
  const std::string* token = state.parts().spelling(id);
  const bool in_run = token == nullptr || internal::byte_of_fallback_token(*token) >= 0;
  if (in_run) return "";
  state.num_settled = state.ids.size();
  return state.grow(State::Future::kOpen);
}

std::string StreamDecoder::flush() {
  State& state = *state_;
  std::string piece;
  if (state.parts().decoder().kind == DecoderKind::kByteLevel) {
    internal::append_lossy(state.bytes, internal::OpenEnd::kReplace, &piece);
  } else {
    state.num_settled = state.ids.size();
    piece = state.grow(State::Future::kNone);
  }
  *state_ = State{state.tokenizer};
  return piece;
}

}  // namespace galley::text
