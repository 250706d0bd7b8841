// RowTokenizer: one checked row -> input ids and labels, by the rules of TRL 1.16's SFTTrainer
// where it has any, and this project's own for the rest.
//
// Which tokens have loss is known from byte offsets of the rendered text, never from searching ids:
// {% generation %} marks of the chat template where it has them, else by rendering the conversation
// up to each assistant turn. Immutable after construction; convert() may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/json.h"
#include "engine/text/chat_template.h"
#include "engine/text/dataset.h"
#include "engine/text/rows_messages.h"
#include "engine/text/tokenizer.h"

namespace galley::text {

inline constexpr int32_t kNoLoss = -100;

/// Which tokens have loss. Rows of plain text always have loss on every token.
enum class LossOn {
  kAssistant,   // assistant turns; of prompt/completion rows those inside the completion
  kCompletion,  // the whole completion; of rows without one the assistant turns
  kAll,         // every token
};
enum class Truncation { kKeepStart, kKeepEnd };

/// "assistant", "completion", "all" / "keep_start", "keep_end"; Error(kBadConfig) otherwise.
LossOn parse_loss(std::string_view name);
Truncation parse_truncation(std::string_view name);
std::string_view loss_name(LossOn loss);
std::string_view truncation_name(Truncation truncation);

struct RowOptions {
  LossOn loss = LossOn::kAssistant;
  Truncation truncation = Truncation::kKeepStart;
  size_t max_length = 0;  // tokens; 0 = no bound
  /// Special-token strings inside messages stay text (kYes), or become special tokens (kNo, TRL's
  /// way). Those of plain text and of prompt strings are special tokens always.
  Sanitize sanitize = Sanitize::kYes;
  std::tm local_now{};  // the clock of the chat template
};

enum class RowDrop { kNo, kNoTarget, kNoTargetAfterTruncation };
/// "", "no_target", "no_target_after_truncation".
std::string_view row_drop_name(RowDrop drop);

struct TokenRow {
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;       // the id, or kNoLoss
  std::vector<double> loss_weights;  // of each token; empty when all are 0 or 1
  size_t full_length = 0;            // before truncation
  size_t full_targets = 0;
  RowDrop dropped = RowDrop::kNo;  // then ids and labels are those that would have been
  bool cut = false;
};

struct RowProblem {
  FaultKind kind = FaultKind::kTemplate;
  std::string text;
};

struct RowResult {
  TokenRow row;
  std::optional<RowProblem> problem;  // then `row` is empty
};

class RowTokenizer {
 public:
  /// `chat_template` may be null: rows of turns are then a problem of kind `template`.
  RowTokenizer(Tokenizer tokenizer, const ChatTemplate* chat_template, SpecialTokens special,
               RowOptions options);

  /// Converts a row that check_row() passed. Error(kBadTokenizer) when an end token is needed and
  /// the model names none.
  RowResult convert(const Json& row, RowForm form) const;
  /// Checks the row's shape first.
  RowResult convert(const Json& row) const;

  const Tokenizer& tokenizer() const { return tokenizer_; }
  const ChatTemplate* chat_template() const { return chat_template_ ? &*chat_template_ : nullptr; }
  const RowOptions& options() const { return options_; }
  const SpecialTokens& special() const { return special_; }

 private:
  struct Weighted;
  using Spans = std::vector<std::pair<size_t, size_t>>;
  enum class GenerationPrompt { kNo, kYes };

  Weighted text(const PlainRow& row) const;
  Weighted strings(const PlainRow& row) const;
  Weighted messages(const PlainRow& row) const;
  Weighted prompt_messages(const PlainRow& row) const;
  RenderedChat render(const PlainRow& row, size_t num_messages, GenerationPrompt prompt) const;
  std::string with_end(const std::string& text) const;
  Spans assistant_spans(const PlainRow& row, const RenderedChat& chat) const;
  Spans spans_by_prefixes(const PlainRow& row, const RenderedChat& chat) const;
  std::optional<size_t> turn_begin(const PlainRow& row, size_t index,
                                   const std::string& text) const;
  std::vector<double> assistant_weights(const PlainRow& row, const RenderedChat& chat,
                                        const Encoding& encoding) const;
  TokenRow finish(Weighted weighted) const;

  Tokenizer tokenizer_;
  std::optional<ChatTemplate> chat_template_;
  SpecialTokens special_;
  RowOptions options_;
};

/// Ids of a rendered conversation, as training and inference both need them: nothing is added, and
/// with kYes the special-token strings of messages are encoded alone, as plain text (in the way of
/// transformers' sanitize_control_tokens).
Encoding encode_chat(const Tokenizer& tokenizer, const RenderedChat& chat, Sanitize sanitize);

/// The row's tokens as text for people: those with loss between `on` and `off`.
std::string show_labels(const Tokenizer& tokenizer, const TokenRow& row, std::string_view on = "[[",
                        std::string_view off = "]]");

}  // namespace galley::text
