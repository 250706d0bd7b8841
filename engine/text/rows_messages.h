// A row of any form, brought to one of three shapes: plain text, prompt and completion strings, or
// a conversation (with the number of messages that are only prompt).
//
// Pure; takes rows that check_row() passed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/core/json.h"
#include "engine/text/dataset.h"

namespace galley::text {

struct PlainRow {
  enum class Shape { kText, kStrings, kMessages, kPromptMessages };
  Shape shape = Shape::kText;
  std::string prompt;             // kStrings
  std::string text;               // kText: the text; kStrings: the completion
  Json messages = Json::array();  // kMessages, kPromptMessages
  size_t num_prompt_messages = 0;
  std::optional<Json> tools;    // a list that is not empty
  std::vector<double> weights;  // loss_weight of each message; empty when no message has one
};

/// Whether the chat template writes `tool_calls`; if not, calls stay plain content.
enum class ToolCalls { kStructured, kAsContent };

PlainRow plain_row(const Json& row, RowForm form, ToolCalls tool_calls);

}  // namespace galley::text
