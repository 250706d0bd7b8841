#include "engine/core/env.h"

#include <unistd.h>

#include <string_view>

namespace galley {

Environment Environment::current() {
  std::map<std::string, std::string> values;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equal = text.find('=');
    if (equal != std::string_view::npos) {
      values.emplace(text.substr(0, equal), text.substr(equal + 1));
    }
  }
  return Environment(std::move(values));
}

std::optional<std::string> Environment::get(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

}  // namespace galley
