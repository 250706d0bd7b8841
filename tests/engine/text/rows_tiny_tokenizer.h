// A byte-level tokenizer of 256 bytes, a few merges and ChatML's special tokens, and templates for
// it: enough for tests of rows that must run without the reference.
#pragma once

#include <string>
#include <vector>

#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace galley::text::testing {

/// GPT-2's letter for a byte.
inline std::string byte_letter(int byte) {
  static const std::vector<char32_t> kLetters = [] {
    std::vector<char32_t> letters(256);
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable =
          (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
      letters[static_cast<size_t>(b)] = printable ? static_cast<char32_t>(b) : next++;
    }
    return letters;
  }();
  std::string out;
  append_utf8(&out, kLetters[static_cast<size_t>(byte)]);
  return out;
}

/// Ids: 0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|>, 3.. bytes, 259.. "un", "be", "\n\n".
inline Tokenizer tiny_tokenizer() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary.set(byte_letter(byte), 3 + byte);
  const std::string line_end = byte_letter('\n');
  Json merges = Json::array();
  int id = 259;
  for (const auto& [a, b] : std::vector<std::pair<std::string, std::string>>{
           {"u", "n"}, {"b", "e"}, {line_end, line_end}}) {
    vocabulary.set(a + b, id++);
    merges.push(a + " " + b);
  }
  Json added = Json::array();
  id = 0;
  for (const char* text : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    vocabulary.set(text, id);
    Json token = Json::object();
    token.set("id", id++).set("content", text).set("special", true).set("normalized", false);
    token.set("single_word", false).set("lstrip", false).set("rstrip", false);
    added.push(std::move(token));
  }
  Json model = Json::object();
  model.set("type", "BPE").set("dropout", nullptr).set("unk_token", nullptr);
  model.set("continuing_subword_prefix", nullptr).set("end_of_word_suffix", nullptr);
  model.set("fuse_unk", false).set("byte_fallback", false).set("ignore_merges", false);
  model.set("vocab", std::move(vocabulary)).set("merges", std::move(merges));
  Json byte_level = Json::object();
  byte_level.set("type", "ByteLevel").set("add_prefix_space", false).set("trim_offsets", true);
  byte_level.set("use_regex", false);
  Json root = Json::object();
  root.set("version", "1.0").set("truncation", nullptr).set("padding", nullptr);
  root.set("added_tokens", std::move(added)).set("normalizer", nullptr);
  root.set("pre_tokenizer", byte_level).set("post_processor", nullptr).set("decoder", byte_level);
  root.set("model", std::move(model));
  return Tokenizer::parse(root.dump(), "tiny tokenizer");
}

inline SpecialTokens tiny_special_tokens() {
  return {{{"eos_token", "<|im_end|>"}, {"bos_token", "<|im_start|>"}},
          {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}};
}

inline ChatTemplate chatml(const std::string& body) {
  return ChatTemplate::parse(
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}" + body +
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
      "chatml");
}
inline ChatTemplate plain_chatml() { return chatml("{{ m['content'] + '<|im_end|>\\n' }}"); }
inline ChatTemplate marked_chatml() {
  return chatml(
      "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>\\n' }}"
      "{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>\\n' }}{% endif %}");
}

}  // namespace galley::text::testing
