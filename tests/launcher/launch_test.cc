#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "engine/core/env.h"
#include "engine/core/file.h"
#include "launcher/run.h"
#include "tests/support/reference.h"

namespace galley::launcher {
namespace {

/// launch's exit code where mpirun is this script.
int launch_with(const std::string& script) {
  const std::string folder = galley::testing::scratch_directory("launch");
  write_file_atomically(folder + "/mpirun", "#!/bin/sh\n" + script + "\n", 0700);
  const pid_t child = fork();
  if (child == 0) {
    setenv("PATH", (folder + ":/usr/bin:/bin").c_str(), 1);
    LaunchOptions options;
    options.run.job_file = "jobs.toml";
    _exit(launch_main(options, Environment::current()));
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Launch, a_rank_killed_before_the_run_began_is_worth_another_try) {
  EXPECT_EQ(launch_with("exit 1"), 75);
  EXPECT_EQ(launch_with("exit 137"), 75);
  EXPECT_EQ(launch_with("kill -9 $$"), 75);
}

TEST(Launch, what_mpirun_itself_refuses_is_not) {
  EXPECT_EQ(launch_with("echo unrecognized option >&2; exit 1"), 1);
  EXPECT_EQ(launch_with("echo not enough slots >&2; exit 213"), 1);
}

}  // namespace
}  // namespace galley::launcher
