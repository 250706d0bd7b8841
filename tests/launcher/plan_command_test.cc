// `galley plan` and `galley predict` of groups: what their screens and records say.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <sstream>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "launcher/commands.h"
#include "tests/launcher/example_files.h"
#include "tests/support/reference.h"

namespace galley::launcher {
namespace {

struct Result {
  int code = 0;
  std::string out, err;
};

Environment bare() {
  return Environment(std::map<std::string, std::string>{{"GALLEY_SITE_CONFIG", ""}});
}

using testing::expect_in;
using testing::job_file;
using testing::written;

std::string cluster_file(const std::string& gpus) {
  return written("cluster.toml",
                 cat("[cluster]\nemulate = true\n[[node]]\nnames = \"n1\"\ngpus = [", gpus, "]\n"));
}

Result plan(const std::string& jobs, const std::string& cluster,
            OutputForm form = OutputForm::kTable) {
  PlanOptions options;
  options.job_file = jobs;
  options.cluster_file = cluster;
  options.form = form;
  std::istringstream in;
  std::ostringstream out, err;
  Result result;
  try {
    result.code = command_plan(options, bare(), {in, out, err});
  } catch (const Error& error) {
    result.code = error.exit_code();
    err << error.what();
  }
  result.out = out.str();
  result.err = err.str();
  return result;
}

constexpr const char* kTwo = "{ type = \"a\", memory = \"2GiB\", count = 2 }";

TEST(PlanCommand, a_pinned_group_is_shown_with_its_gpus_and_its_need) {
  const Result table = plan(job_file("plan = { tp = 2 }\n"), cluster_file(kTwo));
  EXPECT_EQ(table.code, 0) << table.err << table.out;
  expect_in(table.out, "n1:gpu0-1  a (tp 2)");
  expect_in(table.out, "(fullest of 2)");
  expect_in(table.out, "a: tp 2, ");
  expect_in(table.out, "communication ");
  expect_in(table.out, "as pinned: 2 x a");
}

TEST(PlanCommand, stages_of_a_pipeline_are_printed) {
  const Result table = plan(job_file("plan = { stage_layers = [4, 2] }\n"), cluster_file(kTwo));
  EXPECT_EQ(table.code, 0) << table.err << table.out;
  expect_in(table.out, "layers 4 + 2");
  expect_in(table.out, "idle ");
  const Result three = plan(job_file("plan = { pp = 99 }\n"), cluster_file(kTwo));
  EXPECT_EQ(three.code, 78) << three.err;
}

TEST(PlanCommand, the_record_has_layout_workers_and_shares) {
  const std::string unlike =
      "{ type = \"fast\", memory = \"2GiB\", speed = 3, threads = 1 }, "
      "{ type = \"slow\", memory = \"1GiB\", speed = 1, threads = 1 }";
  const std::string jobs = job_file("plan = { dp = 2 }\n");
  const Result record = plan(jobs, cluster_file(unlike), OutputForm::kJson);
  EXPECT_EQ(record.code, 0) << record.err;
  const Json json = parse_json_or_throw(record.out, "plan", Reason::kInternal);
  const Json& job = json.at("jobs").as_array().at(0);
  EXPECT_EQ(job.get_int("dp"), 2);
  EXPECT_EQ(job.at("gpus").as_array().size(), 2u);
  EXPECT_EQ(job.at("workers").as_array().size(), 2u);
  ASSERT_EQ(job.at("replica_shares").as_array().size(), 2u);
  EXPECT_NEAR(job.at("replica_shares").as_array().at(0).as_double(), 0.75, 0.03);
  EXPECT_EQ(json.at("cluster").at("gpus").as_array().at(1).get_double("slowdown"), 3);
  expect_in(plan(jobs, cluster_file(unlike)).out, "rows 75 % + 25 %");
}

TEST(PlanCommand, a_group_that_the_cluster_does_not_have_is_69) {
  const Result few = plan(job_file("plan = { tp = 2, dp = 2 }\n"), cluster_file(kTwo));
  EXPECT_EQ(few.code, 69) << few.err;
  expect_in(few.out, "needs 4 GPUs, the allocation has 2");
}

TEST(PlanCommand, more_replicas_than_rows_of_a_batch_are_refused) {
  const Result many =
      plan(job_file("plan = { dp = 3 }\nbatch = { global = 2 }\n"), cluster_file(kTwo));
  EXPECT_EQ(many.code, 78) << many.err;
  expect_in(many.err, "cannot share a global batch of 2 rows");
}

TEST(PlanCommand, pain_P056_heads_and_degree_are_checked_from_the_config_alone) {
  const std::string folder = galley::testing::scratch_directory("config-only");
  write_file_atomically(path_join(folder, "config.json"),
                        read_file("examples/tiny-llama/config.json"));
  const auto begin = std::chrono::steady_clock::now();
  const Result result = plan(job_file("plan = { tp = 1024 }\n", folder), cluster_file(kTwo));
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(result.code, 78) << "the pin counts before the missing weights: " << result.err;
  expect_in(result.err, "1024");
  expect_in(result.err, "heads");
  // Milliseconds; the bound is for machines under load.
  EXPECT_LT(took, std::chrono::seconds(10));
}

TEST(PlanCommand, pain_P066_equal_names_with_other_links_are_planned_with_other_times) {
  const std::string jobs = job_file("plan = { tp = 2 }\n");
  const auto seconds = [&](const std::string& link) {
    const std::string cluster = written(
        "cards.toml",
        cat("[[node]]\nnames = \"n1\"\ngpus = [{ type = \"a100-40gb\", count = 2", link, " }]\n"));
    const Result record = plan(jobs, cluster, OutputForm::kJson);
    EXPECT_EQ(record.code, 0) << record.err << record.out;
    const Json json = parse_json_or_throw(record.out, "plan", Reason::kInternal);
    return json.at("jobs").as_array().at(0).get_double("seconds");
  };
  const double nvlink = seconds(""), pcie = seconds(", link_gb_s = 12");
  EXPECT_GT(nvlink, 0);
  EXPECT_GT(pcie, 1.05 * nvlink);
}

TEST(PlanCommand, predict_follows_the_pins) {
  PredictOptions options;
  options.job_file = job_file("plan = { tp = 2 }\n");
  options.gpu_types = {"a100-40gb"};
  std::istringstream in;
  std::ostringstream out, err;
  EXPECT_EQ(command_predict(options, bare(), {in, out, err}), 0) << err.str();
  expect_in(out.str(), "2 x a100-40gb (tp 2)");
}

}  // namespace
}  // namespace galley::launcher
