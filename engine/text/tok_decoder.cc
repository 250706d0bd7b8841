#include "engine/text/tok_decoder.h"

#include <utility>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/text/tok_normalizer.h"

namespace galley::text::internal {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t at = 0;
  if (!from.empty()) {
    for (size_t found = text.find(from); found != std::string_view::npos;
         found = text.find(from, at)) {
      out.append(text.substr(at, found - at)).append(to);
      at = found + from.size();
    }
  }
  out.append(text.substr(at));
  return out;
}

class ByteLevel final : public Decoder {
 public:
  void apply(std::vector<std::string>* tokens) const override {
    std::string bytes;
    for (const std::string& token : *tokens) append_bytes_of_token(token, &bytes);
    std::string text;
    append_lossy(bytes, OpenEnd::kReplace, &text);
    *tokens = {std::move(text)};
  }
};

class Replace final : public Decoder {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::vector<std::string>* tokens) const override {
    std::vector<ByteRange> matches;
    for (std::string& token : *tokens) {
      matches.clear();
      pattern_.find_all(token, &matches);
      if (matches.empty()) continue;
      std::string out;
      size_t at = 0;
      for (const ByteRange& match : matches) {
        out.append(token, at, match.begin - at).append(content_);
        at = match.end;
      }
      token = out.append(token, at);
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

// A run of "<0x..>" tokens is its text when that is well formed, else one U+FFFD for each token.
class ByteFallback final : public Decoder {
 public:
  void apply(std::vector<std::string>* tokens) const override {
    std::vector<std::string> out;
    std::string run;
    const auto settle = [&] {
      if (run.empty()) return;
      if (is_valid_utf8(run)) {
        out.push_back(run);
      } else {
        out.insert(out.end(), run.size(), std::string(kReplacement));
      }
      run.clear();
    };
    for (std::string& token : *tokens) {
      if (const int byte = byte_of_fallback_token(token); byte >= 0) {
        run.push_back(static_cast<char>(byte));
        continue;
      }
      settle();
      out.push_back(std::move(token));
    }
    settle();
    tokens->swap(out);
  }
};

class Fuse final : public Decoder {
 public:
  void apply(std::vector<std::string>* tokens) const override { *tokens = {join(*tokens, "")}; }
};

class Strip final : public Decoder {
 public:
  Strip(char32_t content, size_t start, size_t stop) : start_(start), stop_(stop) {
    append_utf8(&content_, content);
  }
  void apply(std::vector<std::string>* tokens) const override {
    for (std::string& token : *tokens) {
      std::string_view view = token;
      for (size_t i = 0; i < start_ && view.starts_with(content_); ++i) {
        view.remove_prefix(content_.size());
      }
      for (size_t i = 0; i < stop_ && view.ends_with(content_); ++i) {
        view.remove_suffix(content_.size());
      }
      if (view.size() < token.size()) token = std::string(view);
    }
  }

 private:
  std::string content_;
  size_t start_;
  size_t stop_;
};

class Metaspace final : public Decoder {
 public:
  Metaspace(char32_t replacement, bool drops_first) : drops_first_(drops_first) {
    append_utf8(&replacement_, replacement);
  }
  void apply(std::vector<std::string>* tokens) const override {
    for (size_t i = 0; i < tokens->size(); ++i) {
      (*tokens)[i] = replace_all((*tokens)[i], replacement_, i == 0 && drops_first_ ? "" : " ");
    }
  }

 private:
  std::string replacement_;
  bool drops_first_;
};

class BpeDecoder final : public Decoder {
 public:
  explicit BpeDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(std::vector<std::string>* tokens) const override {
    for (size_t i = 0; i < tokens->size(); ++i) {
      (*tokens)[i] = replace_all((*tokens)[i], suffix_, i + 1 == tokens->size() ? "" : " ");
    }
  }

 private:
  std::string suffix_;
};

class WordPiece final : public Decoder {
 public:
  WordPiece(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void apply(std::vector<std::string>* tokens) const override {
    for (size_t i = 0; i < tokens->size(); ++i) {
      std::string& token = (*tokens)[i];
      if (i > 0) {
        token = token.starts_with(prefix_) ? token.substr(prefix_.size()) : " " + token;
      }
      if (cleanup_) clean(&token);
    }
  }

 private:
  static void clean(std::string* text) {
    static constexpr std::pair<const char*, const char*> kRules[] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : kRules) *text = replace_all(*text, from, to);
  }

  std::string prefix_;
  bool cleanup_;
};

std::unique_ptr<Decoder> read_metaspace(const JsonField& field) {
  const std::string scheme = field.string_or("prepend_scheme", "always");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    field.at("prepend_scheme")
        .unsupported("the scheme \"" + scheme + "\" is not supported by this version");
  }
  if (!field.boolean_or("add_prefix_space", true) && scheme != "never") {
    field.broken("\"add_prefix_space\" is false, but \"prepend_scheme\" is not \"never\"");
  }
  return std::make_unique<Metaspace>(field.at("replacement").character(), scheme != "never");
}

std::unique_ptr<Decoder> read_step(const JsonField& field) {
  const std::string& type = field.at("type").string();
  if (type == "ByteLevel") return std::make_unique<ByteLevel>();
  if (type == "Replace") {
    return std::make_unique<Replace>(Pattern(field.at("pattern")), field.at("content").string());
  }
  if (type == "ByteFallback") return std::make_unique<ByteFallback>();
  if (type == "Fuse") return std::make_unique<Fuse>();
  if (type == "Strip") {
    return std::make_unique<Strip>(field.at("content").character(),
                                   static_cast<size_t>(field.at("start").integer(0, INT32_MAX)),
                                   static_cast<size_t>(field.at("stop").integer(0, INT32_MAX)));
  }
  if (type == "Metaspace") return read_metaspace(field);
  if (type == "BPEDecoder") return std::make_unique<BpeDecoder>(field.at("suffix").string());
  if (type == "WordPiece") {
    return std::make_unique<WordPiece>(field.at("prefix").string(), field.at("cleanup").boolean());
  }
  field.unsupported("the decoder type \"" + type +
                    "\" is not supported by this version; supported: ByteLevel, Replace, "
                    "ByteFallback, Fuse, Strip, Metaspace, BPEDecoder, WordPiece, Sequence");
}

void collect(const JsonField& field, std::vector<JsonField>* out) {
  if (field.at("type").string() != "Sequence") {
    out->push_back(field);
    return;
  }
  for (const JsonField& item : field.at("decoders").items()) collect(item, out);
}

// Up to the first step that sees all text as one, tokens are decoded one by one; behind it only
// cutting at the front leaves later text alone.
DecoderKind classify(const std::vector<JsonField>& steps) {
  bool joined = false;
  bool last_differs = false;
  for (const JsonField& step : steps) {
    const std::string& type = step.at("type").string();
    if (joined) {
      const bool strips_front = type == "Strip" && step.at("stop").integer(0, INT32_MAX) == 0;
      if (type != "Fuse" && !strips_front) return DecoderKind::kAtEnd;
    }
    if (type == "ByteLevel") {
      return steps.size() == 1 ? DecoderKind::kByteLevel : DecoderKind::kAtEnd;
    }
    joined = joined || type == "Fuse";
    last_differs = last_differs || type == "BPEDecoder";
  }
  return last_differs ? DecoderKind::kLastDiffers : DecoderKind::kGrowing;
}

}  // namespace

std::string DecoderChain::decode(std::vector<std::string> tokens) const {
  for (const auto& step : steps) step->apply(&tokens);
  return join(tokens, between);
}

DecoderChain read_decoder(const JsonField* field) {
  DecoderChain chain;
  if (field == nullptr) {
    chain.between = " ";
    return chain;
  }
  std::vector<JsonField> steps;
  collect(*field, &steps);
  for (const JsonField& step : steps) chain.steps.push_back(read_step(step));
  chain.kind = classify(steps);
  return chain;
}

int byte_of_fallback_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = hex_digit(token[3]);
  const int low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

void append_bytes_of_token(std::string_view token, std::string* out) {
  const size_t size = out->size();
  for (size_t offset = 0; offset < token.size();) {
    const int byte = alphabet_to_byte(next_utf8(token, &offset));
    if (byte < 0) {
      out->resize(size);
      out->append(token);
      return;
    }
    out->push_back(static_cast<char>(byte));
  }
}

size_t append_lossy(std::string_view bytes, OpenEnd open_end, std::string* out) {
  size_t at = 0;
  while (at < bytes.size()) {
    const unsigned char lead = static_cast<unsigned char>(bytes[at]);
    if (lead < 0x80) {
      out->push_back(bytes[at++]);
      continue;
    }
    // Well-formed UTF-8 (Unicode table 3-7): length and the limits of the second byte.
    size_t length = 0;
    unsigned low = 0x80;
    unsigned high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) length = 2;
    if (lead >= 0xE0 && lead <= 0xEF) length = 3;
    if (lead >= 0xF0 && lead <= 0xF4) length = 4;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    size_t good = 1;
    while (good < length && at + good < bytes.size()) {
      const unsigned byte = static_cast<unsigned char>(bytes[at + good]);
      if (byte < low || byte > high) break;
      low = 0x80;
      high = 0xBF;
      ++good;
    }
    if (length > 0 && good == length) {
      out->append(bytes.substr(at, length));
    } else if (length > 0 && at + good == bytes.size() && open_end == OpenEnd::kKeep) {
      return at;
    } else {
      out->append(kReplacement);
    }
    at += good;
  }
  return at;
}

}  // namespace galley::text::internal
