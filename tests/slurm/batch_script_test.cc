#include "slurm/batch_script.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "engine/core/strings.h"

namespace galley::slurm {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(BatchScript, has_every_option_that_a_run_needs) {
  const std::string script = batch_script({});
  EXPECT_EQ(script.rfind("#!/bin/bash\n", 0), 0u);
  for (const char* option : {"--job-name=", "--nodes=1", "--ntasks-per-node=2",
                             "--cpus-per-task=", "--mem=", "--time=", "--gres=gpu:1",
                             "--constraint=", "--output=%x-%j.out", "--open-mode=append",
                             "--requeue", "--signal=B:USR1@600", "--hint=nomultithread"}) {
    EXPECT_TRUE(has(script, option)) << option;
  }
  EXPECT_FALSE(has(script, "--partition"));
  EXPECT_FALSE(has(script, "--account"));
}

TEST(BatchScript, the_last_line_replaces_the_shell) {
  const auto last_line = [](const BatchScript& options) {
    const std::vector<std::string> lines = split(batch_script(options), '\n');
    EXPECT_EQ(lines.back(), "");
    return lines.at(lines.size() - 2);
  };
  EXPECT_EQ(last_line({.job_file = "my.toml"}), "exec galley launch --requeue my.toml");
  EXPECT_EQ(last_line({.launcher = "srun"}).rfind("exec srun --mpi=pmix ", 0), 0u);
}

TEST(BatchScript, values_are_taken) {
  const std::string script = batch_script({.site = "Example",
                                           .nodes = 3,
                                           .gpus_per_node = 4,
                                           .gpu_type = "a100",
                                           .time = "01:00:00",
                                           .partition = "gpu",
                                           .account = "lab"});
  for (const char* part : {"Example", "--nodes=3", "--ntasks-per-node=5", "--gres=gpu:a100:4",
                           "--time=01:00:00", "--partition=gpu", "--account=lab"}) {
    EXPECT_TRUE(has(script, part)) << part;
  }
  EXPECT_FALSE(has(batch_script({.gpus_per_node = 0}), "--gres"));
}

TEST(BatchScript, only_the_form_that_requeues_says_so) {
  BatchScript options;
  EXPECT_NE(batch_script(options).find("or exit code 75"), std::string::npos);
  options.launcher = "srun";
  EXPECT_EQ(batch_script(options).find("or exit code 75"), std::string::npos);
}

}  // namespace
}  // namespace galley::slurm
