#include "tests/support/reference.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "engine/core/env.h"
#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"

namespace galley::testing {
namespace {

std::string existing(const std::string& path) { return path_exists(path) ? path : ""; }

std::string variable_or(const char* name, const std::string& fallback) {
  return Environment::current().get(name).value_or(fallback);
}

}  // namespace

std::string reference_path(const std::string& name) {
  return existing(path_join(variable_or("GALLEY_REFERENCE", "../shared/reference"), name));
}

std::string smollm2_path() {
  return existing(variable_or("GALLEY_SMOLLM2", ".models/smollm2-135m"));
}

bool reference_required() { return variable_or("GALLEY_REQUIRE_REFERENCE", "0") == "1"; }

std::string scratch_directory(const std::string& name) {
  struct Root {
    std::string path =
        cat(std::filesystem::temp_directory_path().string(), "/galley-test-", getpid());
    pid_t owner = getpid();
    ~Root() {
      std::error_code ignored;
      if (owner == getpid()) std::filesystem::remove_all(path, ignored);
    }
  };
  static Root root;
  static int count = 0;
  const std::string path = cat(root.path, "/", name, "-", count++);
  make_directories(path);
  return path;
}

std::vector<Json> read_json_lines(const std::string& path) {
  std::vector<Json> values;
  int line_number = 0;
  for (const std::string& line : split(read_file(path), '\n')) {
    ++line_number;
    if (trim(line).empty()) continue;
    values.push_back(parse_json_or_throw(line, cat(path, " line ", line_number), Reason::kBadData));
  }
  return values;
}

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

CaseCount::~CaseCount() {
  std::printf("[ CASES    ] %s: %d passed, %zu refused by name%s%s\n", prefix_.c_str(), passed_,
              refused_.size(), refused_.empty() ? "" : ": ", join(refused_, ", ").c_str());
}

}  // namespace galley::testing
