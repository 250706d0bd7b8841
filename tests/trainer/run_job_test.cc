#include "trainer/run_job.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/model/adapter_file.h"
#include "engine/model/memory_plan.h"
#include "tests/trainer/toy_job.h"
#include "trainer/checkpoint.h"
#include "trainer/data_order.h"
#include "trainer/schedule.h"

namespace galley::trainer {
namespace {

using testing::FakeEvents;
using testing::make_toy_job;
using testing::run_until;
using testing::ToyJob;
using Outcome = JobResult::Outcome;

/// The adapter of 20 steps without a stop.
std::string uninterrupted() {
  const ToyJob job = make_toy_job("whole");
  EXPECT_EQ(run_until(job, -1).outcome, Outcome::kFinished);
  return job.adapter_text();
}

Reason reason_of(const ToyJob& job, std::string* text = nullptr) {
  FakeEvents events;
  try {
    run_job(job.assignment, events);
    return Reason::kOk;
  } catch (const Error& error) {
    if (text != nullptr) *text = error.what();
    return error.reason();
  }
}

/// Column of metrics.csv by step.
std::map<int64_t, std::string> column(const ToyJob& job, size_t index) {
  std::map<int64_t, std::string> values;
  const auto lines = job.metrics();
  for (size_t i = 1; i < lines.size(); ++i) {
    const auto fields = split(lines[i], ',');
    EXPECT_TRUE(values.emplace(*parse_int(fields[0]), fields[index]).second) << "step twice";
  }
  return values;
}

/// Runs the job in a child process; `prepare` sets up its events and limits. The wait status.
int run_in_child(const ToyJob& job, const std::function<void(FakeEvents&)>& prepare) {
  const pid_t child = fork();
  if (child == 0) {
    FakeEvents events;
    prepare(events);
    try {
      run_job(job.assignment, events);
      _exit(0);
    } catch (const Error& error) {
      _exit(error.exit_code());
    } catch (...) {
      _exit(99);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(RunJob, trains_and_leaves_a_peft_folder) {
  const ToyJob job = make_toy_job("simple");
  FakeEvents events;
  const JobResult result = run_until(job, -1, &events);
  EXPECT_EQ(result.outcome, Outcome::kFinished);
  EXPECT_EQ(events.started_at, 0);
  EXPECT_EQ(events.total, 20);
  EXPECT_EQ(events.note, "kernels " + job.assignment.spec.kernels + " (pinned)");
  ASSERT_EQ(events.steps.size(), 20u);
  EXPECT_LT(events.steps.back().loss, events.steps.front().loss);
  EXPECT_EQ(events.checkpoints, std::vector<int64_t>{20});
  EXPECT_EQ(result.last.step, 20);
  EXPECT_GT(result.allocated_bytes, 0u);
  const auto config = model::read_model_config(job.assignment.spec.model);
  const model::Adapter adapter = model::read_adapter(result.adapter_directory, config);
  EXPECT_EQ(adapter.linears.size(), 14u);
  EXPECT_EQ(adapter.settings.dropout, 0.1);
  EXPECT_EQ(adapter.base_model, job.assignment.spec.model);
  EXPECT_EQ(column(job, 2).size(), 20u);
  struct stat status {};
  stat(job.assignment.job_directory.c_str(), &status);
  EXPECT_EQ(status.st_mode & 077u, 0u);
}

TEST(RunJob, planned_bytes_are_checked) {
  ToyJob job = make_toy_job("planned");
  FakeEvents events;
  const uint64_t bytes = run_until(job, 1, &events).allocated_bytes;
  job.assignment.planned_bytes = bytes + 64;
  EXPECT_EQ(reason_of(job), Reason::kInternal);
  job.assignment.planned_bytes = bytes;
  EXPECT_EQ(reason_of(job), Reason::kOk);
  // The plan itself, as the predictor makes it.
  const auto config = model::read_model_config(job.assignment.spec.model);
  const text::TokenFile tokens = text::TokenFile::open(job.assignment.token_file);
  model::MemorySettings settings;
  settings.linears = model::adapted_linears(config, job.assignment.spec.lora);
  settings.micro_batch_tokens = job.assignment.micro_batch_tokens;
  settings.micro_batch_rows = job.assignment.spec.global_batch;
  settings.max_position = static_cast<int64_t>(tokens.summary().longest);
  settings.dropout = true;
  const auto traits = device::host_device_traits({.capacity_bytes = job.assignment.capacity_bytes});
  EXPECT_EQ(model::memory_plan(config, {}, {}, settings, traits).total_bytes(), bytes);
  job = make_toy_job("small");
  job.assignment.capacity_bytes = bytes - 1;
  EXPECT_EQ(reason_of(job), Reason::kOutOfMemory);
}

TEST(RunJob, pain_P024_ten_and_ten_steps_are_twenty) {
  const ToyJob job = make_toy_job("halves");
  EXPECT_EQ(run_until(job, 10).outcome, Outcome::kStopped);
  EXPECT_EQ(newest_checkpoint_step(job.assignment.job_directory), 10);
  FakeEvents events;
  EXPECT_EQ(run_until(job, -1, &events).outcome, Outcome::kFinished);
  EXPECT_EQ(events.started_at, 10);
  EXPECT_EQ(events.steps.front().step, 11);
  EXPECT_EQ(job.adapter_text(), uninterrupted());
}

TEST(RunJob, pain_P033_five_resumes_in_one_epoch) {
  ToyJob job = make_toy_job("five");
  job.assignment.spec.global_batch = 2;  // 16 steps an epoch
  std::vector<int64_t> steps;
  for (const int64_t stop : {2, 3, 5, 9, 14, -1}) {
    FakeEvents events;
    run_until(job, stop, &events);
    for (const JobProgress& progress : events.steps) steps.push_back(progress.step);
  }
  ToyJob whole = make_toy_job("five_whole");
  whole.assignment.spec.global_batch = 2;
  run_until(whole, -1);
  EXPECT_EQ(job.adapter_text(), whole.adapter_text());
  // Each step once, so each sample exactly once an epoch (data_order_test), and the same rows.
  std::vector<int64_t> expected(20);
  for (size_t i = 0; i < 20; ++i) expected[i] = static_cast<int64_t>(i) + 1;
  EXPECT_EQ(steps, expected);
  EXPECT_EQ(column(job, 5), column(whole, 5));
  EXPECT_EQ(column(job, 2), column(whole, 2));
}

TEST(RunJob, pain_P031_kill_9_at_arbitrary_steps_gives_the_same_bits) {
  ToyJob job = make_toy_job("killed");
  job.assignment.checkpoint_every_s = 0;
  int kills = 0;
  for (const char* at : {"step 3, micro batch 1", "checkpoint 5", "step 6, micro batch 1",
                         "load 0 %", "step 17, micro batch 1", "write the adapter"}) {
    const int status = run_in_child(job, [&](FakeEvents& events) {
      events.on_alive = [&](const std::string& what) {
        if (what == at) raise(SIGKILL);
      };
    });
    if (WIFSIGNALED(status)) ++kills;
  }
  EXPECT_EQ(kills, 6);
  FakeEvents events;
  EXPECT_EQ(run_until(job, -1, &events).outcome, Outcome::kFinished);
  EXPECT_EQ(job.adapter_text(), uninterrupted());
  EXPECT_EQ(column(job, 2).size(), 20u);
}

TEST(RunJob, pain_P116_killed_during_the_export_is_not_done) {
  const ToyJob job = make_toy_job("export");
  const int status = run_in_child(job, [](FakeEvents& events) {
    events.on_alive = [](const std::string& what) {
      if (what == "write the adapter") raise(SIGINT);
    };
  });
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(path_exists(job.assignment.job_directory + "/finished.json"));
  FakeEvents events;
  EXPECT_EQ(run_until(job, -1, &events).outcome, Outcome::kFinished);
  EXPECT_EQ(events.started_at, 20);
  EXPECT_TRUE(events.steps.empty());
  EXPECT_EQ(job.adapter_text(), uninterrupted());
}

TEST(RunJob, pain_P115_killed_while_a_checkpoint_is_written) {
  ToyJob job = make_toy_job("half_written");
  run_until(job, 5);
  job.assignment.checkpoint_every_s = 0;
  // SIGXFSZ ends the child in the middle of the write, as kill -9 would.
  const int status = run_in_child(job, [](FakeEvents&) {
    const rlimit limit{40000, 40000};
    setrlimit(RLIMIT_FSIZE, &limit);
  });
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
  EXPECT_EQ(newest_checkpoint_step(job.assignment.job_directory), 5);
  FakeEvents events;
  run_until(job, -1, &events);
  EXPECT_EQ(events.started_at, 5);
  EXPECT_EQ(job.adapter_text(), uninterrupted());
  for (const std::string& name : galley::testing::list_directory(job.assignment.job_directory)) {
    EXPECT_EQ(name.find("tmp"), std::string::npos) << name;
  }
}

TEST(RunJob, disk_full_is_74_and_loses_nothing) {
  ToyJob job = make_toy_job("full");
  run_until(job, 5);
  const std::string before = read_file(checkpoint_path(job.assignment.job_directory, 5));
  job.assignment.checkpoint_every_s = 0;
  const int status = run_in_child(job, [](FakeEvents&) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{40000, 40000};
    setrlimit(RLIMIT_FSIZE, &limit);
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 74);
  EXPECT_EQ(read_file(checkpoint_path(job.assignment.job_directory, 5)), before);
  for (const std::string& name : galley::testing::list_directory(job.assignment.job_directory)) {
    EXPECT_EQ(name.find("tmp"), std::string::npos) << name;
  }
  run_until(job, -1);
  EXPECT_EQ(job.adapter_text(), uninterrupted());
}

TEST(RunJob, broken_newest_checkpoint_falls_back_to_the_older) {
  const struct {
    const char* name;
    std::function<void(const std::string&)> damage;
  } cases[] = {
      {"truncated",
       [](const std::string& path) { std::filesystem::resize_file(path, file_bytes(path) / 2); }},
      {"empty", [](const std::string& path) { std::filesystem::resize_file(path, 0); }},
      {"flipped", [](const std::string& path) {
         std::string text = read_file(path);
         text[text.size() / 3] = static_cast<char>(text[text.size() / 3] ^ 16);
         std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
       }}};
  const std::string expected = uninterrupted();
  for (const auto& one : cases) {
    SCOPED_TRACE(one.name);
    const ToyJob job = make_toy_job("broken");
    run_until(job, 4);
    run_until(job, 8);
    one.damage(checkpoint_path(job.assignment.job_directory, 8));
    FakeEvents events;
    EXPECT_EQ(run_until(job, -1, &events).outcome, Outcome::kFinished);
    EXPECT_EQ(events.started_at, 4);
    EXPECT_NE(events.note.find("checkpoint-8.h5"), std::string::npos) << events.note;
    EXPECT_EQ(job.adapter_text(), expected);
    EXPECT_EQ(column(job, 2).size(), 20u);
  }
}

TEST(RunJob, pain_P026_step_and_rate_continue) {
  const ToyJob job = make_toy_job("continue");
  run_until(job, 7);
  FakeEvents events;
  run_until(job, -1, &events);
  const Schedule schedule = schedule_of(job.assignment.spec, 20);
  EXPECT_EQ(events.steps.front().step, 8);
  EXPECT_EQ(events.steps.front().learning_rate, schedule.at(8));
}

TEST(RunJob, pain_P035_logged_rate_is_the_formula_after_a_resume_on_other_threads) {
  ToyJob job = make_toy_job("threads");
  job.assignment.threads = 2;
  run_until(job, 6);
  job.assignment.threads = 1;
  FakeEvents events;
  run_until(job, -1, &events);
  EXPECT_NE(events.note.find("threads 2 then, 1 now"), std::string::npos) << events.note;
  const Schedule schedule = schedule_of(job.assignment.spec, 20);
  for (const auto& [step, rate] : column(job, 4)) EXPECT_EQ(std::stod(rate), schedule.at(step));
}

TEST(RunJob, pain_P028_the_same_command_twice_does_the_work_once) {
  const ToyJob job = make_toy_job("twice");
  const JobResult first = run_until(job, -1);
  struct stat before {
  }, after{};
  stat((first.adapter_directory + "/adapter_model.safetensors").c_str(), &before);
  FakeEvents events;
  const JobResult second = run_until(job, -1, &events);
  stat((second.adapter_directory + "/adapter_model.safetensors").c_str(), &after);
  EXPECT_EQ(second.outcome, Outcome::kFinished);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_TRUE(events.steps.empty());
  EXPECT_EQ(second.last.loss, first.last.loss);
  EXPECT_EQ(second.last.step, 20);
  // A lost adapter is written again from the last checkpoint.
  std::filesystem::remove_all(first.adapter_directory);
  EXPECT_EQ(run_until(job, -1).outcome, Outcome::kFinished);
  EXPECT_EQ(job.adapter_text(), uninterrupted());
}

TEST(RunJob, pain_P080_a_changed_tokenizer_is_refused) {
  ToyJob job = make_toy_job("tokenizer");
  run_until(job, 5);
  job.inputs.set("tokenizer", "t1");
  job.write_tokens();
  std::string text;
  EXPECT_EQ(reason_of(job, &text), Reason::kBadCheckpoint);
  EXPECT_NE(text.find("tokenizer"), std::string::npos) << text;
  EXPECT_EQ(text.find("chat_template"), std::string::npos) << text;
  job.inputs = testing::toy_inputs();
  job.write_tokens();
  EXPECT_EQ(reason_of(job), Reason::kOk);
}

TEST(RunJob, changed_settings_or_weights_are_refused) {
  ToyJob job = make_toy_job("changed");
  run_until(job, 5);
  job.assignment.spec.learning_rate = 0.5;
  std::string text;
  EXPECT_EQ(reason_of(job, &text), Reason::kBadCheckpoint);
  EXPECT_NE(text.find("learning_rate"), std::string::npos) << text;
  job.assignment.spec.learning_rate = 1e-2;
  const std::string weights = job.assignment.spec.model + "/model.safetensors";
  std::string bytes = read_file(weights);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file_atomically(weights, bytes);
  EXPECT_EQ(reason_of(job, &text), Reason::kBadCheckpoint);
  EXPECT_NE(text.find("weights"), std::string::npos) << text;
}

TEST(RunJob, pain_P084_non_finite_training_is_never_saved) {
  ToyJob job = make_toy_job("nan");
  job.assignment.spec.learning_rate = 1e30;
  job.assignment.spec.clip_norm = 0;
  job.assignment.checkpoint_every_s = 0;
  EXPECT_EQ(reason_of(job), Reason::kNumerics);
  EXPECT_FALSE(path_exists(job.assignment.job_directory + "/adapter"));
  const auto newest = newest_checkpoint(job.assignment.job_directory, nullptr, PutAside::kNo);
  if (newest) {
    for (const float value : read_checkpoint(newest->path).values)
      ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(RunJob, pain_P188_embedding_may_have_more_rows_than_the_tokenizer) {
  ToyJob job = make_toy_job("vocabulary");  // vocabulary 128, ids below 120
  EXPECT_EQ(reason_of(job), Reason::kOk);
  job = make_toy_job("vocabulary");
  job.sets = {testing::toy_rows(32, 300, 3)};
  job.write_tokens();
  std::string text;
  EXPECT_EQ(reason_of(job, &text), Reason::kBadData);
  EXPECT_NE(text.find("128 tokens"), std::string::npos) << text;
}

TEST(RunJob, pain_P200_same_job_twice_is_bit_equal) { EXPECT_EQ(uninterrupted(), uninterrupted()); }

TEST(RunJob, pain_P038_memory_does_not_grow_with_accumulation) {
  uint64_t bytes[2];
  for (const int64_t batch : {4, 16}) {
    ToyJob job = make_toy_job("memory");
    job.assignment.spec.global_batch = batch;
    job.assignment.spec.max_steps = 2;
    bytes[batch == 16] = run_until(job, -1).allocated_bytes;
  }
  EXPECT_LT(bytes[1] - bytes[0], 4096u);
}

TEST(RunJob, checkpoint_on_command_and_by_time) {
  const ToyJob job = make_toy_job("command");
  FakeEvents events;
  events.checkpoint_at = 3;
  run_until(job, 6, &events);
  ASSERT_GE(events.checkpoints.size(), 2u);
  EXPECT_LE(events.checkpoints[0], 4);
  EXPECT_EQ(events.checkpoints.back(), 6 + 0);
  ToyJob timed = make_toy_job("timed");
  timed.assignment.checkpoint_every_s = 0;
  FakeEvents all;
  run_until(timed, 6, &all);
  EXPECT_EQ(all.checkpoints, (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(path_exists(checkpoint_path(timed.assignment.job_directory, 5)));
  EXPECT_FALSE(path_exists(checkpoint_path(timed.assignment.job_directory, 4)));
}

TEST(RunJob, assignment_survives_json) {
  ToyJob job = make_toy_job("json");
  job.assignment.cpus = {0, 3};
  job.assignment.weight_dtype = DType::kBf16;
  job.assignment.planned_bytes = 12345;
  job.assignment.may_round_inputs = true;
  job.assignment.precision_note = "a note";
  const std::string text = to_json(job.assignment).dump();
  EXPECT_EQ(
      to_json(train_assignment_from_json(parse_json_or_throw(text, "x", Reason::kInternal))).dump(),
      text);
}

}  // namespace
}  // namespace galley::trainer
