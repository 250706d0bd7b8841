// One row's JSON text: strict RFC 8259, with the kind and place of what is wrong.
//
// LineParser takes simdjson's fast path and looks for the fault with scan_json() only when that
// fails. The only home of simdjson. A parser owns buffers and belongs to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/core/json.h"
#include "engine/text/dataset.h"

namespace galley::text {

inline constexpr int kMaxRowDepth = 256;

struct LineFault {
  FaultKind kind = FaultKind::kJsonSyntax;
  size_t offset = 0;  // bytes from the start of the text
  std::string text;
};

class LineParser {
 public:
  LineParser();
  ~LineParser();
  /// Fills `value`, or returns what is wrong: nul_byte, invalid_utf8, json_syntax, too_deep,
  /// duplicate_key, invalid_unicode, wrong_value (a number beyond double), in this order.
  std::optional<LineFault> parse(std::string_view text, Json* value);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The first syntax fault of `text`; without one the first of too_deep, duplicate_key and
/// invalid_unicode. Well-formed UTF-8 is taken for granted. Not recursive.
std::optional<LineFault> scan_json(std::string_view text);

}  // namespace galley::text
