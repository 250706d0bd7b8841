#include "engine/model/module_match.h"

#include <algorithm>
#include <cctype>
#include <regex>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::model {
namespace {

constexpr size_t kMaxPatternBytes = 1000;

/// Letters, digits, '_' and '.': what nearly all patterns are. Their dots match any character.
bool is_plain(std::string_view expression) {
  return std::all_of(expression.begin(), expression.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
}

bool plain_matches(std::string_view expression, std::string_view text) {
  return std::equal(expression.begin(), expression.end(), text.begin(), text.end(),
                    [](char pattern, char c) { return pattern == '.' || pattern == c; });
}

}  // namespace

bool path_ends_with(std::string_view path, std::string_view end) {
  if (!path.ends_with(end) || end.empty()) return false;
  return path.size() == end.size() || path[path.size() - end.size() - 1] == '.';
}

struct ModulePattern::Compiled {
  Extent extent = Extent::kWholePath;
  std::string plain;  // instead of the expression, for speed: folders may hold hundreds of them
  std::regex regex;
};

ModulePattern::ModulePattern(const std::string& expression, Extent extent)
    : compiled_(std::make_unique<Compiled>()) {
  if (expression.size() > kMaxPatternBytes) {
    throw Error(Reason::kUnsupported, cat("module pattern of ", expression.size(),
                                          " bytes; patterns may have ", kMaxPatternBytes));
  }
  compiled_->extent = extent;
  if (!expression.empty() && is_plain(expression)) {
    compiled_->plain = expression;
    return;
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
  const std::string& plain = compiled_->plain;
  if (plain.empty()) return std::regex_match(path, compiled_->regex);
  if (compiled_->extent == Extent::kWholePath) return plain_matches(plain, path);
  if (path.size() < plain.size()) return false;
  const size_t begin = path.size() - plain.size();
  return (begin == 0 || path[begin - 1] == '.') &&
         plain_matches(plain, std::string_view(path).substr(begin));
}

}  // namespace galley::model
