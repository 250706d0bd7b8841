// What a row must look like: which form its keys name, and whether its values fit that form.
//
// Pure functions; safe from any thread.
#pragma once

#include <optional>
#include <string>

#include "engine/core/json.h"
#include "engine/text/dataset.h"

namespace galley::text {

struct ShapeFault {
  FaultKind kind = FaultKind::kWrongType;
  std::string text;
};

struct RowShape {
  RowForm form = RowForm::kMessages;
  /// Of several faults the one whose kind comes first in FaultKind.
  std::optional<ShapeFault> fault;
  /// A row of turns in which no assistant turn can have loss.
  bool without_assistant = false;
};

RowShape check_row(const Json& row);

}  // namespace galley::text
