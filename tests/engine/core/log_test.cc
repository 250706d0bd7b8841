#include "engine/core/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"

namespace galley {
namespace {

class LogTest : public ::testing::Test {
 protected:
  LogTest() : folder_(std::filesystem::temp_directory_path() / cat("galley-log-", getpid())) {
    std::filesystem::remove_all(folder_);
    make_directories(folder_);
  }
  ~LogTest() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(LogTest, lines_hold_time_origin_job_level_and_text) {
  const std::string path = path_join(folder_, "a.log");
  {
    Log log({.path = path, .origin = "n1 rank 3"});
    log.info("hello {} there");
    log.write(LogLevel::kWarning, "legal-8b", "two\nlines\x1b[31m");
    log.write(LogLevel::kDebug, "", "not shown");
  }
  const std::string text = read_file(path);
  const std::vector<std::string> lines = split(trim(text), '\n');
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].substr(10, 1), "T");
  EXPECT_NE(lines[0].find("Z n1 rank 3 info: hello {} there"), std::string::npos);
  EXPECT_NE(lines[1].find("n1 rank 3 [legal-8b] warning: two lines [31m"), std::string::npos);
}

TEST_F(LogTest, pain_P181_the_size_is_bounded) {
  Log log(
      {.path = path_join(folder_, "a.log"), .origin = "x", .max_bytes = 10000, .num_old_files = 2});
  for (int i = 0; i < 2000; ++i) log.info(std::string(100, 'x'));
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    bytes += entry.file_size();
  }
  EXPECT_GT(bytes, 10000u);
  EXPECT_LE(bytes, 30000u);
}

TEST_F(LogTest, an_impossible_path_is_an_error) {
  try {
    Log log({.path = "/dev/null/a.log", .origin = "x"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kCannotCreate);
  }
}

}  // namespace
}  // namespace galley
