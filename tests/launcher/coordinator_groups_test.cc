// Groups in the coordinator: who is ended when somebody fails, who is to blame, and that under any
// order of events GPUs come back once and only when all workers have been reaped.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "engine/core/random.h"
#include "engine/core/strings.h"
#include "launcher/coordinator.h"
#include "launcher/protocol.h"
#include "tests/launcher/fake_run.h"

namespace galley::launcher {
namespace {

/// Ranks 1 and 2 hold nodes n1 and n2 with two GPUs each, on one machine.
RunWorld four_gpus() {
  std::vector<Hello> hellos(3);
  for (int rank = 0; rank < 3; ++rank) {
    Hello& hello = hellos[static_cast<size_t>(rank)];
    hello.rank = rank;
    hello.host = "vm";
    for (int cpu = 0; cpu < 4; ++cpu) hello.cpus.push_back({cpu, cpu, 0});
    hello.node_cpus = 4;
  }
  return build_world(hellos, testing::fake_cluster({{8, 8}, {8, 8}}));
}

CoordinatorJob job_of(const std::string& name) {
  CoordinatorJob job;
  job.prepared = testing::fake_prepared_job(name, 10, 1, 1);
  job.prepared.config.hidden = 64;
  job.directory = "runs/fake/jobs/" + name;
  return job;
}

class GroupTest : public ::testing::Test {
 protected:
  struct Sent {
    int to = 0;
    std::string kind, job;
    int64_t attempt = 0, worker = 0;
    bool operator==(const Sent&) const = default;
  };

  void start(const std::vector<std::string>& names, CoordinatorSettings settings = {}) {
    std::vector<CoordinatorJob> jobs;
    for (const std::string& name : names) jobs.push_back(job_of(name));
    settings.entropy = "of this test";
    coordinator_ = std::make_unique<Coordinator>(settings, four_gpus(), std::move(jobs),
                                                 std::vector<std::pair<std::string, std::string>>(),
                                                 testing::fake_policy(), now_);
    take();
  }
  void take() {
    for (Output& output : coordinator_->take_outputs()) {
      if (output.kind == Output::Kind::kEvent) texts_ += output.text + "\n";
      if (output.kind == Output::Kind::kJournal) journal_.push_back(output.json);
      if (output.kind != Output::Kind::kSend) continue;
      const Json& json = output.json;
      sent_.push_back({output.to, message_kind(json), json.get_string("job"),
                       json.get_int("attempt"), json.get_int("worker")});
      if (message_kind(json) == "assign") {
        assigned_.push_back(trainer::train_assignment_from_json(json.at("assignment")));
      }
    }
  }
  Json news(const std::string& kind, const std::string& job, int64_t attempt, int64_t worker) {
    return make_message(kind).set("job", job).set("attempt", attempt).set("worker", worker);
  }
  void tell(int from, const Json& message) {
    coordinator_->handle(from, message, now_);
    take();
  }
  void failed(int from, const std::string& job, int64_t attempt, int64_t worker,
              const std::string& reason, const std::string& blame) {
    tell(from, news("job-ended", job, attempt, worker)
                   .set("outcome", "failed")
                   .set("reason", reason)
                   .set("text", "text of worker " + std::to_string(worker))
                   .set("blame", blame)
                   .set("peak_bytes", 1000));
  }
  void finished(int from, const std::string& job, int64_t attempt, int64_t worker) {
    trainer::JobProgress progress;
    progress.step = progress.total_steps = 10;
    tell(from, news("job-ended", job, attempt, worker)
                   .set("outcome", "finished")
                   .set("progress", to_json(progress))
                   .set("planned_bytes", 10 + worker)
                   .set("peak_bytes", 1000 + worker));
  }
  void waits(int from, const std::string& job, int64_t worker, bool waiting = true) {
    tell(from, news("job-waiting", job, 1, worker).set("waiting", waiting).set("seconds", 1));
  }
  size_t count(const std::string& kind, const std::string& job) const {
    return static_cast<size_t>(std::count_if(sent_.begin(), sent_.end(), [&](const Sent& sent) {
      return sent.kind == kind && sent.job == job;
    }));
  }
  JobRow row(const std::string& name) const {
    for (const JobRow& row : coordinator_->table(now_)) {
      if (row.name == name) return row;
    }
    return {};
  }
  std::string record(const std::string& what, const std::string& key) const {
    for (const Json& json : journal_) {
      if (json.get_string("record") == what) return json.get_string(key);
    }
    return "";
  }

  double now_ = 100;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<Sent> sent_;
  std::vector<trainer::TrainAssignment> assigned_;
  std::vector<Json> journal_;
  std::string texts_;
};

TEST_F(GroupTest, each_worker_has_its_place_and_all_the_same_meeting) {
  start({"pp2-a", "tp2-b"});
  EXPECT_EQ(sent_[0], (Sent{1, "assign", "pp2-a", 1, 0}));
  EXPECT_EQ(sent_[1], (Sent{2, "assign", "pp2-a", 1, 1}));
  ASSERT_EQ(assigned_.size(), 4u);
  EXPECT_EQ(assigned_[1].group_rank, 1);
  EXPECT_EQ(assigned_[1].layout.pp_size, 2);
  EXPECT_EQ(assigned_[0].meeting.nodes, (std::vector<int>{0, 1}));
  EXPECT_EQ(assigned_[0].meeting.token, assigned_[1].meeting.token);
  EXPECT_NE(assigned_[0].meeting.token, assigned_[2].meeting.token);
  EXPECT_EQ(row("pp2-a").place, "n1:gpu0 + n2:gpu0 gpu-8gib (pp 2)");
  EXPECT_EQ(row("pp2-a").workers.size(), 2u);
  std::set<int> cpus;
  for (const auto& assignment : assigned_)
    cpus.insert(assignment.cpus.begin(), assignment.cpus.end());
  EXPECT_EQ(cpus.size(), 4u);
}

TEST_F(GroupTest, pain_P007_two_coordinators_of_the_same_jobs_never_share_a_meeting) {
  start({"tp2-a"});
  CoordinatorSettings other;
  other.entropy = "another start";
  Coordinator second(other, four_gpus(), {job_of("tp2-a")}, {}, testing::fake_policy(), now_);
  for (const Output& output : second.take_outputs()) {
    if (output.kind != Output::Kind::kSend) continue;
    EXPECT_NE(trainer::train_assignment_from_json(output.json.at("assignment")).meeting.token,
              assigned_[0].meeting.token);
  }
}

TEST_F(GroupTest, one_dies_all_are_ended_and_only_then_it_starts_again) {
  start({"pp2-a", "c"});
  failed(2, "pp2-a", 1, 1, "worker_died", "worker");
  EXPECT_EQ(sent_.back(), (Sent{1, "job-end", "pp2-a", 1, 0}));
  EXPECT_EQ(count("assign", "pp2-a"), 2u);
  EXPECT_EQ(row("pp2-a").state, JobState::kRunning);
  failed(2, "pp2-a", 1, 1, "worker_died", "worker");  // late: it has ended already
  failed(1, "pp2-a", 1, 0, "stopped", "order");
  EXPECT_EQ(count("assign", "pp2-a"), 4u);
  EXPECT_EQ(row("pp2-a").totals.restarts, 1);
  EXPECT_EQ(record("job-restarts", "reason"), "worker_died");
  EXPECT_EQ(record("job-restarts", "gpu"), "n2:gpu0");
  EXPECT_EQ(count("job-end", "c"), 0u);
  EXPECT_EQ(count("assign", "c"), 1u);
}

TEST_F(GroupTest, who_finds_a_peer_gone_is_not_to_blame) {
  start({"pp2-a"});
  failed(1, "pp2-a", 1, 0, "worker_died", "peer");
  EXPECT_EQ(count("job-end", "pp2-a"), 0u);  // the one to blame may still be heard
  failed(2, "pp2-a", 1, 1, "numerics", "worker");
  EXPECT_EQ(row("pp2-a").state, JobState::kFailed);
  EXPECT_EQ(row("pp2-a").reason, "text of worker 1");
}

TEST_F(GroupTest, a_victim_alone_ends_the_rest_after_a_second) {
  start({"pp2-a"});
  failed(1, "pp2-a", 1, 0, "worker_died", "peer");
  now_ += 1.5;
  coordinator_->tick(now_);
  take();
  EXPECT_EQ(sent_.back(), (Sent{2, "job-end", "pp2-a", 1, 1}));
}

TEST_F(GroupTest, finished_when_all_have_left_with_the_bytes_of_each) {
  start({"pp2-a"});
  finished(1, "pp2-a", 1, 0);
  EXPECT_EQ(row("pp2-a").state, JobState::kRunning);
  finished(2, "pp2-a", 1, 1);
  EXPECT_EQ(row("pp2-a").state, JobState::kFinished);
  EXPECT_TRUE(coordinator_->done());
  const Json& workers = journal_.back().at("workers");
  EXPECT_EQ(workers.as_array()[1].get_int("planned_bytes"), 11);
  EXPECT_EQ(workers.as_array()[1].get_int("peak_bytes"), 1001);
}

TEST_F(GroupTest, a_stop_is_told_to_the_leader) {
  start({"pp2-a"});
  coordinator_->request_stop(0, 10, "signal 10", now_);
  take();
  EXPECT_EQ(sent_.back(), (Sent{1, "job-command", "pp2-a", 1, 0}));
  EXPECT_EQ(count("job-command", "pp2-a"), 1u);
}

TEST_F(GroupTest, pain_P015_nobody_is_ended_for_waiting_while_another_one_works) {
  start({"pp2-a"});
  tell(2, news("job-alive", "pp2-a", 1, 1).set("what", "load 35 %"));
  waits(1, "pp2-a", 0);
  for (int i = 0; i < 4000; ++i) {
    now_ += 1;
    tell(1, make_message("agent-beat"));
    tell(2, make_message("agent-beat"));
    coordinator_->tick(now_);
    take();
  }
  EXPECT_EQ(count("job-end", "pp2-a"), 0u);
  EXPECT_NE(texts_.find("for its worker 1 on n2:gpu0 (load 35 %)"), std::string::npos) << texts_;
}

TEST_F(GroupTest, a_group_that_waits_for_itself_is_hung) {
  start({"pp2-a"});
  waits(1, "pp2-a", 0);
  waits(2, "pp2-a", 1);
  now_ += 11;
  coordinator_->tick(now_);
  take();
  EXPECT_EQ(count("job-end", "pp2-a"), 2u);
  failed(1, "pp2-a", 1, 0, "stopped", "order");
  failed(2, "pp2-a", 1, 1, "stopped", "order");
  EXPECT_EQ(record("job-restarts", "reason"), "worker_hung");
  EXPECT_EQ(count("assign", "pp2-a"), 4u);
}

TEST_F(GroupTest, pain_P018_a_lost_agent_restarts_the_groups_it_had_a_worker_of) {
  CoordinatorSettings settings;
  settings.lost_agents = LostAgents::kGoOn;
  start({"pp2-a", "tp2-b", "c"}, settings);  // tp2-b: n1:gpu1 and n2:gpu1
  now_ += 16;
  tell(1, make_message("agent-beat"));
  coordinator_->tick(now_);
  take();
  EXPECT_EQ(count("job-end", "pp2-a"), 1u);  // to the one that lives; nobody waits for the other
  failed(1, "pp2-a", 1, 0, "stopped", "order");
  EXPECT_EQ(record("job-restarts", "reason"), "agent_lost");
  EXPECT_EQ(row("pp2-a").state, JobState::kWaiting);  // two nodes are no more to be had
}

/// Plays the agents: obeys, and does what the draws say.
TEST_F(GroupTest, any_order_of_deaths_words_and_losses_keeps_the_books) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed, random_stream("coordinator groups"));
    sent_.clear();
    journal_.clear();
    CoordinatorSettings settings;
    settings.lost_agents = LostAgents::kGoOn;
    start({"pp2-a", "tp2-b", "dp3-c", "d", "e"}, settings);
    std::set<int> dead_agents;
    std::map<std::tuple<std::string, int64_t, int64_t>, Sent> live;  // workers that run
    size_t seen = 0;
    for (int round = 0; round < 400 && !coordinator_->done(); ++round) {
      for (; seen < sent_.size(); ++seen) {
        const Sent& sent = sent_[seen];
        if (sent.kind == "assign") live[{sent.job, sent.attempt, sent.worker}] = sent;
      }
      std::map<std::string, std::set<int64_t>> attempts;
      for (const auto& [key, worker] : live) attempts[worker.job].insert(worker.attempt);
      for (const auto& [job, numbers] : attempts) {
        EXPECT_EQ(numbers.size(), 1u) << job << " runs twice, seed " << seed;
      }
      EXPECT_LE(live.size(), 4u) << "a GPU is used twice, seed " << seed;
      now_ += 0.3;
      for (int rank = 1; rank <= 2; ++rank) {
        if (!dead_agents.contains(rank)) tell(rank, make_message("agent-beat"));
      }
      if (dead_agents.empty() && random.below(300) == 0) {
        dead_agents.insert(2);
        now_ += 16;
        tell(1, make_message("agent-beat"));
        std::erase_if(live, [](const auto& entry) { return entry.second.to == 2; });
      }
      coordinator_->tick(now_);
      take();
      if (live.empty()) continue;
      auto entry = live.begin();
      std::advance(entry, static_cast<long>(random.below(live.size())));
      const Sent worker = entry->second;
      const bool told = std::any_of(sent_.begin(), sent_.end(), [&](const Sent& sent) {
        return sent == Sent{worker.to, "job-end", worker.job, worker.attempt, worker.worker};
      });
      const uint64_t draw = random.below(told ? 2 : 12);
      if (draw > 5) continue;
      live.erase(entry);
      if (told) {
        failed(worker.to, worker.job, worker.attempt, worker.worker, "stopped", "order");
      } else if (draw < 3) {
        finished(worker.to, worker.job, worker.attempt, worker.worker);
      } else {
        failed(worker.to, worker.job, worker.attempt, worker.worker, "worker_died",
               draw == 3 ? "worker" : "peer");
      }
      if (random.below(4) == 0) {  // once more, late
        failed(worker.to, worker.job, worker.attempt, worker.worker, "worker_died", "worker");
      }
    }
    // Whoever was left only waits for GPUs that are lost.
    EXPECT_TRUE(coordinator_->done() || !dead_agents.empty()) << "seed " << seed;
    std::map<std::string, int> closed;
    for (const Json& json : journal_) {
      const std::string what = json.get_string("record");
      if (what == "job-finished" || what == "job-restarts" || what == "job-failed") {
        ++closed[cat(json.get_string("job"), " ", json.get_int("attempt"))];
      }
    }
    for (const auto& [attempt, times] : closed) EXPECT_EQ(times, 1) << attempt << " " << seed;
  }
}

TEST(PlaceTest, unlike_gpus_are_named_one_by_one) {
  const auto cluster = testing::fake_cluster({{8, 8}, {4}});
  model::ParallelLayout layout;
  layout.tp_size = 2;
  EXPECT_EQ(place_text(cluster, {0, 1}, layout), "n1:gpu0-1 gpu-8gib (tp 2)");
  EXPECT_EQ(place_text(cluster, {0, 2}, layout), "n1:gpu0 gpu-8gib + n2:gpu0 gpu-4gib (tp 2)");
  EXPECT_EQ(place_text(cluster, {2}, {}), "n2:gpu0 gpu-4gib");
}

TEST(BulkTest, pieces_travel_whole_and_are_no_messages) {
  const std::string bytes = encode_bulk({int64_t{1} << 40, 3, 258, std::string("\0{x", 3)});
  EXPECT_TRUE(is_bulk(bytes));
  EXPECT_FALSE(is_bulk(make_message("quit").dump()));
  const BulkPiece piece = decode_bulk(bytes);
  EXPECT_EQ(piece.group, int64_t{1} << 40);
  EXPECT_EQ(piece.to, 3);
  EXPECT_EQ(piece.from, 258);
  EXPECT_EQ(piece.payload, std::string_view("\0{x", 3));
  EXPECT_THROW(decode_bulk(bytes.substr(0, 5)), Error);
}

}  // namespace
}  // namespace galley::launcher
