#include "engine/text/rows.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/text/dataset_shape.h"

namespace galley::text {
namespace {

// What ends the conversion of one row; caught by convert().
struct Problem {
  FaultKind kind;
  std::string text;
};

size_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  size_t size = 0;
  while (size < a.size() && size < b.size() && a[size] == b[size]) ++size;
  return size;
}

}  // namespace

LossOn parse_loss(std::string_view name) {
  for (const LossOn loss : {LossOn::kAssistant, LossOn::kCompletion, LossOn::kAll}) {
    if (loss_name(loss) == name) return loss;
  }
  throw Error(Reason::kBadConfig,
              cat("loss is \"assistant\", \"completion\" or \"all\", not \"", name, "\"",
                  did_you_mean(name, {"assistant", "completion", "all"})));
}

Truncation parse_truncation(std::string_view name) {
  for (const Truncation one : {Truncation::kKeepStart, Truncation::kKeepEnd}) {
    if (truncation_name(one) == name) return one;
  }
  throw Error(Reason::kBadConfig, cat("truncation is \"keep_start\" or \"keep_end\", not \"", name,
                                      "\"", did_you_mean(name, {"keep_start", "keep_end"})));
}

std::string_view loss_name(LossOn loss) {
  constexpr std::string_view kNames[] = {"assistant", "completion", "all"};
  return kNames[static_cast<size_t>(loss)];
}

std::string_view truncation_name(Truncation truncation) {
  return truncation == Truncation::kKeepStart ? "keep_start" : "keep_end";
}

std::string_view row_drop_name(RowDrop drop) {
  constexpr std::string_view kNames[] = {"", "no_target", "no_target_after_truncation"};
  return kNames[static_cast<size_t>(drop)];
}

// Ids with the weight of each in the loss; 0 = no loss.
struct RowTokenizer::Weighted {
  std::vector<int32_t> ids;
  std::vector<double> weights;
};

RowTokenizer::RowTokenizer(Tokenizer tokenizer, const ChatTemplate* chat_template,
                           SpecialTokens special, RowOptions options)
    : tokenizer_(std::move(tokenizer)), special_(std::move(special)), options_(options) {
  if (chat_template != nullptr) chat_template_ = *chat_template;
}

RowResult RowTokenizer::convert(const Json& row) const {
  const RowShape shape = check_row(row);
  if (shape.fault) return {{}, RowProblem{shape.fault->kind, shape.fault->text}};
  return convert(row, shape.form);
}

RowResult RowTokenizer::convert(const Json& row, RowForm form) const {
  const bool structured =
      chat_template_ && chat_template_->source().find("tool_calls") != std::string::npos;
  const PlainRow plain =
      plain_row(row, form, structured ? ToolCalls::kStructured : ToolCalls::kAsContent);
  RowResult result;
  try {
    switch (plain.shape) {
      case PlainRow::Shape::kText:
        result.row = finish(text(plain));
        break;
      case PlainRow::Shape::kStrings:
        result.row = finish(strings(plain));
        break;
      case PlainRow::Shape::kMessages:
        result.row = finish(messages(plain));
        break;
      case PlainRow::Shape::kPromptMessages:
        result.row = finish(prompt_messages(plain));
        break;
    }
  } catch (const Problem& problem) {
    result.problem = RowProblem{problem.kind, problem.text};
  } catch (const Error& error) {
    if (error.reason() != Reason::kBadTemplate) throw;
    result.problem = RowProblem{FaultKind::kTemplate, error.what()};
  }
  return result;
}

std::string RowTokenizer::with_end(const std::string& text) const {
  const auto end = special_.named.find("eos_token");
  if (end == special_.named.end() || end->second.empty()) {
    throw Error(Reason::kBadTokenizer,
                "the model names no eos_token (tokenizer_config.json or special_tokens_map.json), "
                "which ends rows of text and of prompt/completion strings");
  }
  return text.ends_with(end->second) ? text : text + end->second;
}

RowTokenizer::Weighted RowTokenizer::text(const PlainRow& row) const {
  Encoding encoding = tokenizer_.encode(with_end(row.text));
  const size_t size = encoding.ids.size();
  return {std::move(encoding.ids), std::vector<double>(size, 1.0)};
}

RowTokenizer::Weighted RowTokenizer::strings(const PlainRow& row) const {
  Encoding encoding = tokenizer_.encode(row.prompt + with_end(row.text));
  std::vector<double> weights(encoding.ids.size(), 1.0);
  if (options_.loss != LossOn::kAll) {
    // A token that merges across the border differs from the prompt's own and is a target.
    const size_t prompt = common_prefix(tokenizer_.encode(row.prompt).ids, encoding.ids);
    std::fill(weights.begin(), weights.begin() + static_cast<ptrdiff_t>(prompt), 0.0);
  }
  return {std::move(encoding.ids), std::move(weights)};
}

RenderedChat RowTokenizer::render(const PlainRow& row, size_t num_messages,
                                  GenerationPrompt prompt) const {
  if (!chat_template_) {
    throw Problem{FaultKind::kTemplate,
                  "rows of messages need a chat template, and the model has none; name one with "
                  "chat_template = FILE"};
  }
  ChatOptions options;
  options.add_generation_prompt = prompt == GenerationPrompt::kYes;
  options.tools = row.tools ? &*row.tools : nullptr;
  options.local_now = options_.local_now;
  options.sanitize = options_.sanitize;
  const Json::Array& all = row.messages.as_array();
  if (num_messages == all.size()) return chat_template_->render(row.messages, special_, options);
  const Json some(Json::Array(all.begin(), all.begin() + static_cast<ptrdiff_t>(num_messages)));
  return chat_template_->render(some, special_, options);
}

RowTokenizer::Weighted RowTokenizer::messages(const PlainRow& row) const {
  const RenderedChat chat = render(row, row.messages.as_array().size(), GenerationPrompt::kNo);
  Encoding encoding = encode_chat(tokenizer_, chat, options_.sanitize);
  std::vector<double> weights(encoding.ids.size(), 1.0);
  if (options_.loss != LossOn::kAll) weights = assistant_weights(row, chat, encoding);
  return {std::move(encoding.ids), std::move(weights)};
}

RowTokenizer::Weighted RowTokenizer::prompt_messages(const PlainRow& row) const {
  const RenderedChat chat = render(row, row.messages.as_array().size(), GenerationPrompt::kNo);
  Encoding encoding = encode_chat(tokenizer_, chat, options_.sanitize);
  std::vector<double> weights(encoding.ids.size(), 1.0);
  if (options_.loss == LossOn::kAll) return {std::move(encoding.ids), std::move(weights)};
  if (options_.loss == LossOn::kAssistant) {
    weights = assistant_weights(row, chat, encoding);
  } else if (std::any_of(row.weights.begin(), row.weights.end(), [](double w) { return w != 1; })) {
    throw Problem{FaultKind::kUnsupported,
                  "loss_weight in a prompt/completion row is not supported by this version unless "
                  "loss = \"assistant\""};
  }
  const Encoding prompt = encode_chat(
      tokenizer_, render(row, row.num_prompt_messages, GenerationPrompt::kYes), options_.sanitize);
  const size_t size = common_prefix(prompt.ids, encoding.ids);
  std::fill(weights.begin(), weights.begin() + static_cast<ptrdiff_t>(size), 0.0);
  return {std::move(encoding.ids), std::move(weights)};
}

RowTokenizer::Spans RowTokenizer::assistant_spans(const PlainRow& row,
                                                  const RenderedChat& chat) const {
  return chat_template_->has_generation_marks() ? chat.assistant_spans
                                                : spans_by_prefixes(row, chat);
}

// Byte where the answer of message `index` begins in `text`; nothing when renderings do not nest.
std::optional<size_t> RowTokenizer::turn_begin(const PlainRow& row, size_t index,
                                               const std::string& text) const {
  const std::string before = render(row, index, GenerationPrompt::kYes).text;
  if (text.starts_with(before)) return before.size();
  if (index > 0) return std::nullopt;
  // A first message has no conversation before it to prompt for (templates may write a default
  // system turn only when there is one): two different answers part where the answer begins.
  PlainRow twin = row;
  std::string texts[2];
  for (const int k : {0, 1}) {
    Json answer = Json::object();
    answer.set("role", "assistant").set("content", k == 0 ? "a" : "b");
    twin.messages.as_array()[0] = std::move(answer);
    texts[k] = render(twin, 1, GenerationPrompt::kNo).text;
  }
  const auto parted =
      std::mismatch(texts[0].begin(), texts[0].end(), texts[1].begin(), texts[1].end());
  const auto size = static_cast<size_t>(parted.first - texts[0].begin());
  if (size == texts[0].size() || text.compare(0, size, texts[0], 0, size) != 0) {
    return std::nullopt;
  }
  return size;
}

RowTokenizer::Spans RowTokenizer::spans_by_prefixes(const PlainRow& row,
                                                    const RenderedChat& chat) const {
  const Json::Array& all = row.messages.as_array();
  Spans spans;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].get_string("role") != "assistant") continue;
    const std::optional<size_t> begin = turn_begin(row, i, chat.text);
    const bool last = i + 1 == all.size();
    const std::string until = last ? chat.text : render(row, i + 1, GenerationPrompt::kNo).text;
    if (!begin || !chat.text.starts_with(until) || until.size() < *begin) {
      throw Problem{
          FaultKind::kTemplate,
          "the chat template has no {% generation %} marks, and what it writes for a "
          "turn changes with the turns around it, so the assistant's tokens cannot be "
          "found; use loss = \"all\" (or \"completion\" where rows have one), or a chat template "
          "with marks"};
    }
    spans.emplace_back(*begin, until.size());
  }
  return spans;
}

std::vector<double> RowTokenizer::assistant_weights(const PlainRow& row, const RenderedChat& chat,
                                                    const Encoding& encoding) const {
  const Spans spans = assistant_spans(row, chat);
  std::vector<double> span_weights(spans.size(), 1.0);
  if (!row.weights.empty()) {
    span_weights.clear();
    for (size_t i = 0; i < row.weights.size(); ++i) {
      const Json& message = row.messages.as_array()[i];
      if (message.get_string("role") == "assistant") span_weights.push_back(row.weights[i]);
    }
    if (span_weights.size() != spans.size()) {
      throw Problem{FaultKind::kUnsupported,
                    "loss_weight is not supported by this version with a chat template that marks "
                    "more or fewer spans than there are assistant turns"};
    }
  }
  std::vector<double> weights(encoding.ids.size(), 0.0);
  size_t first = 0;  // spans before it end at or before the token
  for (size_t token = 0; token < weights.size(); ++token) {
    while (first < spans.size() && spans[first].second <= encoding.begin[token]) ++first;
    for (size_t k = first; k < spans.size() && spans[k].first < encoding.end[token]; ++k) {
      weights[token] = span_weights[k];
    }
  }
  return weights;
}

TokenRow RowTokenizer::finish(Weighted weighted) const {
  TokenRow row;
  row.ids = std::move(weighted.ids);
  row.full_length = row.ids.size();
  bool graded = false;
  row.labels.resize(row.ids.size());
  for (size_t i = 0; i < row.ids.size(); ++i) {
    const double weight = weighted.weights[i];
    graded |= weight != 0 && weight != 1;
    row.labels[i] = weight == 0 ? kNoLoss : row.ids[i];
    row.full_targets += weight == 0 ? 0 : 1;
  }
  if (graded) row.loss_weights = std::move(weighted.weights);
  if (row.full_targets == 0) {
    row.dropped = RowDrop::kNoTarget;
    return row;
  }
  if (options_.max_length == 0 || row.ids.size() <= options_.max_length) return row;
  row.cut = true;
  const auto cut = [&](auto* values) {
    const auto surplus = static_cast<ptrdiff_t>(values->size() - options_.max_length);
    if (options_.truncation == Truncation::kKeepStart) {
      values->erase(values->end() - surplus, values->end());
    } else {
      values->erase(values->begin(), values->begin() + surplus);
    }
  };
  cut(&row.ids);
  cut(&row.labels);
  if (graded) cut(&row.loss_weights);
  const bool any = std::any_of(row.labels.begin(), row.labels.end(),
                               [](int32_t label) { return label != kNoLoss; });
  if (!any) row.dropped = RowDrop::kNoTargetAfterTruncation;
  return row;
}

Encoding encode_chat(const Tokenizer& tokenizer, const RenderedChat& chat, Sanitize sanitize) {
  EncodeOptions options;
  options.add_special_tokens = false;  // the template writes them
  if (sanitize == Sanitize::kNo) return tokenizer.encode(chat.text, options);
  Encoding all;
  const auto add = [&](size_t begin, size_t end, bool plain) {
    if (begin == end) return;
    std::vector<size_t> breaks;
    for (auto at = std::upper_bound(chat.text_breaks.begin(), chat.text_breaks.end(), begin);
         at != chat.text_breaks.end() && *at < end; ++at) {
      breaks.push_back(*at - begin);
    }
    options.text_breaks = breaks;
    options.special_as_text = plain;
    const Encoding part =
        tokenizer.encode(std::string_view(chat.text).substr(begin, end - begin), options);
    all.ids.insert(all.ids.end(), part.ids.begin(), part.ids.end());
    for (const size_t at : part.begin) all.begin.push_back(begin + at);
    for (const size_t at : part.end) all.end.push_back(begin + at);
  };
  size_t done = 0;
  for (const auto& [begin, end] : chat.plain_strings) {
    add(done, begin, false);
    add(begin, end, true);
    done = end;
  }
  add(done, chat.text.size(), false);
  return all;
}

std::string show_labels(const Tokenizer& tokenizer, const TokenRow& row, std::string_view on,
                        std::string_view off) {
  std::string out;
  StreamDecoder decoder(tokenizer);
  bool inside = false;
  for (size_t i = 0; i < row.ids.size(); ++i) {
    const bool loss = row.labels[i] != kNoLoss;
    if (loss != inside) {
      out += decoder.flush();
      out += loss ? on : off;
      inside = loss;
    }
    out += decoder.push(row.ids[i]);
  }
  return out + decoder.flush() + std::string(inside ? off : "");
}

}  // namespace galley::text
