// Which modules a name, an end of a path, or a regular expression means, in PEFT's way.
//
// Plain values. Patterns come from adapter folders, so they are untrusted: they are limited in
// length and matched in polynomial time.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace galley::model {

/// True when `path` is `end` or ends with "." + `end`.
bool path_ends_with(std::string_view path, std::string_view end);

class ModulePattern {
 public:
  enum class Extent {
    kWholePath,  // the expression matches the whole path (target_modules as one string)
    kPathEnd,    // it matches what follows some dot, or the whole path (rank_pattern)
  };
  /// Error(kUnsupported) when the expression is not one that we can match.
  ModulePattern(const std::string& expression, Extent extent);
  ~ModulePattern();
  ModulePattern(ModulePattern&&) noexcept;
  bool matches(const std::string& path) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace galley::model
