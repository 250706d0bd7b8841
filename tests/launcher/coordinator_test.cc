#include "launcher/coordinator.h"

#include <gtest/gtest.h>

#include "launcher/protocol.h"
#include "tests/launcher/fake_run.h"

namespace galley::launcher {
namespace {

using testing::fake_cluster;
using testing::fake_policy;
using testing::fake_prepared_job;

/// Rank 0 coordinates; ranks 1 and 2 hold nodes n1 (8 GiB) and n2 (4 GiB) of one machine with 4
/// cores.
RunWorld two_gpus() {
  std::vector<Hello> hellos(3);
  for (int rank = 0; rank < 3; ++rank) {
    Hello& hello = hellos[static_cast<size_t>(rank)];
    hello.rank = rank;
    hello.host = "vm";
    hello.cpus = {{0, 0, 0}, {1, 1, 0}, {2, 2, 0}, {3, 3, 0}};
    hello.node_cpus = 4;
  }
  return build_world(hellos, fake_cluster({{8}, {4}}));
}

CoordinatorJob job_of(const std::string& name, double gib, int64_t steps = 10) {
  CoordinatorJob job;
  job.prepared = fake_prepared_job(name, steps, 1, gib);
  job.directory = "runs/fake/jobs/" + name;
  return job;
}

class CoordinatorTest : public ::testing::Test {
 protected:
  void start(std::vector<CoordinatorJob> jobs, CoordinatorSettings settings = {},
             std::vector<std::pair<std::string, std::string>> bad = {}) {
    coordinator_ = std::make_unique<Coordinator>(settings, two_gpus(), std::move(jobs),
                                                 std::move(bad), fake_policy(), now_);
    take();
  }
  void take() {
    for (Output& output : coordinator_->take_outputs()) outputs_.push_back(std::move(output));
  }
  void tell(int from, Json message) {
    coordinator_->handle(from, message, now_);
    take();
  }
  Json news(const std::string& kind, const std::string& job, int attempt) {
    return make_message(kind).set("job", job).set("attempt", attempt).set("worker", 0);
  }
  void started(int from, const std::string& job, int attempt, int64_t step = 0) {
    tell(from, news("job-started", job, attempt).set("step", step).set("total_steps", 10));
  }
  void progress(int from, const std::string& job, int attempt, int64_t step) {
    trainer::JobProgress progress;
    progress.step = step;
    progress.total_steps = 10;
    progress.step_tokens = 100;
    tell(from, news("job-progress", job, attempt)
                   .set("progress", to_json(progress))
                   .set("new_tokens", 100));
  }
  void finished(int from, const std::string& job, int attempt) {
    trainer::JobProgress progress;
    progress.step = progress.total_steps = 10;
    tell(from, news("job-ended", job, attempt)
                   .set("outcome", "finished")
                   .set("progress", to_json(progress))
                   .set("peak_bytes", 1000));
  }
  void stopped(int from, const std::string& job, int attempt) {
    tell(from, news("job-ended", job, attempt).set("outcome", "stopped").set("peak_bytes", 1000));
  }
  void failed(int from, const std::string& job, int attempt, const std::string& reason) {
    tell(from, news("job-ended", job, attempt)
                   .set("outcome", "failed")
                   .set("reason", reason)
                   .set("text", "died")
                   .set("peak_bytes", 1000));
  }
  /// Messages of a kind so far, as "rank:job:attempt".
  std::vector<std::string> sent(const std::string& kind) const {
    std::vector<std::string> list;
    for (const Output& output : outputs_) {
      if (output.kind != Output::Kind::kSend || message_kind(output.json) != kind) continue;
      list.push_back(std::to_string(output.to) + ":" + output.json.get_string("job") + ":" +
                     std::to_string(output.json.get_int("attempt")));
    }
    return list;
  }
  JobRow row(const std::string& name) const {
    for (const JobRow& row : coordinator_->table(now_)) {
      if (row.name == name) return row;
    }
    return {};
  }
  using List = std::vector<std::string>;

  double now_ = 100;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<Output> outputs_;
};

TEST_F(CoordinatorTest, packs_queues_and_reuses_gpus) {
  start({job_of("a", 3), job_of("b", 6), job_of("c", 2)});
  EXPECT_EQ(sent("assign"), (List{"2:a:1", "1:b:1"}));
  EXPECT_EQ(row("c").state, JobState::kWaiting);
  started(2, "a", 1);
  now_ += 10;
  finished(2, "a", 1);
  EXPECT_EQ(sent("assign"), (List{"2:a:1", "1:b:1", "2:c:1"}));
  finished(2, "c", 1);
  finished(1, "b", 1);
  ASSERT_TRUE(coordinator_->done());
  EXPECT_EQ(coordinator_->exit_code(), 0);
  EXPECT_DOUBLE_EQ(row("a").totals.gpu_seconds, 10);
  EXPECT_EQ(row("a").totals.peak_bytes, 1000u);
}

TEST_F(CoordinatorTest, every_assignment_is_in_the_journal_before_it_is_sent) {
  start({job_of("a", 3), job_of("b", 6)});
  int journalled = 0;
  for (const Output& output : outputs_) {
    if (output.kind == Output::Kind::kJournal) {
      journalled += output.json.get_string("record") == "job-assigned" ? 1 : 0;
    } else if (output.kind == Output::Kind::kSend) {
      EXPECT_GT(journalled--, 0);
    }
  }
}

TEST_F(CoordinatorTest, a_job_that_fits_nowhere_is_refused_before_the_start) {
  start({job_of("a", 3), job_of("big", 99)});
  EXPECT_EQ(row("big").state, JobState::kRefused);
  finished(2, "a", 1);
  EXPECT_EQ(coordinator_->exit_code(), 3);
}

TEST_F(CoordinatorTest, when_no_job_fits_the_code_is_69) {
  start({job_of("big", 99), job_of("bigger", 100)});
  EXPECT_TRUE(coordinator_->done());
  EXPECT_EQ(coordinator_->exit_code(), 69);
  EXPECT_TRUE(sent("assign").empty());
}

TEST_F(CoordinatorTest, skipped_jobs_give_3) {
  start({job_of("a", 3)}, {}, {{"broken", "no such file"}});
  finished(2, "a", 1);
  EXPECT_EQ(coordinator_->exit_code(), 3);
}

TEST_F(CoordinatorTest, pain_P019_a_killed_worker_restarts_its_job_and_nobody_else_notices) {
  start({job_of("a", 3), job_of("b", 6)});
  started(2, "a", 1);
  progress(2, "a", 1, 7);
  tell(2, news("job-checkpointed", "a", 1).set("step", 5).set("seconds", 0.1));
  failed(2, "a", 1, "worker_died");
  EXPECT_EQ(sent("assign"), (List{"2:a:1", "1:b:1", "2:a:2"}));
  EXPECT_TRUE(sent("job-end").empty());
  started(2, "a", 2, 5);
  finished(2, "a", 2);
  finished(1, "b", 1);
  EXPECT_EQ(coordinator_->exit_code(), 0);
  EXPECT_EQ(row("a").totals.restarts, 1);
  EXPECT_EQ(row("b").totals.restarts, 0);
}

TEST_F(CoordinatorTest, late_news_of_an_old_attempt_are_ignored) {
  start({job_of("a", 3)});
  failed(2, "a", 1, "worker_hung");
  finished(2, "a", 1);
  EXPECT_EQ(row("a").state, JobState::kRunning);
  progress(1, "a", 2, 9);  // another rank's: a has its second attempt on rank 2
  EXPECT_EQ(row("a").progress.step, 0);
  finished(2, "a", 2);
  EXPECT_EQ(row("a").state, JobState::kFinished);
}

TEST_F(CoordinatorTest, restarts_without_a_new_step_are_limited) {
  start({job_of("a", 3)});
  for (int attempt = 1; attempt <= 4; ++attempt) failed(2, "a", attempt, "worker_died");
  EXPECT_EQ(row("a").state, JobState::kFailed);
  EXPECT_EQ(coordinator_->exit_code(), 3);
}

TEST_F(CoordinatorTest, a_new_step_allows_more_restarts) {
  start({job_of("a", 3)});
  for (int attempt = 1; attempt <= 8; ++attempt) {
    progress(2, "a", attempt, attempt);
    failed(2, "a", attempt, "worker_died");
  }
  EXPECT_EQ(row("a").state, JobState::kRunning);
  EXPECT_EQ(row("a").totals.restarts, 8);
}

TEST_F(CoordinatorTest, faults_of_the_job_fail_at_once_and_others_go_on) {
  start({job_of("a", 3), job_of("b", 6)});
  failed(2, "a", 1, "numerics");
  EXPECT_EQ(row("a").state, JobState::kFailed);
  EXPECT_EQ(row("b").state, JobState::kRunning);
  finished(1, "b", 1);
  EXPECT_EQ(coordinator_->exit_code(), 3);
}

TEST_F(CoordinatorTest, a_full_disk_is_the_code_of_the_run) {
  start({job_of("a", 3)});
  failed(2, "a", 1, "disk_full");
  EXPECT_EQ(coordinator_->exit_code(), 74);
}

TEST_F(CoordinatorTest, a_first_signal_stops_all_at_the_next_step) {
  start({job_of("a", 3), job_of("b", 6), job_of("c", 2)});
  coordinator_->request_stop(0, 10, "signal 10", now_);
  coordinator_->request_stop(1, 10, "signal 10", now_);  // mpirun hands a signal to every rank
  coordinator_->request_stop(2, 10, "signal 10", now_);
  take();
  EXPECT_EQ(sent("job-command"), (List{"2:a:1", "1:b:1"}));
  EXPECT_TRUE(sent("job-end").empty());
  stopped(2, "a", 1);
  EXPECT_FALSE(coordinator_->done());
  failed(1, "b", 1, "worker_died");  // is not restarted any more
  EXPECT_TRUE(coordinator_->done());
  EXPECT_EQ(coordinator_->exit_code(), 75);
  EXPECT_EQ(sent("assign").size(), 2u);
}

TEST_F(CoordinatorTest, pain_P118_a_signal_to_one_rank_reaches_every_worker) {
  start({job_of("a", 3), job_of("b", 6)});
  tell(2, make_message("signalled").set("signal", 12));
  EXPECT_EQ(sent("job-command").size(), 2u);
}

TEST_F(CoordinatorTest, a_second_signal_ends_at_once) {
  start({job_of("a", 3)});
  coordinator_->request_stop(0, 10, "signal 10", now_);
  coordinator_->request_stop(0, 10, "signal 10", now_);
  take();
  EXPECT_EQ(sent("job-end"), (List{"2:a:1"}));
  coordinator_->tick(now_ + 11);  // an agent that never answers is not waited for
  EXPECT_TRUE(coordinator_->done());
  EXPECT_EQ(coordinator_->exit_code(), 75);
}

TEST_F(CoordinatorTest, pain_P120_one_order_as_several_signals_is_one_order) {
  start({job_of("a", 3)});
  coordinator_->request_stop(0, 18, "CONT", now_);  // Slurm: CONT and TERM to everybody
  coordinator_->request_stop(0, 15, "TERM", now_);
  coordinator_->request_stop(0, 10, "USR1", now_);  // what launch makes of its own TERM
  coordinator_->request_stop(1, 15, "TERM", now_);
  take();
  EXPECT_EQ(sent("job-command"), (List{"2:a:1"}));
  EXPECT_TRUE(sent("job-end").empty());
}

TEST_F(CoordinatorTest, a_run_that_finishes_while_it_stops_is_complete) {
  start({job_of("a", 3)});
  coordinator_->request_stop(0, 10, "signal 10", now_);
  finished(2, "a", 1);
  EXPECT_EQ(coordinator_->exit_code(), 0);
}

TEST_F(CoordinatorTest, pain_P018_a_silent_agent_ends_the_run_with_75) {
  start({job_of("a", 3), job_of("b", 6)});
  now_ += 16;
  tell(1, make_message("agent-beat"));
  coordinator_->tick(now_);
  take();
  EXPECT_EQ(sent("job-command"), (List{"1:b:1"}));
  EXPECT_FALSE(coordinator_->everybody_alive());
  stopped(1, "b", 1);
  EXPECT_TRUE(coordinator_->done());
  EXPECT_EQ(coordinator_->exit_code(), 75);
}

TEST_F(CoordinatorTest, under_recovery_the_other_agents_go_on) {
  CoordinatorSettings settings;
  settings.lost_agents = LostAgents::kGoOn;
  start({job_of("a", 3), job_of("b", 6)}, settings);
  now_ += 16;
  tell(1, make_message("agent-beat"));
  coordinator_->tick(now_);
  take();
  finished(1, "b", 1);
  EXPECT_EQ(sent("assign"), (List{"2:a:1", "1:b:1", "1:a:2"}));
  finished(1, "a", 2);
  EXPECT_EQ(coordinator_->exit_code(), 0);
}

TEST_F(CoordinatorTest, finished_jobs_are_not_redone) {
  CoordinatorJob done = job_of("a", 3);
  done.finished = true;
  done.totals.gpu_seconds = 42;
  start({done, job_of("new", 3)});
  EXPECT_EQ(sent("assign"), (List{"2:new:1"}));
  finished(2, "new", 1);
  EXPECT_EQ(coordinator_->exit_code(), 0);
  EXPECT_DOUBLE_EQ(row("a").totals.gpu_seconds, 42);
}

TEST_F(CoordinatorTest, attempts_go_on_from_the_journal) {
  CoordinatorJob again = job_of("a", 3);
  again.totals.attempts = 4;
  again.checkpoint_step = 6;
  start({again});
  EXPECT_EQ(sent("assign"), (List{"2:a:5"}));
}

TEST_F(CoordinatorTest, pain_P124_stops_before_the_wall_time_by_the_measured_save_time) {
  CoordinatorSettings settings;
  settings.end_at = now_ + 100;
  settings.agent_silent_s = 1000;
  start({job_of("a", 3), job_of("c", 6), job_of("d", 7)}, settings);
  tell(2, news("job-checkpointed", "a", 1).set("step", 1).set("seconds", 8.0));
  coordinator_->tick(now_ + 70);
  EXPECT_FALSE(coordinator_->stopping());
  coordinator_->tick(now_ + 72);  // 5 s + 3 x 8 s before the end
  EXPECT_TRUE(coordinator_->stopping());
}

TEST_F(CoordinatorTest, pain_P124_no_job_starts_when_there_is_no_time_left) {
  CoordinatorSettings settings;
  settings.end_at = now_ + 6;
  start({job_of("a", 3)}, settings);
  EXPECT_TRUE(sent("assign").empty());
  coordinator_->tick(now_ + 4);
  EXPECT_EQ(coordinator_->exit_code(), 75);
}

TEST_F(CoordinatorTest, workers_on_one_machine_get_different_cores) {
  start({job_of("a", 3), job_of("b", 6)});
  std::set<int64_t> cores;
  size_t given = 0;
  for (const Output& output : outputs_) {
    if (output.kind != Output::Kind::kSend) continue;
    const trainer::TrainAssignment assignment =
        trainer::train_assignment_from_json(output.json.at("assignment"));
    EXPECT_EQ(assignment.threads, 2);
    given += assignment.cpus.size();
    cores.insert(assignment.cpus.begin(), assignment.cpus.end());
  }
  EXPECT_EQ(given, 4u);
  EXPECT_EQ(cores.size(), 4u);
}

TEST_F(CoordinatorTest, a_journal_that_cannot_be_written_ends_the_run) {
  start({job_of("a", 3)});
  coordinator_->fail_run(Reason::kDiskFull, "cannot write the journal: no space left", now_);
  take();
  EXPECT_EQ(sent("job-end"), (List{"2:a:1"}));
  failed(2, "a", 1, "stopped");
  EXPECT_TRUE(coordinator_->done());
  EXPECT_EQ(coordinator_->exit_code(), 74);
}

}  // namespace
}  // namespace galley::launcher
