#include "engine/core/journal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley {
namespace {

class JournalTest : public ::testing::Test {
 protected:
  JournalTest() : path_(std::filesystem::temp_directory_path() / cat("galley-journal-", getpid())) {
    remove_file_if_exists(path_);
  }
  ~JournalTest() override { remove_file_if_exists(path_); }
  std::string path_;
};

Json numbered(int number) { return Json::object().set("number", number); }

TEST_F(JournalTest, records_come_back_in_order) {
  EXPECT_TRUE(read_journal(path_).empty());
  {
    Journal journal(path_);
    journal.append(numbered(1));
    journal.append(numbered(2));
  }
  Journal(path_).append(numbered(3));
  const std::vector<Json> records = read_journal(path_);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[2].get_int("number"), 3);
}

TEST_F(JournalTest, a_torn_last_line_is_ignored_and_then_cut_off) {
  Journal(path_).append(numbered(1));
  std::ofstream(path_, std::ios::app) << "{\"number\": 2";
  EXPECT_EQ(read_journal(path_).size(), 1u);
  Journal(path_).append(numbered(3));
  const std::vector<Json> records = read_journal(path_);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].get_int("number"), 3);
}

TEST_F(JournalTest, a_broken_line_in_the_middle_is_an_error_that_names_it) {
  std::ofstream(path_) << "{\"number\":1}\nnonsense\n{\"number\":3}\n";
  try {
    read_journal(path_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kIo);
    EXPECT_NE(std::string(error.what()).find(":2"), std::string::npos);
  }
}

TEST_F(JournalTest, a_full_disk_leaves_the_whole_records) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  Journal journal(path_);
  journal.append(numbered(1));
  rlimit small = before;
  small.rlim_cur = 1000;  // writing beyond fails as a quota does
  setrlimit(RLIMIT_FSIZE, &small);
  Reason reason = Reason::kOk;
  try {
    journal.append(Json::object().set("text", std::string(5000, 'x')));
  } catch (const Error& error) {
    reason = error.reason();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(reason, Reason::kDiskFull);
  EXPECT_EQ(read_journal(path_).size(), 1u);
  journal.append(numbered(2));
  EXPECT_EQ(read_journal(path_).size(), 2u);
}

}  // namespace
}  // namespace galley
