// A whole run in one process: ranks are threads over a thread channel, workers are threads too.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <filesystem>
#include <thread>

#include "engine/core/file.h"
#include "engine/core/journal.h"
#include "engine/core/strings.h"
#include "launcher/run_directory.h"
#include "tests/launcher/fake_run.h"

namespace galley::launcher {
namespace {

/// A worker as a thread; "killing" it cuts its link, which ends its job.
class WorkerThread : public RunningWorker {
 public:
  WorkerThread(FileDescriptor own, FileDescriptor theirs, int relay_fd)
      : link_(std::move(own)), thread_([this, fd = theirs.release(), relay = dup(relay_fd)] {
          code_ = serve_link(
              FileDescriptor(fd), [relay] { return FileDescriptor(relay); }, testing::fake_job);
          ended_ = true;
        }) {}
  ~WorkerThread() override {
    kill();
    if (thread_.joinable()) thread_.join();
  }
  Link& link() override { return link_; }
  void kill() override { shutdown(link_.fd(), SHUT_RDWR); }
  std::optional<WorkerExit> try_reap() override {
    if (!ended_) return std::nullopt;
    if (thread_.joinable()) thread_.join();
    return WorkerExit{code_, 0};
  }
  uint64_t resident_bytes() override { return 4096; }
  int pid() const override { return 0; }

 private:
  Link link_;
  std::atomic<bool> ended_ = false;
  int code_ = 0;
  std::thread thread_;
};

class LocalRunTest : public ::testing::Test {
 protected:
  LocalRunTest()
      : folder_(std::filesystem::temp_directory_path() / cat("galley-local-run-", getpid())) {
    std::filesystem::remove_all(folder_);
    make_directories(folder_);
  }
  ~LocalRunTest() override { std::filesystem::remove_all(folder_); }

  /// Codes of all ranks.
  std::vector<int> run(int ranks, const std::string& jobs) {
    write_file_atomically(path_join(folder_, "jobs.txt"), jobs);
    write_file_atomically(path_join(folder_, "cluster.toml"),
                          "[cluster]\nemulate = true\n[[node]]\nnames = \"n[1-2]\"\n"
                          "gpus = [{ type = \"a100-40gb\", count = 1 }]\n");
    RunOptions options;
    options.job_file = path_join(folder_, "jobs.txt");
    options.cluster_file = path_join(folder_, "cluster.toml");
    RunParts parts = testing::fake_parts(folder_);
    parts.start_worker = [](const WorkerStart& start) -> std::unique_ptr<RunningWorker> {
      auto [own, theirs] = Link::make_sockets();
      return std::make_unique<WorkerThread>(std::move(own), std::move(theirs), start.relay_fd);
    };
    auto channels = make_thread_channels(ranks);
    std::vector<int> codes(static_cast<size_t>(ranks), -1);
    std::vector<std::thread> threads;
    const Environment environment;
    for (int rank = 1; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto i = static_cast<size_t>(rank);
        codes[i] = serve_as_agent(*channels[i], environment, parts, nullptr).code;
      });
    }
    const RankEnd end = coordinate(*channels[0], options, environment, parts, nullptr);
    codes[0] = end.code;
    for (std::thread& thread : threads) thread.join();
    return codes;
  }

  RunDirectory directory() const { return {path_join(folder_, "fake")}; }
  std::string folder_;
};

TEST_F(LocalRunTest, four_jobs_on_two_gpus_then_again_nothing_to_do) {
  const std::string jobs = "a 5 1 1\nb 7 1 1\nc 3 1 1\nd 2 1 1\n";
  EXPECT_EQ(run(3, jobs), (std::vector<int>{0, 0, 0}));
  const size_t records = read_journal(directory().journal()).size();
  EXPECT_EQ(read_exit_code(directory().path), 0);
  EXPECT_EQ(run(2, jobs), (std::vector<int>{0, 0}));
  EXPECT_EQ(read_journal(directory().journal()).size(), records + 2);  // started, ended
}

TEST_F(LocalRunTest, new_jobs_are_added_to_an_existing_run) {
  EXPECT_EQ(run(2, "a 5 1 1\n"), (std::vector<int>{0, 0}));
  EXPECT_EQ(run(2, "a 5 1 1\nb 5 1 1\n"), (std::vector<int>{0, 0}));
  EXPECT_TRUE(path_exists(directory().job("b") + "/adapter/done"));
}

TEST_F(LocalRunTest, pain_P020_a_worker_that_throws_fails_its_job_alone) {
  EXPECT_EQ(run(3, "bad 5 1 1\na 5 1 1\n"), (std::vector<int>{3, 3, 3}));
  EXPECT_TRUE(path_exists(directory().job("a") + "/adapter/done"));
}

TEST_F(LocalRunTest, bad_input_is_the_code_of_every_rank) {
  EXPECT_EQ(run(3, "a 0 1 1\n"), (std::vector<int>{78, 78, 78}));
  EXPECT_EQ(read_exit_code(directory().path), 78);
}

TEST_F(LocalRunTest, groups_on_one_node_and_over_two) {
  EXPECT_EQ(run(3, "pp2-a 7 1 1\ndp2-b 6 1 1\nc 3 1 1\n"), (std::vector<int>{0, 0, 0}));
  for (const char* job : {"pp2-a", "dp2-b", "c"}) {
    EXPECT_TRUE(path_exists(directory().job(job) + "/adapter/done")) << job;
  }
  for (const Json& record : read_journal(directory().journal())) {
    if (record.get_string("record") != "job-finished") continue;
    EXPECT_EQ(record.at("workers").as_array().size(), record.get_string("job") == "c" ? 1u : 2u);
  }
}

TEST_F(LocalRunTest, a_group_under_one_agent_that_coordinates_too) {
  EXPECT_EQ(run(1, "pp2-a 7 1 1\n"), (std::vector<int>{0}));
}

TEST_F(LocalRunTest, one_rank_coordinates_and_serves) {
  EXPECT_EQ(run(1, "a 5 1 1\nb 5 1 1\n"), (std::vector<int>{0}));
}

}  // namespace
}  // namespace galley::launcher
