// ConfigKeys: checked reading of the members of one JSON object of a model folder.
//
// Borrows the object; errors name the file and the key. Plain reads; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/json.h"

namespace galley::model {

// Bounds beyond anything real; they keep every later product of sizes inside 64 bits.
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 65536;
constexpr int64_t kMaxPosition = int64_t{1} << 31;

class ConfigKeys {
 public:
  /// `where` names the object in errors.
  ConfigKeys(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  /// Error(kBadModel) about a member.
  [[noreturn]] void bad(std::string_view key, const std::string& what) const;
  /// Error(kUnsupported).
  [[noreturn]] void unsupported(const std::string& what) const;

  /// The member, or nullptr when it is missing or null.
  const Json* find(std::string_view key) const;
  /// It is there, and null.
  bool is_null(std::string_view key) const;

  /// An integer from `least` (size: 1) to `most`; without a fallback it must be there.
  int64_t size(std::string_view key, int64_t most) const;
  int64_t size(std::string_view key, int64_t most, int64_t fallback) const;
  int64_t integer(std::string_view key, int64_t least, int64_t most, int64_t fallback) const;
  double number(std::string_view key, double fallback) const;
  /// Above 0 and finite.
  double positive(std::string_view key, double fallback) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::string_view fallback) const;
  /// A token id or a list of them; empty when the key is missing.
  std::vector<int64_t> ids(std::string_view key) const;

  const Json& object() const { return object_; }
  const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
};

}  // namespace galley::model
