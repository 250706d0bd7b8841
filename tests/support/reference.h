// Where the reference values of the tests lie, and how their cases are counted.
//
// GALLEY_REFERENCE names the folder (default ../shared/reference beside the repository). When it is
// missing a test skips with that reason, or fails when GALLEY_REQUIRE_REFERENCE=1.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/core/json.h"

namespace galley::testing {

/// Path of `name` inside the reference folder; empty when it is not there.
std::string reference_path(const std::string& name);
/// Path of the SmolLM2-135M folder (GALLEY_SMOLLM2, made by scripts/fetch-model); empty when
/// missing.
std::string smollm2_path();
/// True when a missing reference is a failure.
bool reference_required();
/// A fresh directory for this test, removed by the process that made it at its end.
std::string scratch_directory(const std::string& name);
std::vector<Json> read_json_lines(const std::string& path);
/// Names of the entries of a directory, sorted, without . and ..
std::vector<std::string> list_directory(const std::string& path);

/// Counts cases of one reference test and prints "PREFIX: N passed, M refused by name".
class CaseCount {
 public:
  explicit CaseCount(std::string prefix) : prefix_(std::move(prefix)) {}
  ~CaseCount();
  void pass() { ++passed_; }
  void refuse(const std::string& name) { refused_.push_back(name); }

 private:
  std::string prefix_;
  int passed_ = 0;
  std::vector<std::string> refused_;
};

}  // namespace galley::testing

/// `variable` = the path, or skips (fails when required) the test.
#define GALLEY_NEED_PATH(variable, expression, what)                                     \
  const std::string variable = (expression);                                             \
  if (variable.empty()) {                                                                \
    if (::galley::testing::reference_required()) {                                       \
      FAIL() << what << " is missing, but GALLEY_REQUIRE_REFERENCE is set";              \
    }                                                                                    \
    GTEST_SKIP() << what << " is not here; set GALLEY_REFERENCE or see CONTRIBUTING.md"; \
  }
#define GALLEY_NEED_REFERENCE(variable, name) \
  GALLEY_NEED_PATH(variable, ::galley::testing::reference_path(name), "reference folder " name)
#define GALLEY_NEED_SMOLLM2(variable) \
  GALLEY_NEED_PATH(variable, ::galley::testing::smollm2_path(), "SmolLM2-135M")
