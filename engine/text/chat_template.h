// ChatTemplate: the Jinja chat template of a model, parsed once, rendered for each conversation.
//
// Follows apply_chat_template of transformers 5.24 (checks before the template, sandbox, marks of
// {% generation %}, sanitize_control_tokens). Templates are untrusted text: rendering is bounded in
// steps, depth and output (jinja_limits.h) and can reach nothing outside its arguments. A parsed
// template is immutable; render() may be called from any number of threads. Failures are
// Error(kBadTemplate) unless said.
#pragma once

#include <cstddef>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/json.h"

namespace galley::text {

/// Special tokens of a tokenizer, as the template and the sanitiser need them.
struct SpecialTokens {
  std::map<std::string, std::string> named;  // bos_token, eos_token, ...: variables of the template
  std::vector<std::string> strings;          // the text of every special token
};

/// From tokenizer_config.json and special_tokens_map.json of a model folder (a string, or an object
/// with `content`); `strings` also has added_tokens_decoder's and tokenizer.json's special tokens.
/// Files that are absent count as empty; Error(kBadTokenizer) for one that is broken.
SpecialTokens load_special_tokens(const std::string& model_folder);

/// Whether the last message is left open, so that a model goes on writing it.
struct ContinueFinal {
  enum class Mode { kNo, kYes, kField };
  Mode mode = Mode::kNo;
  std::string field;  // kField: the field of the last message that stays open
};

enum class Sanitize {
  kYes,  // special-token strings inside messages and tools stay plain text (text_breaks)
  kNo,   // as a bare template engine renders them
};

/// Options of one rendering.
struct ChatOptions {
  bool add_generation_prompt = false;
  ContinueFinal continue_final;
  const Json* tools = nullptr;  // none when null; an empty list stays an empty list
  Json extra = Json::object();  // further variables, e.g. enable_thinking
  std::tm local_now{};          // what strftime_now() prints; tm_wday and tm_yday are computed
  Sanitize sanitize = Sanitize::kYes;
};

struct RenderedChat {
  std::string text;
  /// Byte ranges [first, second) of {% generation %} blocks in order; empty when there are none.
  std::vector<std::pair<size_t, size_t>> assistant_spans;
  /// Byte offsets, ascending, each inside a special-token string that came from a message or a
  /// tool: a tokenizer must not match a special token across one of them.
  std::vector<size_t> text_breaks;
  /// Byte ranges of those strings where they came through whole. transformers encodes each of them
  /// alone, as plain text, and what lies between them by the usual rules.
  std::vector<std::pair<size_t, size_t>> plain_strings;
};

namespace jinja {
class Program;
}

class ChatTemplate {
 public:
  /// Throws Error(kBadTemplate) "WHERE:line: ...".
  static ChatTemplate parse(std::string source, std::string where);
  /// The template of a file.
  static ChatTemplate load(const std::string& path);
  /// chat_template.jinja of a model folder, else "chat_template" of its tokenizer_config.json (a
  /// string, or a list of named ones: "default", else the only one). Error(kMissingPath) with the
  /// remedy when the model has none.
  static ChatTemplate load_for_model(const std::string& model_folder);

  /// True when the template has {% generation %} blocks.
  bool has_generation_marks() const;
  /// Renders a list of messages. Throws when the template refuses them (the text of its
  /// raise_exception is kept), when an option contradicts another, or when a bound is hit.
  RenderedChat render(const Json& messages, const SpecialTokens& special,
                      const ChatOptions& options) const;

  const std::string& source() const { return source_; }
  const std::string& where() const { return where_; }
  /// Fingerprint of the source.
  std::string hash() const;

 private:
  ChatTemplate(std::string source, std::string where);

  std::string source_;
  std::string where_;
  std::shared_ptr<const jinja::Program> program_;  // shared: immutable, copies are cheap
};

}  // namespace galley::text
