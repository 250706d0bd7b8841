// Marks around the special-token strings that messages contain, so that after rendering galley
// knows which ones the template wrote and which ones are text of the user.
//
// Two characters that occur in none of the inputs stand before and behind each such string while
// the template runs; take_marks() removes them again.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/core/json.h"
#include "engine/text/chat_template.h"

namespace galley::text {

struct ControlMarks {
  std::string open, close;  // UTF-8
  bool empty() const { return open.empty(); }
};

/// Marks that occur in none of `texts`; taken from the noncharacters U+FDD0 to U+FDEF, or beyond
/// them where the inputs use those up.
ControlMarks choose_marks(const std::vector<const Json*>& inputs, const std::string& source);

/// `value` with every special-token string inside its strings (not its keys) marked. Of tokens
/// that begin at the same place the longest counts.
Json mark_control_strings(const Json& value, const std::vector<std::string>& tokens,
                          const ControlMarks& marks);

/// Removes the marks from chat->text, moves the spans, and fills text_breaks and plain_strings.
void take_marks(const ControlMarks& marks, RenderedChat* chat);

}  // namespace galley::text
