// ConfigValue: a parsed TOML (or JSON) file whose every value knows its line; the only home of the
// TOML library. Readers take what they know; whatever is left over is an unknown key.
//
// Plain values; no thread rules.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/error.h"

namespace galley {

struct ConfigValue {
  enum class Kind { kString, kInt, kDouble, kBool, kArray, kTable, kTime };
  Kind kind = Kind::kTable;
  std::string text;                                          // kString, and kTime as written
  int64_t integer = 0;                                       // kInt
  double number = 0;                                         // kInt and kDouble
  bool boolean = false;                                      // kBool
  std::vector<ConfigValue> items;                            // kArray
  std::vector<std::pair<std::string, ConfigValue>> members;  // kTable, in file order
  int line = 0, column = 0;  // of the value (of the key for tables); 0: not from a file

  const ConfigValue* find(std::string_view key) const;
  /// "a string", "an integer", ...
  std::string_view kind_name() const;
  /// TOML text of the value on one line.
  std::string to_toml() const;
};

/// One fault of a file, for readers that report all of them in one pass.
struct ConfigFault {
  Reason reason = Reason::kBadConfig;
  int line = 0;
  std::string message;  // without position
};
/// "file:line: message" of each, one per line.
std::string format_faults(const std::string& file, const std::vector<ConfigFault>& faults);

/// Parses TOML text. Error(kBadConfig) "where:line:column: ...". Nesting is limited.
ConfigValue parse_toml(std::string_view text, const std::string& where);
/// Reads a file: JSON if its first non-blank character is '{', else TOML. kMissingPath, kBadConfig.
ConfigValue read_config_file(const std::string& path);

/// `unknown key "k" in SECTION; did you mean "x"?` for every key of `table` that is not in `known`.
void check_known_keys(const ConfigValue& table, const std::string& section,
                      const std::vector<std::string>& known, std::vector<ConfigFault>* faults);

}  // namespace galley
