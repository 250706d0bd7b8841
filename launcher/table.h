// Plain text tables for terminals and logs: columns as wide as their widest cell.
#pragma once

#include <string>
#include <vector>

namespace galley::launcher {

class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  /// Lines with two blanks between columns and no trailing blanks.
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace galley::launcher
