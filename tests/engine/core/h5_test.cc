#include "engine/core/h5.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/core/env.h"
#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "tests/support/reference.h"

// The library's call of flock() lands here, so that a file system without locks can be played.
static int flock_errno = 0;
static int flock_calls = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"  // struct flock has the same name
extern "C" int flock(int, int) {
  ++flock_calls;
  if (flock_errno == 0) return 0;
  errno = flock_errno;
  return -1;
}
#pragma GCC diagnostic pop

namespace galley {
namespace {

std::string write_sample(const std::string& path) {
  H5File file = H5File::create(path, 512);
  file.create_group("g");
  const std::vector<float> values = {1, -2, 3.5f, 0, 5, 6};
  file.write_f32("g/b.weight", values, {2, 3});
  file.write_f32("g/a.weight", std::span(values).first(1), {1});
  file.write_text("text", "grüße");
  file.close();
  return path;
}

void check_sample(const std::string& path) {
  const H5File file = H5File::open(path);
  EXPECT_EQ(file.list("g"), (std::vector<std::string>{"a.weight", "b.weight"}));
  EXPECT_EQ(file.shape("g/b.weight"), (std::vector<int64_t>{2, 3}));
  std::vector<float> values(6);
  file.read_f32("g/b.weight", values);
  EXPECT_EQ(values, (std::vector<float>{1, -2, 3.5f, 0, 5, 6}));
  EXPECT_EQ(file.read_text("text"), "grüße");
}

TEST(H5, round_trip_behind_a_user_block) {
  const std::string folder = galley::testing::scratch_directory("h5");
  const std::string path = write_sample(folder + "/a.h5");
  EXPECT_EQ(read_file(path).substr(0, 512), std::string(512, '\0'));
  check_sample(path);
}

TEST(H5, errors_say_file_call_and_reason) {
  const std::string folder = galley::testing::scratch_directory("h5");
  const auto reason_of = [](const auto& call) {
    try {
      call();
      return std::pair(Reason::kOk, std::string());
    } catch (const Error& error) {
      return std::pair(error.reason(), std::string(error.what()));
    }
  };
  const auto missing = reason_of([&] { H5File::open(folder + "/none.h5"); });
  EXPECT_EQ(missing.first, Reason::kMissingPath) << missing.second;
  EXPECT_NE(missing.second.find("none.h5"), std::string::npos);
  EXPECT_NE(missing.second.find("H5Fopen"), std::string::npos);
  write_file_atomically(folder + "/text.h5", std::string(5000, 'x'));
  EXPECT_EQ(reason_of([&] { H5File::open(folder + "/text.h5"); }).first, Reason::kBadCheckpoint);
  const std::string path = write_sample(folder + "/a.h5");
  EXPECT_NE(reason_of([&] { H5File::create(path, 0); }).first, Reason::kOk);  // never over a file
  const H5File file = H5File::open(path);
  std::vector<float> wrong(5);
  EXPECT_EQ(reason_of([&] { file.read_f32("g/b.weight", wrong); }).first, Reason::kBadCheckpoint);
  EXPECT_EQ(reason_of([&] { file.read_f32("g/none", wrong); }).first, Reason::kBadCheckpoint);
  EXPECT_EQ(reason_of([&] { file.read_f32("text", wrong); }).first, Reason::kBadCheckpoint);
  EXPECT_EQ(reason_of([&] { file.read_text("g/b.weight"); }).first, Reason::kBadCheckpoint);
}

class H5Locks : public ::testing::Test {
 protected:
  void TearDown() override { flock_errno = flock_calls = 0; }
  void check_with(int error_number) {
    flock_errno = error_number;
    const std::string folder = galley::testing::scratch_directory("locks");
    check_sample(write_sample(folder + "/a.h5"));
    EXPECT_EQ(flock_calls, 0) << "the library asked for a lock";
  }
};

TEST_F(H5Locks, pain_P107_file_system_without_locks) {
  for (const int error_number : {ENOLCK, ENOSYS, EAGAIN}) check_with(error_number);
}

TEST_F(H5Locks, pain_P108_errno_524) { check_with(524); }

TEST(H5, pain_P110_locking_variable_changes_nothing) {
  // The library reads the variable once in a process, so each value has its own.
  const std::string value = Environment::current().get("GALLEY_TEST_LOCKING").value_or("");
  if (!value.empty()) {
    check_sample(write_sample(galley::testing::scratch_directory("h5") + "/a.h5"));
    return;
  }
  for (const std::string setting : {"", "TRUE", "FALSE", "BEST_EFFORT"}) {
    auto variables = Environment::current().all();
    variables["GALLEY_TEST_LOCKING"] = "child";
    if (!setting.empty()) variables["HDF5_USE_FILE_LOCKING"] = setting;
    std::vector<std::string> lines;
    for (const auto& [name, text] : variables) lines.push_back(name + "=" + text);
    std::vector<char*> environment;
    for (std::string& line : lines) environment.push_back(line.data());
    environment.push_back(nullptr);
    std::string program = "/proc/self/exe", filter = "--gtest_filter=H5.pain_P110*";
    char* arguments[] = {program.data(), filter.data(), nullptr};
    pid_t child = 0;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    ASSERT_EQ(
        posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environment.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << setting;
  }
}

TEST(H5, full_disk_is_told_as_such) {
  const std::string folder = galley::testing::scratch_directory("h5");
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{20000, 20000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::vector<float> values(100000, 1.0f);
    try {
      H5File file = H5File::create(folder + "/a.h5", 512);
      file.write_f32("x", values, {100000});
      file.close();
      _exit(0);
    } catch (const Error& error) {
      // One line that people read: the system's reason, not the library's stack.
      const std::string text = error.what();
      const bool short_line = text.size() < folder.size() + 200 &&
                              text.find('\n') == std::string::npos &&
                              text.find("lock") == std::string::npos &&
                              text.find(std::strerror(EFBIG)) != std::string::npos;
      if (!short_line) std::fprintf(stderr, "%s\n", error.what());
      _exit(short_line ? error.exit_code() : 1);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 74);
}

}  // namespace
}  // namespace galley
