// Records: what `galley tokenize`, `render` and `data` write for each line they read.
//
// JSON values in, JSON values out; the reader's `id` passes through unchanged. What is wrong with a
// record becomes its `error`; only what is wrong with tokenizer, template or file is thrown.
// Pure; safe from any thread.
#pragma once

#include <functional>

#include "engine/core/json.h"
#include "engine/text/chat_template.h"
#include "engine/text/dataset.h"
#include "engine/text/rows.h"
#include "engine/text/tokenizer.h"

namespace galley::text {

enum class AddSpecial { kYes, kNo };

/// {id, text} -> {id, ids, text, pieces}: `text` decoded again with special tokens kept, `pieces`
/// the streamed text of each id; `flush` follows where the last id leaves bytes behind. {id, ids}
/// takes ids instead of a text. {id, error} for a record that is neither.
Json tokenize_record(const Tokenizer& tokenizer, const Json& in, AddSpecial add_special);

struct RenderRecordOptions {
  SpecialTokens special;  // of the model; a record's own replace them
  std::tm local_now{};
};

/// {id, messages, tools, add_generation_prompt, continue_final_message, special_tokens, kwargs} ->
/// {id, text} with assistant_spans (code points) where the template has marks, or {id, error}.
/// `special_tokens` is an object of names and texts and replaces the model's; `kwargs` an object of
/// template arguments; other keys of the record are template arguments too.
Json render_record(const ChatTemplate& chat_template, const Json& in,
                   const RenderRecordOptions& options);

/// One record: {line, ids, labels} with loss_weights where some are neither 0 nor 1, {line,
/// dropped: reason}, or {line, error: {line, kind, text}}.
Json data_record(uint64_t line, const RowResult& result);

enum class DataView { kIds, kLabels };

/// All records of a file in the order of its lines, faults included. With kLabels each row's record
/// also has `shown`, its text with the tokens that have loss between [[ and ]].
/// Returns the number of errors. Read the data set with max_faults large enough to store them all.
uint64_t data_records(const Dataset& dataset, const RowTokenizer& rows, DataView view,
                      const std::function<void(const Json&)>& write);

}  // namespace galley::text
