#include "launcher/command_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include "engine/core/file.h"
#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "tests/launcher/example_files.h"
#include "tests/support/reference.h"

namespace galley::launcher {
namespace {

constexpr const char* kModel = "examples/tiny-llama";
constexpr const char* kJobs = "examples/demo.toml";
constexpr const char* kCluster = "examples/cluster.toml";

struct Result {
  int code;
  std::string out, err;
};

/// `galley ARGUMENTS` in this process, as a user without configuration files would run it.
Result galley(std::vector<std::string> arguments, const std::string& input = "") {
  arguments.insert(arguments.begin(), "galley");
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::istringstream in(input);
  std::ostringstream out, err;
  const Environment environment(std::map<std::string, std::string>{{"GALLEY_SITE_CONFIG", ""}});
  const int code =
      command_line_main(static_cast<int>(argv.size()), argv.data(), environment, {in, out, err});
  return {code, out.str(), err.str()};
}

Json parsed(const std::string& text) {
  return parse_json_or_throw(text, "the command's output", Reason::kInternal);
}

std::vector<Json> parsed_lines(const std::string& text) {
  std::vector<Json> records;
  for (const std::string& line : split(text, '\n')) {
    if (!line.empty()) records.push_back(parsed(line));
  }
  return records;
}

using testing::expect_in;
using testing::job_file;
using testing::written;

TEST(CommandLine, version_lists_what_it_was_built_against) {
  const Result result = galley({"--version"});
  EXPECT_EQ(result.code, 0);
  for (const char* part :
       {"galley 0.", "Open MPI", "HDF5", "CUDA", "NCCL", "cuDNN", "CLI11", "spdlog", "flags"}) {
    expect_in(result.out, part);
  }
}

TEST(CommandLine, help_has_commands_and_exit_codes) {
  const Result result = galley({"--help"});
  EXPECT_EQ(result.code, 0);
  for (const char* part :
       {"run", "launch", "validate", "plan", "predict", "generate", "tokenize", "render", "data",
        "inspect", "export", "doctor", "template", "config", "exit-code", "Exit codes", "75"}) {
    expect_in(result.out, part);
  }
  const Result command = galley({"plan", "--help"});
  EXPECT_EQ(command.code, 0);
  expect_in(command.out, "--cluster");
  EXPECT_EQ(galley({}).code, 2);
}

TEST(CommandLine, wrong_usage_is_2_and_names_the_nearest) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"plam", kJobs}, "did you mean \"plan\"?"},
      {{"plan", kJobs, "--clster", kCluster}, "did you mean \"--cluster\"?"},
      {{"--versoin"}, "did you mean \"--version\"?"},
      {{"plan"}, "job file"},
      {{"plan", kJobs, "more"}, "more"},
      {{"plan", kJobs, "--cluster"}, "--cluster"},
      {{"generate", "--model", kModel, "--top-p", "2"}, "--top-p"},
      {{"generate", "--model", kModel, "--max-tokens", "many"}, "--max-tokens"},
      {{"generate", "--model", kModel, "--greedy", "--temperature", "1"}, "--temperature"},
      {{"generate"}, "--model"},
      {{"predict"}, "job file or --model"},
      {{"predict", kJobs, "--model", kModel}, "--model"},
      {{"render"}, "--template"},
      {{"data", "x", "--model", kModel, "--loss", "user"}, "--loss"},
      {{"plan", kJobs, "--", "-x"}, "galley launch"},
      {{"inspect", "Makefile"}, ".safetensors"},
  };
  for (const auto& [arguments, part] : cases) {
    SCOPED_TRACE(join(arguments, " "));
    const Result result = galley(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_EQ(result.err.rfind("galley: ", 0), 0u) << result.err;
    expect_in(result.err, part);
    EXPECT_EQ(result.out, "");
  }
}

TEST(CommandLine, missing_paths_are_66) {
  const std::vector<std::vector<std::string>> cases = {
      {"plan", "/no/jobs.toml"},
      {"validate", "/no/jobs.toml"},
      {"config", "/no/jobs.toml"},
      {"plan", kJobs, "--cluster", "/no/cluster.toml"},
      {"tokenize", "--tokenizer", "/no/model"},
      {"render", "--template", "/no/template"},
      {"data", "/no/data.jsonl", "--model", kModel},
      {"generate", "--model", "/no/model", "--prompt", "x"},
      {"generate", "--model", kModel, "--adapter", "/no/adapter", "--prompt", "x"},
      {"inspect", "/no/file.h5"},
      {"export", "/no/file.h5", "/no/out"},
      {"predict", "--model", "/no/model"},
  };
  for (const std::vector<std::string>& arguments : cases) {
    SCOPED_TRACE(join(arguments, " "));
    const Result result = galley(arguments);
    EXPECT_EQ(result.code, 66) << result.err;
    expect_in(result.err, "/no/");
  }
  EXPECT_EQ(galley({"validate", job_file("", "/no/model")}).code, 66);
}

TEST(CommandLine, broken_files_are_65_and_broken_settings_78) {
  EXPECT_EQ(galley({"validate", job_file("sed = 1\n")}).code, 78);
  EXPECT_EQ(galley({"validate", job_file("deadline = \"soon\"\n")}).code, 78);
  EXPECT_EQ(galley({"plan", kJobs, "--cluster", written("c.toml", "[node]\n")}).code, 78);
  EXPECT_EQ(galley({"inspect", written("x.safetensors", "short")}).code, 65);
  EXPECT_EQ(galley({"inspect", written("x.h5", "not a checkpoint")}).code, 65);
  EXPECT_EQ(galley({"inspect", written("x.bin", "no tokens")}).code, 65);
  EXPECT_EQ(galley({"tokenize", "--tokenizer", written("tokenizer.json", "{}")}, "").code, 65);
  const Result data =
      galley({"data", written("d.jsonl", "{\"text\": \"good\"}\n{broken\n"), "--model", kModel});
  EXPECT_EQ(data.code, 65);
  const std::vector<Json> records = parsed_lines(data.out);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].at("error").get_int("line"), 2);
}

TEST(CommandLine, settings_go_before_missing_paths_before_broken_files) {
  const std::string examples = std::filesystem::absolute("examples").string();
  const std::string broken = written("d.jsonl", "{broken\n");
  const auto job = [&](const std::string& name, const std::string& data, const char* more) {
    return cat("[[train]]\nname = \"", name, "\"\nmodel = \"", examples, "/tiny-llama\"\ndata = \"",
               data, "\"\n", more);
  };
  const std::string bad_rows = job("rows", broken, "");
  const std::string missing = job("missing", "/no/data", "");
  const std::string targets =
      job("targets", examples + "/data/units.jsonl", "adapter = { targets = [\"qproj\"] }\n");
  EXPECT_EQ(galley({"validate", written("a.toml", bad_rows)}).code, 65);
  EXPECT_EQ(galley({"validate", written("b.toml", bad_rows + missing)}).code, 66);
  const Result all = galley({"validate", written("c.toml", bad_rows + missing + targets)});
  EXPECT_EQ(all.code, 78) << all.err;
  for (const char* name : {"\"rows\"", "\"missing\"", "\"targets\""}) expect_in(all.err, name);
}

TEST(CommandLine, bad_jobs_may_be_skipped_with_3) {
  const std::string examples = std::filesystem::absolute("examples").string();
  const std::string text =
      read_file(job_file("")) +
      cat("[[train]]\nname = \"b\"\nmodel = \"", examples, "/tiny-llama\"\ndata = \"/no/data\"\n");
  const std::string path = written("two.toml", text);
  for (const char* command : {"validate", "plan"}) {
    const Result result = galley({command, path, "--skip-bad-jobs"});
    EXPECT_EQ(result.code, 3) << result.err;
    expect_in(result.err, "job \"b\"");
    expect_in(result.out, "a ");
  }
}

TEST(CommandLine, plan_of_the_example) {
  const Result table = galley({"plan", kJobs, "--cluster", kCluster});
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* part : {"2 GPU types, 2 GPUs", "cook", "units", "n1:gpu0", "n2:gpu0"}) {
    expect_in(table.out, part);
  }
  const Result json = galley({"plan", kJobs, "--cluster", kCluster, "--json"});
  EXPECT_EQ(json.code, 0);
  EXPECT_EQ(parsed(json.out).at("jobs").as_array().size(), 2u);
  EXPECT_EQ(parsed(galley({"plan", kJobs, "--json"}).out).at("jobs").as_array().size(), 2u)
      << "without a cluster file the plan is for this machine";
}

TEST(CommandLine, a_plan_that_cannot_be_is_69_and_one_that_partly_can_3) {
  const std::string tiny = written("cluster.toml",
                                   "[cluster]\nemulate = true\n[[node]]\nnames = \"n1\"\n"
                                   "gpus = [{ type = \"small\", memory = \"1MiB\" }]\n");
  const Result none = galley({"plan", kJobs, "--cluster", tiny});
  EXPECT_EQ(none.code, 69) << none.err;
  expect_in(none.out, "refused");
  const std::string pinned = read_file(job_file("")) + [&] {
    std::string second = read_file(job_file("plan = { gpu_type = \"t4-16gb\" }\n"));
    return second.replace(second.find("\"a\""), 3, "\"b\"");
  }();
  const Result some = galley({"plan", written("p.toml", pinned), "--cluster", kCluster});
  EXPECT_EQ(some.code, 3) << some.err << some.out;
  expect_in(some.out, "t4-16gb");
}

TEST(CommandLine, predict_validate_and_config_of_the_example) {
  const Result predict = galley({"predict", kJobs, "--gpu", "t4-16gb", "--gpu", "host", "--json"});
  EXPECT_EQ(predict.code, 0) << predict.err;
  EXPECT_EQ(parsed(predict.out).at("predictions").as_array().size(), 4u);
  const Result model = galley({"predict", "--model", kModel, "--gpu", "h100-80gb", "--rank", "8"});
  EXPECT_EQ(model.code, 0) << model.err;
  expect_in(model.out, "fits");
  EXPECT_EQ(galley({"predict", "--model", kModel, "--gpu", "h100"}).code, 78);

  const Result validate = galley({"validate", kJobs, "--json"});
  EXPECT_EQ(validate.code, 0) << validate.err;
  EXPECT_EQ(parsed(validate.out).at("jobs").as_array().at(0).get_int("rows"), 223);

  const Result config = galley({"config", kJobs, "--origin"});
  EXPECT_EQ(config.code, 0);
  expect_in(config.out, "# default");
  expect_in(config.out, "examples/demo.toml:");
  const std::string again = written("again.toml", galley({"config", kJobs}).out);
  EXPECT_EQ(galley({"validate", again}).code, 0) << "what config prints is a job file";
  EXPECT_EQ(parsed(galley({"config", kJobs, "--json"}).out).at("train").as_array().size(), 2u);
}

TEST(CommandLine, tokenize_render_and_data_pass_the_id_through) {
  const Result tokenize =
      galley({"tokenize", "--tokenizer", kModel},
             "{\"id\": \"x\", \"text\": \"A ship.\"}\n\n{\"id\": 2, \"text\": \"\"}\n");
  EXPECT_EQ(tokenize.code, 0) << tokenize.err;
  const std::vector<Json> tokens = parsed_lines(tokenize.out);
  ASSERT_EQ(tokens.size(), 2u);
  EXPECT_EQ(tokens[0].get_string("id"), "x");
  EXPECT_FALSE(tokens[0].at("ids").as_array().empty());
  expect_in(tokens[0].get_string("text"), "A ship.");

  const Result render =
      galley({"render", "--model", kModel},
             "{\"id\": 7, \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], "
             "\"add_generation_prompt\": true}\n");
  EXPECT_EQ(render.code, 0) << render.err;
  expect_in(parsed_lines(render.out).at(0).get_string("text"), "Hi");
  EXPECT_EQ(galley({"render", "--model", kModel, "--now", "yesterday"}, "").code, 2);

  const Result data = galley({"data", "examples/data/units.jsonl", "--model", kModel, "--loss",
                              "completion", "--max-length", "6"});
  EXPECT_EQ(data.code, 0) << data.err;
  const std::vector<Json> rows = parsed_lines(data.out);
  EXPECT_EQ(rows.size(), 240u);
  for (const Json& row : rows) {
    if (row.contains("ids")) {
      EXPECT_LE(row.at("ids").as_array().size(), 6u);
    }
  }
}

TEST(CommandLine, generate_is_the_same_alone_and_in_a_batch) {
  const std::string prompts = read_file("examples/prompts-units.jsonl");
  const auto lines = [&](const std::string& batch) {
    const Result result = galley({"generate", "--model", kModel, "--greedy", "--max-tokens", "8",
                                  "--jsonl", "--batch", batch, "--threads", "1"},
                                 prompts);
    EXPECT_EQ(result.code, 0) << result.err;
    return parsed_lines(result.out);
  };
  const std::vector<Json> together = lines("8"), alone = lines("1");
  ASSERT_EQ(together.size(), 4u);
  ASSERT_EQ(alone.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(together[i].dump(), alone[i].dump());
    EXPECT_LE(together[i].at("ids").as_array().size(), 8u);
  }
  EXPECT_EQ(together[0].get_string("id"), "short");
  const Result plain = galley(
      {"generate", "--model", kModel, "--max-tokens", "4", "--message", "What is a galley?"});
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_FALSE(plain.out.empty());
}

TEST(CommandLine, sampling_follows_its_seed) {
  const auto text = [](const std::string& seed) {
    return galley({"generate", "--model", kModel, "--prompt", "The sea", "--temperature", "1.5",
                   "--seed", seed, "--max-tokens", "12"})
        .out;
  };
  EXPECT_EQ(text("1"), text("1"));
  EXPECT_NE(text("1"), text("2"));
}

TEST(CommandLine, inspect_looks_into_models_and_tensors) {
  const Result model = galley({"inspect", kModel, "--json"});
  EXPECT_EQ(model.code, 0) << model.err;
  EXPECT_EQ(parsed(model.out).get_string("kind"), "model");
  const Result tensors = galley({"inspect", std::string(kModel) + "/model.safetensors", "--json"});
  EXPECT_EQ(parsed(tensors.out).get_string("kind"), "safetensors");
  EXPECT_FALSE(parsed(tensors.out).at("tensors").as_array().empty());
  expect_in(galley({"inspect", std::string(kModel) + "/model.safetensors"}).out,
            "model.norm.weight");
}

TEST(CommandLine, template_doctor_and_exit_code) {
  const Result script = galley({"template", "--nodes", "2", "--jobs", "x.toml"});
  EXPECT_EQ(script.code, 0) << script.err;
  expect_in(script.out, "#SBATCH --nodes=2");
  expect_in(script.out, "exec galley launch --requeue x.toml");
  const Result doctor = galley({"doctor", "--json"});
  EXPECT_EQ(doctor.code, 0) << doctor.err;
  EXPECT_TRUE(parsed(doctor.out).is_object());
  const Result code = galley({"exit-code", galley::testing::scratch_directory("no-record")});
  EXPECT_EQ(code.code, 0) << code.err;
  EXPECT_EQ(code.out, "75\n");
}

TEST(CommandLine, help_and_usage_errors_say_what_to_write) {
  expect_in(galley({"validate", "--help"}).out, "Usage: galley validate");
  expect_in(galley({"validate"}).err, "galley validate needs a job file");
  const std::string help = galley({"launch", "--help"}).out;
  expect_in(help, "{auto,bars,lines,none}");
  expect_in(help, "01:30:00");
  EXPECT_EQ(galley({"launch", "--progress", "loud", kJobs}).code, 2);
}

TEST(CommandLine, tables_mark_emulated_types_and_predict_the_time) {
  expect_in(galley({"plan", kJobs, "--cluster", kCluster}).out, "tok/s (emulated)");
  EXPECT_EQ(galley({"plan", kJobs}).out.find("emulated"), std::string::npos);
  const std::string header = galley({"predict", kJobs, "--gpu", "host"}).out;
  expect_in(header.substr(0, header.find('\n')), "time");
  const std::string model = galley({"predict", "--model", kModel, "--gpu", "host"}).out;
  EXPECT_EQ(model.substr(0, model.find('\n')).find("time"), std::string::npos);
}

TEST(CommandLine, a_misspelt_pin_and_a_name_of_a_hub_are_told_what_to_do) {
  const Result pin =
      galley({"plan", job_file("plan = { gpu_type = \"a100-40bg\" }\n"), "--cluster", kCluster});
  EXPECT_EQ(pin.code, 69);
  expect_in(pin.out, "did you mean \"a100-40gb\"?");
  expect_in(galley({"validate", job_file("", "org/model")}).err, "galley downloads nothing");
}

TEST(CommandLine, doctor_looks_at_the_nearest_existing_parent_of_runs) {
  const std::string place = galley::testing::scratch_directory("doctor");
  const std::string missing = galley({"doctor", "--runs", place + "/a/b"}).out;
  expect_in(missing, cat(place, "/a/b does not exist yet; looked at ", place));
  expect_in(missing, "files can be written");
  write_file_atomically(place + "/file", "x");
  expect_in(galley({"doctor", "--runs", place + "/file/b"}).out, "is a file");
}

TEST(CommandLine, rows_that_teach_nothing_are_a_note) {
  const std::string data =
      written("rows.jsonl",
              "{\"prompt\":\"a\",\"completion\":\" b\"}\n"
              "{\"messages\":[{\"role\":\"user\",\"content\":\"no answer\"}]}\n");
  const std::string model = std::filesystem::absolute(kModel).string();
  const Result result =
      galley({"validate", written("dropped.toml", cat("[[train]]\nname = \"a\"\nmodel = \"", model,
                                                      "\"\ndata = \"", data, "\"\n"))});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_in(result.out, "1 of 2 rows is left out: it has no token with loss");
  expect_in(result.out, "rows.jsonl:2");
}

std::string cluster_file(const std::string& type) {
  return written("cluster.toml",
                 cat("[cluster]\nemulate = true\n[[node]]\nnames = \"n1\"\ngpus = [{ type = ", type,
                     ", count = 1, threads = 1 }]\n"));
}

TEST(CommandLine, pain_P046_plan_says_that_a_card_without_bf16_computes_in_f32) {
  const std::map<std::string, std::string> types = {
      {"t4-16gb", "\"t4-16gb\""},
      {"v100-32gb", "\"v100-32gb\""},
      {"rtx2080ti-11gb", "\"rtx2080ti-11gb\""},
      {"old", "{ name = \"old\", memory = \"8GiB\", bf16_tflops = 0 }"}};
  for (const auto& [name, type] : types) {
    const std::string cluster = cluster_file(type);
    for (const char* precision : {"auto", "f32", "bf16"}) {
      SCOPED_TRACE(name + " " + precision);
      const std::string jobs = job_file(cat("precision = \"", precision, "\"\n"));
      const Result plan = galley({"plan", jobs, "--cluster", cluster});
      EXPECT_EQ(plan.code, 0) << plan.err;
      expect_in(plan.out, cat("a: ", name, " has no bf16: "));
      expect_in(plan.out, "computes in f32");
      expect_in(plan.out, "adapter in f32");
      EXPECT_EQ(plan.out.find("instead of precision = \"bf16\"") != std::string::npos,
                std::string(precision) == "bf16");
      const Json job = parsed(galley({"plan", jobs, "--cluster", cluster, "--json"}).out)
                           .at("jobs")
                           .as_array()
                           .at(0);
      EXPECT_FALSE(job.at("may_round_inputs").as_bool());
      expect_in(job.at("precision_note").as_string(), "has no bf16");
    }
  }
}

TEST(CommandLine, pain_P047_bf16_where_there_is_some_is_planned_without_a_word) {
  const std::string jobs = job_file("precision = \"bf16\"\n");
  const Result plan = galley({"plan", jobs, "--cluster", cluster_file("\"a100-40gb\""), "--json"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  const Json out = parsed(plan.out);
  const Json& job = out.at("jobs").as_array().at(0);
  EXPECT_TRUE(job.at("may_round_inputs").as_bool());
  EXPECT_EQ(job.at("weights").as_string(), "BF16");
  EXPECT_EQ(job.at("precision_note").as_string().find("no bf16"), std::string::npos);
}

TEST(CommandLine, a_pin_that_rounds_needs_a_precision_that_may) {
  const std::string pin = "plan = { kernels = \"avx512-bf16\" }\n";
  const Result refused = galley({"validate", job_file("precision = \"f32\"\n" + pin)});
  EXPECT_EQ(refused.code, 78);
  expect_in(refused.err, "rounds inputs to bf16");
  expect_in(refused.err, "precision = \"f32\"");
  EXPECT_EQ(galley({"validate", job_file("precision = \"bf16\"\n" + pin)}).code, 0);
  for (const char* kernels : {"portable", "avx2", "avx512"}) {
    const std::string lines = cat("precision = \"f32\"\nplan = { kernels = \"", kernels, "\" }\n");
    EXPECT_EQ(galley({"validate", job_file(lines)}).code, 0) << kernels;
  }
}

TEST(CommandLine, doctor_times_the_kernels) {
  const std::string text = galley({"doctor"}).out;
  const Json out = parsed(galley({"doctor", "--json"}).out);
  double best = 0;
  for (const Json& row : out.at("kernels").as_array()) {
    expect_in(text, row.at("name").as_string());
    EXPECT_GT(row.at("gflops").as_double(), 0);
    EXPECT_EQ(row.at("rounds_inputs").as_bool(), row.at("name").as_string() == "avx512-bf16");
    best = std::max(best, row.at("ratio_to_best").as_double());
  }
  EXPECT_EQ(best, 1);
  expect_in(text, "GF/s");
}

TEST(CommandLine, generate_never_rounds_unless_told) {
  const auto logits = [&](const char* precision) {
    const std::string file =
        path_join(galley::testing::scratch_directory(precision), "l.safetensors");
    const Result result = galley({"generate", "--model", kModel, "--prompt", "one foot is",
                                  "--precision", precision, "--logits", file});
    EXPECT_EQ(result.code, 0) << result.err;
    return read_file(file);
  };
  EXPECT_EQ(logits("auto"), logits("f32"));
  logits("bf16");
  expect_in(galley({"generate", "--help"}).out, "never");
}

}  // namespace
}  // namespace galley::launcher
