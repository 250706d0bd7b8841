// Reading JSON-lines input of commands, and the clock option they share.
#pragma once

#include <ctime>
#include <functional>
#include <iosfwd>
#include <string>

#include "engine/core/json.h"

namespace galley::launcher {

/// Calls `take` for each non-blank line of the file `input` (or of `in` when it is empty).
/// Error(kBadData) "FILE line N: ..." for a line that is no JSON object.
void for_each_record(const std::string& input, std::istream& in,
                     const std::function<void(const Json&)>& take);

/// "2025-03-14T09:26:53" in local time, or now when empty. Error(kUsage) for anything else.
std::tm clock_of(const std::string& now);

}  // namespace galley::launcher
