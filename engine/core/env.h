// The only reader of environment variables. Everything else takes an Environment value, so that
// Slurm, MPI and device discovery can be tested with made-up environments.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace galley {

class Environment {
 public:
  Environment() = default;
  explicit Environment(std::map<std::string, std::string> values) : values_(std::move(values)) {}
  /// A copy of this process's environment.
  static Environment current();
  std::optional<std::string> get(const std::string& name) const;
  bool has(const std::string& name) const { return values_.contains(name); }
  const std::map<std::string, std::string>& all() const { return values_; }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace galley
