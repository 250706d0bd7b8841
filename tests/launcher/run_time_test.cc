// Lock, requeue, record, world, protocol, mpirun line, signals, processes and what people see.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "engine/core/file.h"
#include "engine/core/journal.h"
#include "engine/core/processors.h"
#include "engine/core/strings.h"
#include "launcher/lock.h"
#include "launcher/mpi_world.h"
#include "launcher/mpirun_line.h"
#include "launcher/process.h"
#include "launcher/progress.h"
#include "launcher/protocol.h"
#include "launcher/requeue.h"
#include "launcher/resume.h"
#include "launcher/run.h"
#include "launcher/signals.h"
#include "tests/launcher/fake_run.h"

namespace galley::launcher {
namespace {

class FolderTest : public ::testing::Test {
 protected:
  FolderTest()
      : folder_(std::filesystem::temp_directory_path() / cat("galley-launcher-", getpid())) {
    std::filesystem::remove_all(folder_);
    make_directories(folder_);
  }
  ~FolderTest() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

template <typename Call>
Reason reason_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.reason();
  }
  return Reason::kOk;
}

// ------------------------------------------------------------------ lock

using LockTest = FolderTest;

TEST_F(LockTest, one_owner_at_a_time) {
  const std::string path = path_join(folder_, "lock");
  {
    const RunLock lock(path, Environment());
    EXPECT_EQ(reason_of([&] { RunLock second(path, Environment()); }), Reason::kCannotCreate);
  }
  EXPECT_FALSE(path_exists(path));
  EXPECT_EQ(reason_of([&] { RunLock third(path, Environment()); }), Reason::kOk);
}

void write_owner(const std::string& path, const Json& owner) {
  make_directories(path);
  write_file_atomically(path_join(path, "owner.json"), owner.dump());
}

TEST_F(LockTest, a_dead_process_of_this_host_leaves_a_stale_lock) {
  const std::string path = path_join(folder_, "lock");
  // This process's pid with another start time: the pid was reused.
  write_owner(path, Json::object()
                        .set("host", host_name())
                        .set("pid", static_cast<int64_t>(getpid()))
                        .set("started", 1));
  EXPECT_EQ(reason_of([&] { RunLock lock(path, Environment()); }), Reason::kOk);
}

TEST_F(LockTest, another_hosts_lock_is_stale_only_when_its_slurm_job_is_over) {
  const std::string path = path_join(folder_, "lock");
  const Json owner =
      Json::object().set("host", "elsewhere").set("pid", 1).set("started", 1).set("slurm_job", "7");
  const auto taken = [&](std::optional<bool> runs) {
    write_owner(path, owner);
    return reason_of([&] {
      RunLock lock(path, Environment(), [&](const std::string& job) {
        EXPECT_EQ(job, "7");
        return runs;
      });
    });
  };
  EXPECT_EQ(taken(true), Reason::kCannotCreate);
  EXPECT_EQ(taken(std::nullopt), Reason::kCannotCreate);
  EXPECT_EQ(taken(false), Reason::kOk);
}

TEST_F(LockTest, a_requeued_slurm_job_takes_its_own_old_lock) {
  const std::string path = path_join(folder_, "lock");
  write_owner(path, Json::object()
                        .set("host", "elsewhere")
                        .set("pid", 1)
                        .set("started", 1)
                        .set("slurm_job", "7")
                        .set("slurm_restart", "0"));
  const Environment environment({{"SLURM_JOB_ID", "7"}, {"SLURM_RESTART_COUNT", "1"}});
  EXPECT_EQ(reason_of([&] { RunLock lock(path, environment); }), Reason::kOk);
}

// ------------------------------------------------------------------ record and requeue

using RequeueTest = FolderTest;

TEST_F(RequeueTest, code_of_the_record_or_75) {
  EXPECT_EQ(reason_of([&] { read_exit_code(path_join(folder_, "nowhere")); }),
            Reason::kMissingPath);
  EXPECT_EQ(read_exit_code(folder_), 75);
  write_run_record({folder_}, {Reason::kJobFailed, 3, "a: bad", 1});
  EXPECT_EQ(read_exit_code(folder_), 3);
  std::ofstream(RunDirectory{folder_}.record()) << "{ torn";
  EXPECT_EQ(read_exit_code(folder_), 75);
}

TEST_F(RequeueTest, pain_P123_stops_after_three_starts_without_a_new_step) {
  const RunDirectory directory{folder_};
  const Environment environment(std::map<std::string, std::string>{{"SLURM_JOB_ID", "7"}});
  int asked = 0;
  const auto requeue = [&] {
    return requeue_run(directory, environment, 3, [&](const std::string&) {
      ++asked;
      return std::optional<bool>(true);
    });
  };
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(requeue().requeued);
  const RequeueResult refused = requeue();
  EXPECT_FALSE(refused.requeued);
  EXPECT_NE(refused.text.find("no new step"), std::string::npos);
  EXPECT_EQ(asked, 3);
  Journal(directory.journal())
      .append(Json::object().set("record", "job-checkpointed").set("job", "a").set("step", 5));
  EXPECT_TRUE(requeue().requeued);  // a new step starts the count again
}

TEST_F(RequeueTest, pain_P122_without_scontrol_only_the_code_remains) {
  const Environment environment(std::map<std::string, std::string>{{"SLURM_JOB_ID", "7"}});
  const RequeueResult result =
      requeue_run({folder_}, environment, 3, [](const std::string&) { return std::nullopt; });
  EXPECT_FALSE(result.requeued);
  EXPECT_FALSE(requeue_run({folder_}, Environment(), 3).requeued);
}

TEST_F(RequeueTest, totals_and_finished_jobs_come_from_the_journal) {
  const auto prepared = testing::fake_prepared_job("a", 5, 1, 1);
  const std::vector<Json> journal = {
      Json::object().set("record", "run-started"),
      Json::object()
          .set("record", "job-assigned")
          .set("job", "a")
          .set("attempt", 3)
          .set("placement", Json::object().set("predicted_bytes", 77)),
      Json::object()
          .set("record", "job-finished")
          .set("job", "a")
          .set("attempt", 3)
          .set("gpu_seconds", 12.5)
          .set("restarts", 2)
          .set("progress", to_json(trainer::JobProgress{.step = 5, .total_steps = 5})),
  };
  EXPECT_EQ(num_run_starts(journal), 1);
  const auto jobs = [&](bool valid) {
    return resume_jobs(
        {prepared}, {folder_}, journal,
        [&](const PreparedJob&, const std::string&) { return valid; },
        [](const std::string&) { return int64_t{-1}; });
  };
  EXPECT_TRUE(jobs(true)[0].finished);
  EXPECT_EQ(jobs(true)[0].totals.attempts, 3);
  EXPECT_DOUBLE_EQ(jobs(true)[0].totals.gpu_seconds, 12.5);
  EXPECT_EQ(jobs(true)[0].predicted_bytes, 77u);
  EXPECT_FALSE(jobs(false)[0].finished);  // its adapter is gone: it is done again
}

// ------------------------------------------------------------------ start

TEST(StartTest, says_how_to_start) {
  const auto refusal = [](std::map<std::string, std::string> values) -> std::string {
    try {
      check_started_by_mpirun(Environment(std::move(values)));
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal({}).find("mpirun -n 2 galley run"), std::string::npos);
  EXPECT_NE(refusal({{"SLURM_STEP_ID", "0"}}).find("srun --mpi=pmix"), std::string::npos);
  EXPECT_NE(refusal({{"PMI_RANK", "0"}}).find("Open MPI"), std::string::npos);
  EXPECT_EQ(refusal({{"OMPI_COMM_WORLD_RANK", "0"}}), "");
  EXPECT_EQ(refusal({{"SLURM_STEP_ID", "0"}, {"PMIX_RANK", "0"}}), "");
}

Hello hello(int rank, const std::string& host, const std::vector<int>& cpus = {0, 1}) {
  Hello hello;
  hello.rank = rank;
  hello.host = host;
  for (const int cpu : cpus) hello.cpus.push_back({cpu, cpu, 0});
  hello.node_cpus = 2;
  hello.free_memory_bytes = uint64_t{8} << 30;
  return hello;
}

TEST(WorldTest, without_a_cluster_file_each_machine_is_one_host_device) {
  const RunWorld world =
      build_world({hello(0, "x"), hello(1, "x"), hello(2, "x"), hello(3, "y")}, std::nullopt);
  ASSERT_EQ(world.cluster.gpus.size(), 2u);
  EXPECT_EQ(world.gpu_rank, (std::vector<int>{1, 3}));
  EXPECT_EQ(world.cluster.gpus[0].threads, 2);
  EXPECT_EQ(world.cluster.gpus[0].type.name, predictor::kHostTypeName);
  EXPECT_TRUE(world.warnings.empty());
}

TEST(WorldTest, rank_0_serves_where_its_machine_has_no_other) {
  EXPECT_EQ(build_world({hello(0, "x")}, std::nullopt).agents, (std::vector<int>{0}));
  EXPECT_EQ(build_world({hello(0, "x"), hello(1, "y")}, std::nullopt).agents,
            (std::vector<int>{0, 1}));
  EXPECT_EQ(build_world({hello(0, "x"), hello(1, "x")}, std::nullopt).agents,
            (std::vector<int>{1}));
}

TEST(WorldTest, emulated_nodes_are_dealt_to_agents_in_turn) {
  const auto cluster = testing::fake_cluster({{8, 8}, {4}, {2}});
  const RunWorld world = build_world({hello(0, "x"), hello(1, "x"), hello(2, "x")}, cluster);
  EXPECT_EQ(world.gpu_rank, (std::vector<int>{1, 1, 2, 1}));
  for (const placement::Gpu& gpu : world.cluster.gpus) EXPECT_EQ(gpu.threads, 1);
}

TEST(WorldTest, agents_of_one_machine_share_the_gpus_of_a_node) {
  const auto cluster = testing::fake_cluster({{8, 8, 8}});
  EXPECT_EQ(build_world({hello(0, "x"), hello(1, "x"), hello(2, "x")}, cluster).gpu_rank,
            (std::vector<int>{1, 2, 1}));
  // Workers of one node meet through shared memory: never on two machines.
  EXPECT_EQ(build_world({hello(0, "x"), hello(1, "x"), hello(2, "y")}, cluster).gpu_rank,
            (std::vector<int>{1, 1, 1}));
}

TEST(WorldTest, pain_P001_a_machine_is_what_its_ranks_call_it) {
  // A full name instead of the short one decides nothing: ranks are compared with each other only.
  const RunWorld world = build_world(
      {hello(0, "n1.site.org"), hello(1, "n1.site.org"), hello(2, "n2-ib")}, std::nullopt);
  EXPECT_EQ(world.agents, (std::vector<int>{1, 2}));
  EXPECT_EQ(world.cluster.nodes.size(), 2u);
}

TEST(WorldTest, pain_P009_ranks_with_one_visible_gpu_or_all_of_them_give_the_same_devices) {
  const auto world_of = [](const std::function<std::string(int)>& visible) {
    std::vector<Hello> hellos;
    for (int rank = 0; rank < 9; ++rank) {
      hellos.push_back(hello(rank, "x"));
      hellos.back().visible_gpus = visible(rank);
    }
    return build_world(hellos, testing::fake_cluster({{8, 8, 8, 8, 8, 8, 8, 8}}));
  };
  const RunWorld one = world_of([](int rank) { return cat(rank); });
  const RunWorld all = world_of([](int) { return "0,1,2,3,4,5,6,7"; });
  EXPECT_EQ(one.gpu_rank, all.gpu_rank);
  EXPECT_EQ(std::set<int>(one.gpu_rank.begin(), one.gpu_rank.end()).size(), 8u);
}

TEST(WorldTest, pain_P011_more_agents_than_gpus_do_no_harm) {
  const auto cluster = testing::fake_cluster({{8}});
  const RunWorld world =
      build_world({hello(0, "x"), hello(1, "x"), hello(2, "x"), hello(3, "x")}, cluster);
  EXPECT_EQ(world.gpu_rank, (std::vector<int>{1}));
  EXPECT_EQ(world.agents.size(), 3u);
}

TEST(WorldTest, pain_P003_numbers_of_slurm_are_ignored_and_told_where_they_cannot_be_right) {
  const auto warnings = [](const std::string& other_host, bool in_slurm) {
    std::vector<Hello> hellos = {hello(0, "x"), hello(1, other_host)};
    for (Hello& each : hellos) {
      each.slurm_procid = each.slurm_nodeid = "0";
      each.in_slurm = in_slurm;
    }
    return build_world(hellos, std::nullopt).warnings;
  };
  EXPECT_EQ(warnings("x", false).size(), 1u);
  EXPECT_EQ(warnings("y", false).size(), 1u);
  EXPECT_NE(warnings("y", false)[0].find("SLURM_NODEID=0"), std::string::npos);
  // What mpirun's ranks inherit from the batch shell, on every node.
  EXPECT_TRUE(warnings("x", true).empty());
  EXPECT_TRUE(warnings("y", true).empty());
}

TEST(WorldTest, real_gpus_of_a_cluster_file_cannot_run_here) {
  auto cluster = testing::fake_cluster({{8}});
  cluster.emulated = false;
  EXPECT_EQ(reason_of([&] { build_world({hello(0, "x")}, cluster); }), Reason::kBadConfig);
}

TEST(WorldTest, other_builds_are_refused_with_host_and_versions) {
  Hello other = hello(1, "y");
  other.build = "new";
  EXPECT_EQ(reason_of([&] { build_world({hello(0, "x"), other}, std::nullopt); }), Reason::kUsage);
}

TEST(WorldTest, one_core_ranks_and_gpus_without_driver_are_warned_of_once) {
  Hello listed = hello(1, "x", {1});
  listed.visible_gpus = "0,1";
  const RunWorld world = build_world({hello(0, "x", {0}), listed}, std::nullopt);
  ASSERT_EQ(world.warnings.size(), 2u);
  EXPECT_NE(world.warnings[0].find("rank 0, 1 may use one core only"), std::string::npos);
  EXPECT_NE(world.warnings[0].find("--bind-to none"), std::string::npos);
  EXPECT_NE(world.warnings[1].find("no driver answers"), std::string::npos);
}

TEST(WorldTest, who_bound_the_ranks_is_named_with_the_remedy) {
  const auto warning = [](BoundBy by, bool undone, std::vector<int> cpus) {
    Hello agent = hello(1, "x", cpus);
    agent.bound_by = by;
    agent.binding_undone = undone;
    const RunWorld world = build_world({hello(0, "x", cpus), agent}, std::nullopt);
    return world.warnings.empty() ? std::string() : world.warnings.back();
  };
  EXPECT_NE(warning(BoundBy::kMpirunOption, false, {0}).find("an option of mpirun"),
            std::string::npos);
  EXPECT_NE(warning(BoundBy::kSrun, false, {0}).find("--cpu-bind=none"), std::string::npos);
  EXPECT_NE(warning(BoundBy::kNobody, false, {0}).find("taskset"), std::string::npos);
  EXPECT_NE(warning(BoundBy::kMpirunDefault, true, {0, 1}).find("all cores that mpirun may use"),
            std::string::npos);
  EXPECT_EQ(warning(BoundBy::kNobody, false, {0, 1}), "");
}

TEST(WorldTest, a_quota_of_time_makes_fewer_threads_and_is_told) {
  Hello agent = hello(1, "x", {0, 1, 2, 3});
  agent.cpu_quota = 1.5;
  const RunWorld world = build_world({hello(0, "x", {0, 1, 2, 3}), agent}, std::nullopt);
  EXPECT_EQ(world.cluster.gpus[0].threads, 2);
  ASSERT_EQ(world.warnings.size(), 1u);
  EXPECT_NE(world.warnings[0].find("the time of 1.5 of its 4 cores"), std::string::npos)
      << world.warnings[0];
  EXPECT_TRUE(CorePool(world.cores).take("x", 2).empty());  // bound to no core
}

TEST(WorldTest, siblings_are_one_core) {
  Hello agent = hello(1, "x");
  agent.cpus = {{0, 0, 0}, {1, 1, 0}, {2, 0, 0}, {3, 1, 0}};
  Hello first = agent;
  first.rank = 0;
  const RunWorld world = build_world({first, agent}, std::nullopt);
  EXPECT_EQ(world.cluster.gpus[0].threads, 2);
}

TEST(ProtocolTest, hello_travels_whole) {
  Hello sent = hello(3, "x");
  sent.cpus = {{0, 0, 0}, {9, 1, 1}};
  sent.cpu_quota = 2.5;
  sent.bound_by = BoundBy::kSrun;
  sent.binding_undone = true;
  const Json message = parse_message(to_json(sent).dump(), {Direction::kToCoordinator});
  const Hello read = hello_from_json(3, message);
  EXPECT_EQ(read.cpus, sent.cpus);
  EXPECT_EQ(read.cpu_quota, sent.cpu_quota);
  EXPECT_EQ(read.bound_by, sent.bound_by);
  EXPECT_TRUE(read.binding_undone);
  EXPECT_EQ(read.free_memory_bytes, sent.free_memory_bytes);
}

TEST(ProtocolTest, unknown_kinds_missing_fields_and_wrong_ways_are_errors) {
  const auto reason = [](const std::string& text, Direction direction) {
    return reason_of([&] { parse_message(text, {direction}); });
  };
  EXPECT_EQ(reason(R"({"kind":"nonsense"})", Direction::kToAgent), Reason::kInternal);
  EXPECT_EQ(reason(R"({"kind":"quit"})", Direction::kToAgent), Reason::kInternal);
  EXPECT_EQ(reason(R"({"kind":"beat"})", Direction::kToAgent), Reason::kInternal);
  EXPECT_EQ(reason(R"({"kind":"beat"})", Direction::kFromWorker), Reason::kOk);
  EXPECT_EQ(reason("no json", Direction::kToAgent), Reason::kInternal);
}

TEST(ProtocolTest, every_kind_is_explained) {
  const std::string page = read_file("launcher/PROTOCOL.md");
  for (const MessageRow& row : message_table()) {
    EXPECT_NE(page.find(cat("`", row.kind, "`")), std::string::npos) << row.kind;
  }
}

// ------------------------------------------------------------------ launch

TEST(MpirunLineTest, outside_slurm_inside_slurm_and_with_own_hosts) {
  LaunchOptions options;
  options.run.job_file = "jobs.toml";
  const auto line = [&](bool slurm) {
    return join(mpirun_line(options, {"/opt/galley", 2, slurm}), " ");
  };
  EXPECT_NE(line(false).find("mpirun -n 2 --bind-to none"), std::string::npos);
  EXPECT_EQ(line(true).find(" -n "), std::string::npos);
  EXPECT_NE(line(true).find("/opt/galley run --events-for-launch jobs.toml"), std::string::npos);
  options.num_ranks = 5;
  EXPECT_NE(line(false).find("-n 5 --oversubscribe"), std::string::npos);
  EXPECT_EQ(line(true).find("--oversubscribe"), std::string::npos);
  options.num_ranks = 0;
  options.mpirun_options = {"--host", "a,b"};
  EXPECT_EQ(line(false).find(" -n "), std::string::npos);
  EXPECT_EQ(line(false).find("--oversubscribe"), std::string::npos);  // the hosts have their slots
  options.mpirun_options = {"-np", "3"};
  EXPECT_NE(line(false).find("--oversubscribe"), std::string::npos);
  EXPECT_EQ(line(true).find("--oversubscribe"), std::string::npos);
  options.mpirun_options = {"-np", "2"};
  EXPECT_EQ(line(false).find("--oversubscribe"), std::string::npos);
}

TEST(ProgressTest, launch_records_are_told_from_other_lines) {
  const std::string line = launch_record(Json::object().set("event", "ready"));
  EXPECT_EQ(line.back(), '\n');
  EXPECT_EQ(parse_launch_record(line)->get_string("event"), "ready");
  EXPECT_FALSE(parse_launch_record("{\"event\":\"ready\"}"));
  EXPECT_FALSE(parse_launch_record("\x1e{ torn"));
}

JobRow running_row() {
  JobRow row;
  row.name = "legal-8b";
  row.state = JobState::kRunning;
  row.progress.step = 120;
  row.progress.total_steps = 1840;
  row.progress.loss = 1.2034;
  row.progress.tokens_per_second = 6100;
  row.predicted_bytes = uint64_t{3} << 30;
  row.attempt_peak_bytes = row.totals.peak_bytes = uint64_t{2} << 30;
  row.seconds_left = 3600;
  return row;
}

TEST(ProgressTest, rows_travel_whole_and_read_well) {
  JobRow group = running_row();
  group.workers = {{"n1:gpu0 a", 4, 3, 5, 2}, {"n2:gpu1 b", 8, 7, 9, 6}};
  const JobRow group_read = job_row_from_json(to_json(group));
  ASSERT_EQ(group_read.workers.size(), 2u);
  EXPECT_EQ(group_read.workers[1].place, "n2:gpu1 b");
  EXPECT_EQ(group_read.workers[1].high_bytes, 9u);
  const JobRow row = job_row_from_json(to_json(running_row()));
  EXPECT_EQ(progress_text(row), progress_text(running_row()));
  const std::string text = progress_text(row);
  EXPECT_NE(text.find("step 120/1840  loss 1.2034"), std::string::npos);
  EXPECT_NE(text.find("2.0/3.0 GiB"), std::string::npos);
  EXPECT_NE(text.find("left "), std::string::npos);
}

TEST(ProgressTest, bars_fit_the_terminal_and_honour_no_colour) {
  EXPECT_LT(bar_line(running_row(), 40, Colour::kNo).size(), 40u);
  EXPECT_EQ(bar_line(running_row(), 200, Colour::kNo).find('\x1b'), std::string::npos);
  EXPECT_NE(bar_line(running_row(), 200, Colour::kYes).find('\x1b'), std::string::npos);
}

TEST(ProgressTest, a_long_name_gives_way_to_the_figures) {
  JobRow row = running_row();
  row.name = std::string(100, 'n');
  const std::string bar = bar_line(row, 100, Colour::kNo);
  EXPECT_LT(bar.size(), 100u);
  EXPECT_NE(bar.find(progress_text(row)), std::string::npos) << bar;
}

TEST(ProgressTest, one_line_per_job_and_event) {
  JobRow row = running_row();
  row.name = std::string(100, 'n');
  row.state = JobState::kSkipped;
  row.reason = "first fault\n  second fault\n" + std::string(400, 'x');
  const std::string table = summary_table({running_row(), row}, "runs/a");
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 4);
  EXPECT_NE(table.find("skipped"), std::string::npos);
  EXPECT_NE(table.find("first fault; second fault; xxx"), std::string::npos);
  EXPECT_EQ(table.find(std::string(200, 'x')), std::string::npos);
  EXPECT_EQ(job_row_from_json(to_json(row)).state, JobState::kSkipped);
  const std::string line = event_line(0, "a", row.reason);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(counted(1, "job") + ", " + counted(2, "agent"), "1 job, 2 agents");
}

TEST(ProgressTest, jobs_csv_joins_with_sacct) {
  JobRow row = running_row();
  row.reason = "a \"quoted\", reason";
  const std::string csv = jobs_csv({row}, "4711");
  EXPECT_NE(csv.find("\n4711,legal-8b,running,"), std::string::npos);
  EXPECT_NE(csv.find("\"a \"\"quoted\"\", reason\""), std::string::npos);
}

// ------------------------------------------------------------------ processes and signals

TEST(SignalInboxTest, takes_signals_instead_of_dying) {
  SignalInbox inbox({SIGUSR1, SIGTERM});
  EXPECT_FALSE(inbox.take());
  raise(SIGUSR1);
  raise(SIGTERM);
  EXPECT_TRUE(inbox.take());
  EXPECT_TRUE(inbox.take());
  EXPECT_FALSE(inbox.take());
}

using ProcessTest = FolderTest;

TEST_F(ProcessTest, facts_about_this_process) {
  EXPECT_GT(resident_bytes(getpid()), 0u);
  EXPECT_EQ(resident_bytes(1 << 30), 0u);
  EXPECT_TRUE(process_start_ticks(getpid()));
  EXPECT_FALSE(process_start_ticks(1 << 30));
  EXPECT_FALSE(allowed_cpus().empty());
  EXPECT_GT(free_memory_bytes(), 0u);
}

TEST_F(ProcessTest, pain_P183_counts_out_of_memory_kills_of_its_cgroup) {
  std::ifstream file("/proc/self/cgroup");
  std::string line, group;
  while (std::getline(file, line)) {
    if (line.starts_with("0::")) group = line.substr(3);
  }
  make_directories(folder_ + group);
  write_file_atomically(folder_ + group + "/memory.events", "low 0\noom 3\noom_kill 2\n");
  EXPECT_EQ(oom_kill_count(folder_), 2);
  EXPECT_EQ(oom_kill_count(folder_ + "/nowhere"), 0);
}

}  // namespace
}  // namespace galley::launcher
