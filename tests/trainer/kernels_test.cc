#include "trainer/kernels.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "tests/trainer/toy_job.h"
#include "trainer/checkpoint.h"

namespace galley::trainer {
namespace {

using device::KernelSet;
using testing::FakeEvents;
using testing::make_toy_job;
using testing::run_until;
using testing::ToyJob;

std::vector<std::string> usable_names() {
  std::vector<std::string> names;
  for (const KernelSet kernels : device::usable_kernel_sets())
    names.push_back(device::kernel_set_name(kernels));
  return names;
}

/// Requests of a small model, and the folder of a job.
class Kernels : public ::testing::Test {
 protected:
  Kernels() : folder_(galley::testing::scratch_directory("kernels")) {
    model::ModelConfig config;
    config.hidden = 32;
    config.intermediate = 64;
    config.num_heads = config.num_kv_heads = 4;
    config.head_dim = 8;
    request_.work = training_work(config, DType::kF32, 64, 1, {});
  }

  std::string path() const { return path_join(folder_, "kernels.json"); }
  Json kept() const { return parse_json_or_throw(read_file(path()), path(), Reason::kInternal); }
  void rewrite(const std::string& key, const Json& value) {
    Json json = kept();
    json.set(key, value);
    write_file_atomically(path(), json.dump());
  }
  KernelDecision decide() { return decide_kernels(folder_, request_); }
  std::string refusal() {
    try {
      return "no refusal: " + decide().text;
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kBadConfig);
      return error.what();
    }
  }

  std::string folder_;
  KernelRequest request_;
};

TEST_F(Kernels, measured_kept_and_reused) {
  const KernelDecision first = decide();
  EXPECT_EQ(first.measured.as_array().size(),
            device::kernel_candidates(device::InputRounding::kNever).size());
  EXPECT_FALSE(device::kernel_set_rounds(first.kernels));
  EXPECT_EQ(first.text.find("kernels " + device::kernel_set_name(first.kernels)), 0u);
  EXPECT_EQ(kept().at("processor").as_string(), device::processor_name());
  EXPECT_EQ(kept().at("kernels").as_string(), device::kernel_set_name(first.kernels));
  for (const Json& one : first.measured.as_array()) EXPECT_GT(one.at("gflops").as_double(), 0);
  EXPECT_EQ(kept().at("measured").dump(), first.measured.dump());

  const KernelDecision second = decide();
  EXPECT_EQ(second.kernels, first.kernels);
  EXPECT_NE(second.text.find("as measured before"), std::string::npos);
  EXPECT_EQ(second.measured.dump(), first.measured.dump());
  // The file is what decides, not a measurement that happens to agree.
  rewrite("kernels", "portable");
  EXPECT_EQ(decide().kernels, KernelSet::kPortable);
}

TEST_F(Kernels, a_choice_that_cannot_be_kept_is_made_all_the_same) {
  make_directories(path());
  const KernelDecision decision = decide();
  EXPECT_NE(decision.text.find(", not kept: "), std::string::npos) << decision.text;
  EXPECT_FALSE(decision.measured.as_array().empty());
}

TEST_F(Kernels, what_does_not_hold_any_more_is_measured_anew) {
  decide();
  const std::string good = read_file(path());
  const auto again = [&](const char* what) {
    SCOPED_TRACE(what);
    const KernelDecision decision = decide();
    EXPECT_EQ(decision.text.find("as measured before"), std::string::npos) << decision.text;
    EXPECT_FALSE(device::kernel_set_rounds(decision.kernels));
    EXPECT_EQ(kept().at("processor").as_string(), device::processor_name());
    EXPECT_NE(decide().text.find("as measured before"), std::string::npos);
  };
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, Json>>{{"processor", "another one"},
                                                 {"threads", 7},
                                                 {"weights", "BF16"},
                                                 {"may_round_inputs", true},
                                                 {"format", 2},
                                                 {"kernels", "avx1024"},
                                                 {"kernels", 5},
                                                 {"kernels", "avx512-bf16"}}) {
    write_file_atomically(path(), good);
    rewrite(key, value);
    again(key.c_str());
  }
  for (const char* text : {"", "{", "[]", "3", "{\"kernels\": \"portable\"}"}) {
    write_file_atomically(path(), text);
    again(text);
  }
}

TEST_F(Kernels, a_pin_is_obeyed_or_refused_naming_what_there_is) {
  for (const std::string& name : device::kernel_set_names()) {
    if (name == "auto") continue;
    SCOPED_TRACE(name);
    request_.pin = name;
    const KernelSet kernels = device::kernel_set_from_name(name);
    request_.may_round_inputs = true;
    if (!device::kernel_set_usable(kernels)) {
      EXPECT_NE(refusal().find("it has " + join(usable_names(), ", ")), std::string::npos);
      continue;
    }
    EXPECT_EQ(decide().kernels, kernels);
    EXPECT_EQ(decide().text, "kernels " + name + " (pinned)");
    request_.may_round_inputs = false;
    if (!device::kernel_set_rounds(kernels)) {
      EXPECT_EQ(decide().kernels, kernels);
      continue;
    }
    EXPECT_NE(refusal().find("rounds inputs to bf16"), std::string::npos);
    EXPECT_NE(refusal().find("portable"), std::string::npos);
  }
  EXPECT_FALSE(path_exists(path()));
  request_.pin = "avx51";
  EXPECT_NE(refusal().find("avx512"), std::string::npos);
}

TEST_F(Kernels, those_of_the_checkpoint_win_where_they_can_run) {
  decide();
  rewrite("kernels", usable_names().back());
  request_.checkpoint = "portable";
  request_.checkpoint_measured = Json::array();
  EXPECT_EQ(decide().kernels, KernelSet::kPortable);
  EXPECT_EQ(decide().text, "kernels portable (as in the checkpoint)");
  // Of another processor, of a later version, or rounding where that is not allowed (any more).
  for (const char* name : {"sve2", "avx512-bf16"}) {
    request_.checkpoint = name;
    const KernelDecision decision = decide();
    EXPECT_FALSE(device::kernel_set_rounds(decision.kernels));
    EXPECT_NE(decision.text.find(cat("the checkpoint's kernels ", name, " cannot be used here")),
              std::string::npos);
  }
}

TEST_F(Kernels, rounding_ones_take_part_only_where_allowed) {
  request_.may_round_inputs = true;
  request_.work.weights = device::WeightKind::kBf16;
  EXPECT_EQ(decide().measured.as_array().size(), device::usable_kernel_sets().size());
}

ToyJob unpinned_job(const std::string& name) {
  ToyJob job = make_toy_job(name);
  job.assignment.spec.kernels = "";
  return job;
}

std::string kernels_of_checkpoint(const ToyJob& job) {
  const auto newest = newest_checkpoint(job.assignment.job_directory, nullptr, PutAside::kNo);
  return newest ? read_checkpoint_record(newest->path).kernels : "";
}

TEST(JobKernels, a_worker_that_starts_again_computes_with_the_same_kernels) {
  const ToyJob job = unpinned_job("again");
  // Killed before its first checkpoint: only the job's directory knows the choice.
  const pid_t child = fork();
  if (child == 0) {
    FakeEvents events;
    events.on_alive = [](const std::string& what) {
      if (what == "step 2, micro batch 1") raise(SIGKILL);
    };
    run_job(job.assignment, events);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  const std::string path = path_join(job.assignment.job_directory, "kernels.json");
  const Json kept = parse_json_or_throw(read_file(path), path, Reason::kInternal);
  FakeEvents events;
  run_until(job, 5, &events);
  EXPECT_EQ(events.note, cat("kernels ", kept.at("kernels").as_string(), " (as measured before)"));
  EXPECT_EQ(kernels_of_checkpoint(job), kept.at("kernels").as_string());

  // From then on the checkpoint knows it, and the figures too.
  remove_file_if_exists(path);
  FakeEvents resumed;
  run_until(job, 8, &resumed);
  EXPECT_EQ(resumed.note,
            cat("kernels ", kept.at("kernels").as_string(), " (as in the checkpoint)"));
  const Json record =
      inspect_checkpoint(checkpoint_path(job.assignment.job_directory, 8)).at("record");
  EXPECT_EQ(record.at("kernels_measured").dump(), kept.at("measured").dump());
}

TEST(JobKernels, a_pin_wins_over_the_checkpoint_and_the_note_says_what_that_means) {
  ToyJob job = make_toy_job("pin");
  job.assignment.spec.kernels = "portable";
  run_until(job, 5);
  job.assignment.spec.kernels = usable_names().back() == "avx512-bf16" ? "avx512" : "";
  if (job.assignment.spec.kernels.empty()) GTEST_SKIP() << "one kind of kernels here";
  FakeEvents events;
  EXPECT_EQ(run_until(job, -1, &events).outcome, JobResult::Outcome::kFinished);
  EXPECT_NE(events.note.find("kernels portable then, avx512 now"), std::string::npos)
      << events.note;
}

TEST(JobKernels, a_forbidden_pin_ends_the_job_before_any_work) {
  ToyJob job = make_toy_job("forbidden");
  job.assignment.spec.precision = model::Precision::kF32;
  job.assignment.spec.kernels = "avx512-bf16";
  FakeEvents events;
  bool loaded = false;
  events.on_alive = [&](const std::string& what) { loaded = loaded || what.starts_with("load"); };
  try {
    run_job(job.assignment, events);
    ADD_FAILURE() << "it runs";
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kBadConfig);
  }
  EXPECT_FALSE(loaded);
}

TEST(JobKernels, the_note_on_precision_is_a_warning_before_any_work) {
  ToyJob job = make_toy_job("warned");
  job.assignment.precision_note = "t4-16gb has no bf16";
  FakeEvents events;
  size_t warnings_at_load = 99;
  events.on_alive = [&](const std::string& what) {
    if (what.starts_with("load") && warnings_at_load == 99)
      warnings_at_load = events.warnings.size();
  };
  run_until(job, -1, &events);
  EXPECT_EQ(events.warnings, std::vector<std::string>{"t4-16gb has no bf16"});
  EXPECT_EQ(warnings_at_load, 1u);
  FakeEvents finished;
  run_until(job, -1, &finished);
  EXPECT_TRUE(finished.warnings.empty());
}

}  // namespace
}  // namespace galley::trainer
