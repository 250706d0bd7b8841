#include "engine/model/module_match.h"

#include <regex>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::model {
namespace {

constexpr size_t kMaxPatternBytes = 1000;

}  // namespace

bool path_ends_with(std::string_view path, std::string_view end) {
  if (!path.ends_with(end) || end.empty()) return false;
  return path.size() == end.size() || path[path.size() - end.size() - 1] == '.';
}

struct ModulePattern::Compiled {
  std::regex regex;
};

ModulePattern::ModulePattern(const std::string& expression, Extent extent)
    : compiled_(std::make_unique<Compiled>()) {
  if (expression.size() > kMaxPatternBytes) {
    throw Error(Reason::kUnsupported, cat("module pattern of ", expression.size(),
                                          " bytes; patterns may have ", kMaxPatternBytes));
  }
  const std::string whole =
      extent == Extent::kPathEnd ? "(?:.*\\.)?(?:" + expression + ")" : expression;
  try {
    // __polynomial: the automaton form, which no pattern can drive into exponential time.
    compiled_->regex.assign(whole, std::regex::ECMAScript | std::regex_constants::__polynomial);
  } catch (const std::regex_error& error) {
    throw Error(Reason::kUnsupported,
                cat("module pattern \"", expression, "\" cannot be used: ", error.what()));
  }
}
ModulePattern::~ModulePattern() = default;
ModulePattern::ModulePattern(ModulePattern&&) noexcept = default;

bool ModulePattern::matches(const std::string& path) const {
  return std::regex_match(path, compiled_->regex);
}

}  // namespace galley::model
