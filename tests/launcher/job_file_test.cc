#include "launcher/job_file.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "launcher/job_options.h"
#include "tests/support/reference.h"

namespace galley::launcher {
namespace {

constexpr const char* kSmallest = "[[train]]\nname = \"a\"\nmodel = \"m\"\ndata = \"d.jsonl\"\n";

std::string write(const std::string& text, const std::string& name = "jobs.toml") {
  const std::string path = path_join(testing::scratch_directory("job-file"), name);
  write_file_atomically(path, text);
  return path;
}

/// Neither a site's nor a user's file.
Environment bare(std::map<std::string, std::string> values = {}) {
  values.emplace("GALLEY_SITE_CONFIG", "");
  return Environment(values);
}

JobFile read(const std::string& text) { return read_job_file(write(text), bare()); }

/// The error of a job file whose [[train]] has these lines besides the three required ones.
std::string error_of(const std::string& lines, Reason reason = Reason::kBadConfig) {
  try {
    read(std::string(kSmallest) + lines);
  } catch (const Error& error) {
    EXPECT_EQ(reason_traits(error.reason()).name, reason_traits(reason).name) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << lines;
  return "";
}

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

std::string origin_of(const std::vector<OptionOrigin>& options, const std::string& key) {
  for (const OptionOrigin& option : options) {
    if (option.key == key) return option.origin;
  }
  return "no such option";
}

TEST(JobFile, the_smallest_file_has_the_documented_defaults) {
  const std::string path = write(kSmallest);
  const JobFile file = read_job_file(path, bare());
  ASSERT_EQ(file.jobs.size(), 1u);
  const model::TrainSpec& spec = file.jobs[0].spec;
  EXPECT_EQ(spec.name, "a");
  EXPECT_EQ(spec.model, path_join(path_directory(path), "m"));
  ASSERT_EQ(spec.data.size(), 1u);
  EXPECT_EQ(spec.data[0].path, path_join(path_directory(path), "d.jsonl"));
  EXPECT_EQ(spec.lora.rank, 16);
  EXPECT_EQ(spec.lora.alpha, 32);
  EXPECT_TRUE(spec.lora.targets.empty());
  EXPECT_EQ(spec.epochs, 3);
  EXPECT_EQ(spec.max_steps, -1);
  EXPECT_EQ(spec.learning_rate, 2e-4);
  EXPECT_EQ(spec.schedule, model::ScheduleKind::kCosine);
  EXPECT_EQ(spec.warmup_fraction, 0.03);
  EXPECT_EQ(spec.global_batch, 16);
  EXPECT_EQ(spec.sequence, 2048);
  EXPECT_EQ(spec.loss, model::LossKind::kAssistant);
  EXPECT_EQ(file.run.directory, "runs");
  EXPECT_FALSE(file.run.wall_time_s);
  EXPECT_EQ(file.run.checkpoint_every_s, 600);
  EXPECT_EQ(file.run.keep_checkpoints, 2);
  EXPECT_EQ(origin_of(file.jobs[0].options, "adapter.rank"), "default");
  EXPECT_EQ(origin_of(file.jobs[0].options, "name"), path + ":2");
}

TEST(JobFile, every_option_reaches_the_spec) {
  const JobFile file = read(R"(
[run]
directory = "somewhere"
wall_time = "4h"
checkpoint = { every = "90s", keep = 5 }
[[train]]
name = "full"
model = "/models/x"
data = ["one.jsonl", { path = "/two.jsonl" }]
adapter = { method = "lora", rank = 4, alpha = 12.5, targets = ["q_proj", "v_proj"], layers = [0, 2], dropout = 0.1, rslora = true, init = "gaussian", rank_pattern = { "q_proj" = 8 }, alpha_pattern = { "q_proj" = 3.5 } }
optimizer = { name = "adamw", learning_rate = 1e-4, beta1 = 0.8, beta2 = 0.95, epsilon = 1e-6, weight_decay = 0.01, clip_norm = 0 }
schedule = { name = "linear", warmup = 7 }
batch = { global = 32, sequence = 4096 }
length = { steps = 11 }
seed = 9
precision = "bf16"
loss = "completion"
truncation = "keep_end"
chat_template = "own.jinja"
special_tokens = "parse"
priority = -3
plan = { gpu_type = "a100-40gb", tp = 2, pp = 3, dp = 4, stage_layers = [10, 10, 4], sequence_parallel = true, micro_batch_tokens = 512, recompute = "block", threads = 2, kernels = "portable" }
)");
  const model::TrainSpec& spec = file.jobs.at(0).spec;
  EXPECT_EQ(file.run.directory, "somewhere");
  EXPECT_EQ(file.run.wall_time_s, 14400);
  EXPECT_EQ(file.run.checkpoint_every_s, 90);
  EXPECT_EQ(file.run.keep_checkpoints, 5);
  EXPECT_EQ(spec.model, "/models/x");
  ASSERT_EQ(spec.data.size(), 2u);
  EXPECT_EQ(spec.data[1].path, "/two.jsonl");
  EXPECT_EQ(spec.lora.alpha, 12.5);
  EXPECT_EQ(spec.lora.targets, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(spec.lora.layers, (std::vector<int64_t>{0, 2}));
  EXPECT_TRUE(spec.lora.rslora);
  EXPECT_EQ(spec.lora.init, model::LoraInit::kGaussian);
  ASSERT_EQ(spec.lora.rank_pattern.size(), 1u);
  EXPECT_EQ(spec.beta1, 0.8);
  EXPECT_EQ(spec.clip_norm, 0);
  EXPECT_EQ(spec.warmup_steps, 7);
  EXPECT_EQ(spec.max_steps, 11);
  EXPECT_EQ(spec.seed, 9u);
  EXPECT_EQ(spec.precision, model::Precision::kBf16);
  EXPECT_EQ(spec.truncation, model::Truncation::kKeepEnd);
  EXPECT_TRUE(spec.special_tokens_in_messages);
  EXPECT_EQ(path_name(spec.chat_template), "own.jinja");
  EXPECT_EQ(spec.priority, -3);
  EXPECT_EQ(spec.gpu_type, "a100-40gb");
  EXPECT_EQ(spec.tp, 2);
  EXPECT_EQ(spec.pp, 3);
  EXPECT_EQ(spec.dp, 4);
  EXPECT_EQ(spec.stage_layers, (std::vector<int64_t>{10, 10, 4}));
  EXPECT_TRUE(spec.sequence_parallel);
  EXPECT_EQ(spec.micro_batch_tokens, 512);
  EXPECT_EQ(spec.recompute, model::Recompute::kBlock);
  EXPECT_EQ(spec.threads, 2);
  EXPECT_EQ(spec.kernels, "portable");
}

TEST(JobFile, resolved_toml_reads_back_to_the_same_jobs) {
  for (const char* lines :
       {"", "length = { steps = 5 }\n", "schedule = { name = \"constant\", warmup = \"7%\" }\n",
        "plan = { tp = 2, dp = 3, stage_layers = [4, 2], sequence_parallel = true }\n",
        "schedule = { warmup = \"3.3333%\" }\nadapter = { targets = \"all-linear\", alpha = 7 }\n",
        "data_free = 1\n"}) {
    std::string text = std::string(kSmallest) + lines;
    if (std::string(lines) == "data_free = 1\n") {
      text =
          "[[train]]\nname=\"b\"\nmodel=\"m # x\"\ndata=[\"a # b.jsonl\", \"c\\\"d.jsonl\"]\n"
          "adapter = { rank_pattern = { \"q_proj\" = 3 }, layers = [1] }\nchat_template=\"t\"\n";
    }
    const JobFile first = read(text);
    for (const Origins origins : {Origins::kShown, Origins::kHidden}) {
      const JobFile second = read(resolved_toml(first, origins));
      ASSERT_EQ(second.jobs.size(), first.jobs.size());
      EXPECT_EQ(model::to_json(second.jobs[0].spec).dump(),
                model::to_json(first.jobs[0].spec).dump());
      EXPECT_EQ(second.run.checkpoint_every_s, first.run.checkpoint_every_s);
    }
  }
}

TEST(JobFile, json_is_the_same_data_model) {
  const JobFile file = read(
      R"({"run": {"directory": "r"}, "train": [{"name": "a", "model": "m", "data": "d", "batch": {"global": 4}}]})");
  EXPECT_EQ(file.run.directory, "r");
  EXPECT_EQ(file.jobs.at(0).spec.global_batch, 4);
}

TEST(JobFile, unknown_keys_name_line_section_and_the_nearest_key) {
  const std::string deep = error_of("[train.optimizer]\nlearning_rat = 1e-3\n");
  expect_in(deep, "jobs.toml:6: ");
  expect_in(deep, "unknown key \"learning_rat\"");
  expect_in(deep, "[train.optimizer]");
  expect_in(deep, "did you mean \"learning_rate\"?");
  expect_in(error_of("modle = \"x\"\n"), "did you mean \"model\"?");
  expect_in(error_of("[runn]\n"), "did you mean \"run\"?");
  expect_in(error_of("[run]\ndirectry = \"x\"\n"), "did you mean \"directory\"?");
  expect_in(error_of("[run]\ncheckpoint = { evry = \"1h\" }\n"), "did you mean \"every\"?");
  expect_in(error_of("[defaults.trian]\n"), "did you mean \"train\"?");
}

TEST(JobFile, all_faults_are_reported_at_once_in_order_of_lines) {
  const std::string text = error_of(
      "seed = \"x\"\nloss = \"assistent\"\nadapter = { rank = 0 }\nbatch = { sequence = 1 }\n");
  const std::vector<std::string> expected = {"jobs.toml:5: seed", "jobs.toml:6: loss",
                                             "jobs.toml:7: adapter.rank",
                                             "jobs.toml:8: batch.sequence"};
  size_t at = 0;
  for (const std::string& part : expected) {
    const size_t found = text.find(part, at);
    ASSERT_NE(found, std::string::npos) << part << " in " << text;
    at = found;
  }
  expect_in(text, "did you mean \"assistant\"?");
}

TEST(JobFile, wrong_values_are_refused_each_with_its_key) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"name2 = 1", "name2"},
      {"adapter = { rank = 1.5 }", "adapter.rank"},
      {"adapter = { rank = -1 }", "adapter.rank"},
      {"adapter = { alpha = 0 }", "adapter.alpha"},
      {"adapter = { alpha = nan }", "adapter.alpha"},
      {"adapter = { dropout = 1 }", "adapter.dropout"},
      {"adapter = { targets = [] }", "adapter.targets"},
      {"adapter = { targets = [1] }", "adapter.targets"},
      {"adapter = { layers = [-1] }", "adapter.layers"},
      {"adapter = { rslora = \"yes\" }", "adapter.rslora"},
      {"adapter = { init = \"pissa\" }", "adapter.init"},
      {"adapter = { rank_pattern = 3 }", "adapter.rank_pattern"},
      {"adapter = 3", "adapter"},
      {"optimizer = { learning_rate = 0 }", "optimizer.learning_rate"},
      {"optimizer = { learning_rate = inf }", "optimizer.learning_rate"},
      {"optimizer = { beta1 = 1 }", "optimizer.beta1"},
      {"optimizer = { weight_decay = -0.1 }", "optimizer.weight_decay"},
      {"schedule = { name = \"cosin\" }", "schedule.name"},
      {"schedule = { warmup = \"101%\" }", "schedule.warmup"},
      {"schedule = { warmup = -1 }", "schedule.warmup"},
      {"schedule = { warmup = \"soon\" }", "schedule.warmup"},
      {"batch = { global = 0 }", "batch.global"},
      {"length = { epochs = 0 }", "length.epochs"},
      {"length = { steps = 0 }", "length.steps"},
      {"length = { epochs = 1, steps = 1 }", "both epochs and steps"},
      {"seed = -1", "seed"},
      {"precision = \"f16\"", "precision"},
      {"loss = true", "loss"},
      {"truncation = \"middle\"", "truncation"},
      {"chat_template = \"\"", "chat_template"},
      {"special_tokens = \"on\"", "special_tokens"},
      {"priority = 1.0", "priority"},
      {"plan = { threads = 0 }", "plan.threads"},
      {"plan = { kernels = \"sse\" }", "plan.kernels"},
      {"plan = { recompute = \"all\" }", "plan.recompute"},
      {"plan = { tp = 0 }", "plan.tp: must lie in 1 .. 4096"},
      {"plan = { pp = \"two\" }", "plan.pp"},
      {"plan = { dp = 1.5 }", "plan.dp"},
      {"plan = { stage_layers = [] }", "plan.stage_layers"},
      {"plan = { stage_layers = [3, 0] }", "plan.stage_layers"},
      {"plan = { stage_layers = 3 }", "such as [20, 10]"},
      {"plan = { pp = 3, stage_layers = [20, 10] }", "names 2 stages, but plan.pp is 3"},
      {"plan = { sequence_parallel = 1 }", "plan.sequence_parallel"},
      {"plan = { tp = 1, sequence_parallel = true }", "plan.tp is 1"},
      {"[run]\nwall_time = \"long\"", "wall_time"},
      {"[run]\nwall_time = -5", "wall_time"},
      {"[run]\nworker_timeout = \"1s\"", "at least 2s"},
      {"[run]\ncheckpoint = { keep = 0 }", "checkpoint.keep"},
      {"[run]\ncheckpoint = 5", "checkpoint"},
      {"[run]\ndirectory = \"\"", "directory"},
      {"defaults = 1", "defaults"},
  };
  for (const auto& [lines, part] : cases) {
    SCOPED_TRACE(lines);
    expect_in(error_of(lines + "\n"), part);
  }
}

TEST(JobFile, required_keys_and_names) {
  const auto fault = [](const std::string& text) {
    try {
      read(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 78) << error.what();
      return std::string(error.what());
    }
    ADD_FAILURE() << "accepted: " << text;
    return std::string();
  };
  const std::string missing = fault("[[train]]\n");
  for (const char* key : {"\"name\"", "\"model\"", "\"data\""}) expect_in(missing, key);
  expect_in(fault(""), "no job");
  expect_in(fault("[train]\nname = \"a\"\n"), "[[train]]");
  expect_in(fault("train = [1]\n"), "[[train]]");
  expect_in(fault(std::string(kSmallest) + kSmallest), "already in line 1");
  expect_in(fault("[[train]]\nname = \"../a\"\nmodel = \"m\"\ndata = \"d\"\n"),
            "cannot name files");
  expect_in(fault("[[train]]\nname = \"a\"\nmodel = \"m\"\ndata = []\n"), "data");
  expect_in(fault("[[train]]\nname = \"a\"\nmodel = \"m\"\ndata = { pth = \"x\" }\n"), "path");
  expect_in(fault("[[train\n"), "jobs.toml:1");
  expect_in(fault(std::string(kSmallest) + "name = \"b\"\n"), "jobs.toml:5");
}

TEST(JobFile, what_comes_later_is_refused_by_name_with_78) {
  const Reason later = Reason::kNotAvailable;
  expect_in(error_of("evaluate = { data = \"x\" }\n", later), "evaluate");
  expect_in(error_of("deadline = \"2026-12-01T08:00\"\n", later), "priority");
  expect_in(error_of("sweep = { \"adapter.rank\" = [8, 32] }\n", later), "sweep");
  expect_in(error_of("[[serve]]\nname = \"s\"\n", later), "[[serve]]");
  expect_in(error_of("[[generate]]\nname = \"g\"\n", later), "galley generate");
  expect_in(error_of("adapter = { method = \"dora\" }\n", later), "dora");
  expect_in(error_of("optimizer = { name = \"sgd\" }\n", later), "sgd");
  try {
    read("[[train]]\nname = \"a\"\nmodel = \"m\"\ndata = [{ path = \"x\", weight = 2 }]\n");
    ADD_FAILURE() << "a weight was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), later) << error.what();
    EXPECT_EQ(error.exit_code(), 78);
  }
}

TEST(JobFile, layers_override_one_another_and_say_so) {
  const std::string site = write(
      "[run]\ndirectory = \"/site\"\ncheckpoint = { keep = 7 }\n"
      "[defaults.train]\nadapter = { rank = 8 }\nseed = 1\n",
      "galley.toml");
  const std::string user =
      write("[defaults.train]\nseed = 2\nlength = { steps = 100 }\n", "u.toml");
  const std::string home = testing::scratch_directory("home");
  make_directories(path_join(home, "galley"));
  write_file_atomically(path_join(home, "galley/galley.toml"), read_file(user));
  const std::string path = write(
      "[defaults.train]\nbatch = { global = 3 }\n"
      "[[train]]\nname = \"a\"\nmodel = \"m\"\ndata = \"d\"\nseed = 5\n"
      "[[train]]\nname = \"b\"\nmodel = \"m\"\ndata = \"d\"\n"
      "length = { epochs = 1 }\n");
  const Environment environment({{"GALLEY_SITE_CONFIG", site}, {"XDG_CONFIG_HOME", home}});
  const JobFile file = read_job_file(path, environment);
  EXPECT_EQ(file.run.directory, "/site");
  EXPECT_EQ(file.run.keep_checkpoints, 7);
  EXPECT_EQ(file.jobs[0].spec.lora.rank, 8);
  EXPECT_EQ(file.jobs[0].spec.lora.alpha, 16);  // twice the rank, whoever gave the rank
  EXPECT_EQ(file.jobs[0].spec.seed, 5u);
  EXPECT_EQ(file.jobs[1].spec.seed, 2u);
  EXPECT_EQ(file.jobs[0].spec.global_batch, 3);
  EXPECT_EQ(file.jobs[0].spec.max_steps, 100);
  EXPECT_EQ(file.jobs[1].spec.max_steps, -1) << "the job's epochs replace the user's steps";
  EXPECT_EQ(file.jobs[1].spec.epochs, 1);
  EXPECT_EQ(origin_of(file.jobs[0].options, "adapter.rank"), site + ":5");
  EXPECT_EQ(origin_of(file.jobs[1].options, "seed"), path_join(home, "galley/galley.toml") + ":2");
  EXPECT_EQ(origin_of(file.run.options, "checkpoint.keep"), site + ":3");

  const Environment named({{"GALLEY_SITE_CONFIG", site}, {"GALLEY_RUNS", "/elsewhere"}});
  const JobFile moved = read_job_file(path, named);
  EXPECT_EQ(moved.run.directory, "/elsewhere");
  EXPECT_EQ(origin_of(moved.run.options, "directory"), "environment GALLEY_RUNS");
}

TEST(JobFile, paths_of_a_lower_file_are_relative_to_its_own_folder) {
  const std::string site = write("[defaults.train]\nmodel = \"m\"\n", "galley.toml");
  const std::string path = write("[[train]]\nname = \"a\"\ndata = \"d\"\n");
  const JobFile file = read_job_file(path, Environment({{"GALLEY_SITE_CONFIG", site}}));
  EXPECT_EQ(file.jobs.at(0).spec.model, path_join(path_directory(site), "m"));
}

TEST(JobFile, faults_of_a_lower_file_name_that_file) {
  const std::string site = write("[defaults.train]\nsed = 1\n", "galley.toml");
  try {
    read_job_file(write(kSmallest), Environment({{"GALLEY_SITE_CONFIG", site}}));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    expect_in(error.what(), site + ":2: unknown key \"sed\"");
  }
}

TEST(JobFile, a_missing_file_is_66) {
  try {
    read_job_file("/no/such/jobs.toml", bare());
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 66);
    expect_in(error.what(), "/no/such/jobs.toml");
  }
}

TEST(JobFile, json_form_has_value_and_origin_of_every_option) {
  const Json json = to_json(read(kSmallest));
  const Json& job = json.at("train").as_array().at(0);
  EXPECT_EQ(job.at("adapter.rank").get_string("value"), "16");
  EXPECT_EQ(job.at("adapter.rank").get_string("origin"), "default");
  EXPECT_EQ(json.at("run").at("directory").get_string("value"), "\"runs\"");
}

TEST(JobFile, differing_keys_names_what_changed) {
  const auto spec = [](const std::string& lines) {
    return read(std::string(kSmallest) + lines).jobs.at(0).spec;
  };
  const model::TrainSpec one = spec("");
  EXPECT_TRUE(differing_keys(one, one).empty());
  EXPECT_EQ(
      join(differing_keys(one, spec("seed = 3\nadapter.rank = 4\n")), ", "),
      "model, data, adapter.rank, adapter.alpha, seed");  // each is read in a folder of its own
}

TEST(JobFile, an_empty_list_of_jobs_is_no_job) { EXPECT_THROW(read("{\"train\": []}"), Error); }

TEST(JobFile, keys_of_other_tools_are_told_where_they_belong) {
  const std::pair<const char*, const char*> cases[] = {
      {"epochs = 3\n", "unknown key \"epochs\" in [[train]]; write length = { epochs = ... }"},
      {"steps = 3\n", "write length = { steps = ... }"},
      {"lr = 1e-3\n", "write optimizer = { learning_rate = ... }"},
      {"learning_rate = 1e-3\n", "write optimizer = { learning_rate = ... }"},
      {"optimizer = { lr = 1e-3 }\n", "write optimizer = { learning_rate = ... }"},
      {"rank = 8\n", "write adapter = { rank = ... }"},
      {"lora_r = 8\n", "write adapter = { rank = ... }"},
      {"adapter = { r = 8 }\n", "write adapter = { rank = ... }"},
      {"adapter = { learning_rate = 8 }\n", "write optimizer = { learning_rate = ... }"},
      {"alpha = 8\n", "write adapter = { alpha = ... }"},
      {"targets = [\"q_proj\"]\n", "write adapter = { targets = ... }"},
      {"dropout = 0.1\n", "write adapter = { dropout = ... }"},
      {"batch_size = 8\n", "write batch = { global = ... }"},
      {"max-seq-length = 8\n", "write batch = { sequence = ... }"},
      {"warmup = 8\n", "write schedule = { warmup = ... }"},
      {"learning_rat = 8\n", "write optimizer = { learning_rate = ... }"},
      {"dataset = \"x\"\n", "write data = ..."},
      {"tensor_parallel_size = 2\n", "write plan = { tp = ... }"},
      {"num_gpus = 2\n", "galley chooses how many GPUs"},
      {"checkpoint = { keep = 1 }\n", "it belongs in [run]"},
      {"sede = 1\n", "did you mean \"seed\"?"},
      {"precision = \"fp16\"\n", "use auto, f32 or bf16"},
      {"optimizer = { name = \"adam\" }\n", "did you mean \"adamw\"?"},
  };
  for (const auto& [lines, hint] : cases) expect_in(error_of(lines), hint);
}

TEST(JobFile, layers_of_stages_say_how_many_stages_there_are) {
  const JobFile file = read(std::string(kSmallest) + "plan = { stage_layers = [4, 2, 1] }\n");
  EXPECT_EQ(file.jobs.at(0).spec.pp, 3);
  EXPECT_EQ(file.jobs.at(0).spec.tp, -1);
  const JobFile automatic =
      read(std::string(kSmallest) +
           "plan = { tp = \"auto\", pp = \"auto\", dp = \"auto\", stage_layers = \"auto\" }\n");
  EXPECT_EQ(automatic.jobs.at(0).spec.pp, -1);
  EXPECT_TRUE(automatic.jobs.at(0).spec.stage_layers.empty());
  expect_in(error_of("[train.plan]\npp = 3\nstage_layers = [20, 10]\n"), "jobs.toml:7: ");
  expect_in(resolved_toml(file), "plan.stage_layers = [4, 2, 1]");
}

TEST(JobFile, the_reference_names_every_option) {
  const std::string text = read_file("docs/job-file.md");
  for (const TrainOption& option : train_options()) {
    expect_in(text, cat("| `", option.key, "` |"));
  }
  for (const char* key :
       {"directory", "wall_time", "worker_timeout", "checkpoint.every", "checkpoint.keep"}) {
    expect_in(text, cat("| `", key, "` |"));
  }
}

}  // namespace
}  // namespace galley::launcher
