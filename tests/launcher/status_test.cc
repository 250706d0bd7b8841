#include "launcher/status.h"

#include <gtest/gtest.h>

#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "tests/support/reference.h"

namespace galley::launcher {
namespace {

constexpr double kNow = 1.9e9;

RunStatus one_running_job() {
  JobRow row;
  row.name = "legal-8b";
  row.state = JobState::kRunning;
  row.place = "n1:gpu0-1 a100-40gb (tp 2)";
  row.progress.step = 120;
  row.progress.total_steps = 1840;
  row.progress.loss = 1.2034;
  row.progress.tokens_per_second = 6100;
  row.seconds_left = 10680;
  row.predicted_bytes = uint64_t{31} << 30;
  row.attempt_peak_bytes = row.totals.peak_bytes = uint64_t{30} << 30;
  row.totals.restarts = 1;
  JobRow waiting;
  waiting.name = "tickets";
  waiting.reason = "waits for a GPU";
  return {.time = kNow, .attempt = 2, .host = "n1", .slurm_job = "4711", .jobs = {row, waiting}};
}

/// A run directory with this status file.
std::string run_with(const std::string& status) {
  const std::string path = testing::scratch_directory("status");
  RunDirectory{path}.create();
  if (!status.empty()) replace_small_file(RunDirectory{path}.status(), status);
  return path;
}

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

TEST(Status, ComesBackAsItWasWritten) {
  const RunStatus status = one_running_job();
  const std::string run = run_with(to_json(status).dump());
  const FoundStatus found = read_status(run);
  ASSERT_TRUE(found.status.has_value());
  EXPECT_FALSE(found.record.has_value());
  EXPECT_EQ(to_json(*found.status).dump(), to_json(status).dump());
}

TEST(Status, TableHasPlaceSpeedMemoryAndTimeLeft) {
  const FoundStatus found{.status = one_running_job(), .record = std::nullopt};
  const std::string text = status_text("runs/jobs", found, kNow + 2);
  for (const char* part :
       {"start 2, coordinated on n1, Slurm job 4711, as of 2.0 s ago", "n1:gpu0-1 a100-40gb (tp 2)",
        "120/1840", "1.2034", "6.1 k", "30.0 GiB of 31.0 GiB", "2 h 58 min", "waiting"}) {
    expect_in(text, part);
  }
  EXPECT_EQ(text.find("no news"), std::string::npos);
}

TEST(Status, SaysWhenARunIsSilent) {
  const FoundStatus found{.status = one_running_job(), .record = std::nullopt};
  expect_in(status_text("runs/jobs", found, kNow + 60), "busy, stopped, or was killed");
  expect_in(status_text("runs/jobs", found, kNow + 3600), "the same command continues it");
}

TEST(Status, AnEndedRunSaysHow) {
  const std::string run = run_with(to_json(one_running_job()).dump());
  write_run_record(RunDirectory{run},
                   {.reason = Reason::kJobFailed, .code = 3, .text = "1 of 2 jobs failed"});
  const FoundStatus found = read_status(run);
  ASSERT_TRUE(found.record.has_value());
  expect_in(status_text(run, found, kNow + 3600), "ended with code 3: 1 of 2 jobs failed");
}

TEST(Status, BeforeTheFirstJobAndWithoutARun) {
  expect_in(status_text("r", read_status(run_with("")), kNow), "has not begun its jobs yet");
  for (const std::string& path :
       {std::string("no/such/run"), testing::scratch_directory("empty")}) {
    try {
      read_status(path);
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kMissingPath) << error.what();
    }
  }
}

TEST(Status, RefusesAnotherFormat) {
  const std::string run = run_with(R"({"format": "galley-status-9"})");
  try {
    read_status(run);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kUnsupported);
    expect_in(error.what(), "galley-status-9");
  }
}

TEST(Status, ABrokenFileIsNamedAndNoInternalError) {
  const std::string good = to_json(one_running_job()).dump();
  std::vector<std::string> broken = {"{", "[]", good.substr(0, good.size() / 2)};
  for (const char* key : {"time", "attempt", "host", "jobs"}) {
    broken.push_back(to_json(one_running_job()).set(key, Json::object()).dump());
  }
  for (const std::string& text : broken) {
    try {
      read_status(run_with(text));
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kBadData) << error.what();
      expect_in(error.what(), "status.json");
    }
  }
}

TEST(Status, ASmallFileIsReplacedWholeOrNotAtAll) {
  const std::string folder = testing::scratch_directory("replace");
  const std::string path = folder + "/status.json";
  replace_small_file(path, "first");
  replace_small_file(path, "second, and longer");
  EXPECT_EQ(read_file(path), "second, and longer");
  EXPECT_THROW(replace_small_file(folder + "/none/status.json", "x"), Error);
}

}  // namespace
}  // namespace galley::launcher
