// Files of commands' tests: a job on the example's model and data, in a scratch folder.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "tests/support/reference.h"

namespace galley::launcher::testing {

inline void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

inline std::string written(const std::string& name, const std::string& text) {
  const std::string path = path_join(galley::testing::scratch_directory("command"), name);
  write_file_atomically(path, text);
  return path;
}

/// A job file whose one job takes the example's model and data, with more lines.
inline std::string job_file(const std::string& lines, const std::string& model = "") {
  const std::string examples = std::filesystem::absolute("examples").string();
  return written("jobs.toml", cat("[[train]]\nname = \"a\"\nmodel = \"",
                                  model.empty() ? examples + "/tiny-llama" : model, "\"\ndata = \"",
                                  examples, "/data/units.jsonl\"\n", lines));
}

}  // namespace galley::launcher::testing
