// `galley bench` as a user runs it, on the example's tiny model.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "engine/core/error.h"
#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "engine/device/host/host_device.h"
#include "launcher/command_line.h"

namespace galley::launcher {
namespace {

constexpr const char* kModel = "examples/tiny-llama";

struct Result {
  int code;
  std::string out, err;
};

Result bench(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"galley", "bench"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::istringstream in;
  std::ostringstream out, err;
  const Environment environment(std::map<std::string, std::string>{{"GALLEY_SITE_CONFIG", ""}});
  const int code =
      command_line_main(static_cast<int>(argv.size()), argv.data(), environment, {in, out, err});
  return {code, out.str(), err.str()};
}

/// The tiny model, one core, short rows.
Result tiny(std::vector<std::string> more) {
  std::vector<std::string> arguments = {"--model",   kModel, "--sequence", "32",
                                        "--threads", "1",    "--steps",    "2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return bench(arguments);
}

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

TEST(BenchCommand, says_how_fast_and_beside_what) {
  const Result result = tiny({});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* part : {"machine", "1 thread, ", "memory read", "f32 mul+add sse2", "tiny-llama",
                           "sequence 32", "tokens/s", "of peak", "MF/token", "head"}) {
    expect_in(result.out, part);
  }
  EXPECT_EQ(result.out.find("operation"), std::string::npos);
}

TEST(BenchCommand, profile_has_a_line_per_operation_with_its_limit) {
  const Result result = tiny({"--profile"});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* part :
       {"operation", "ms/step", "share", "GF/s", "GB/s", "of peak", "of memory", "limit",
        "linears forward", "attention backward", "head forward", "optimizer", "rest"}) {
    expect_in(result.out, part);
  }
}

TEST(BenchCommand, json_lines_have_the_same_keys) {
  const Result result = tiny({"--profile", "--json"});
  EXPECT_EQ(result.code, 0) << result.err;
  std::set<std::string> units;
  int steps = 0;
  double profiled_ms = 0;
  for (const std::string& line : split(result.out, '\n')) {
    if (line.empty()) continue;
    const Json record = parse_json_or_throw(line, "bench", Reason::kInternal);
    for (const char* key : {"name", "unit", "value", "spread", "fraction", "limit", "kernels",
                            "threads", "machine", "version"}) {
      EXPECT_TRUE(record.contains(key)) << key << " in " << line;
    }
    units.insert(record.at("unit").as_string());
    if (record.at("unit").as_string() == "tokens/s") {
      ++steps;
      EXPECT_EQ(record.at("name").as_string(), "step tiny-llama sequence 32 bf16");
      EXPECT_GT(record.at("fraction").as_double(), 0);
      EXPECT_GT(record.at("loss").as_double(), 0);
    }
    if (record.at("unit").as_string() == "ms/step") profiled_ms += record.at("value").as_double();
  }
  EXPECT_EQ(steps, 1);
  EXPECT_GT(profiled_ms, 0);
  EXPECT_EQ(units, (std::set<std::string>{"GB/s", "GF/s", "ms/step", "tokens/s"}));
}

TEST(BenchCommand, precision_and_kernels_are_honoured) {
  for (const device::KernelSet kernels : device::usable_kernel_sets()) {
    const bool rounds = device::kernel_set_rounds(kernels);
    const std::string name = device::kernel_set_name(kernels);
    const Result result =
        tiny({"--kernels", name, "--precision", rounds ? "bf16" : "f32", "--targets", "25"});
    EXPECT_EQ(result.code, 0) << result.err;
    expect_in(result.out, name + " kernels\n");
    expect_in(result.out, "the head runs at 8 of 32");
    if (rounds) {
      expect_in(result.out, "of bf16 dot");
      expect_in(result.out, "against its own instruction");
    }
  }
  // The example is stored in bf16, and stays so in memory.
  const Result exact = tiny({"--precision", "f32"});
  EXPECT_EQ(exact.code, 0) << exact.err;
  expect_in(exact.out, "bf16; sequence");
  EXPECT_EQ(exact.out.find("bf16 kernels"), std::string::npos);
}

TEST(BenchCommand, wrong_usage_names_what_and_the_nearest) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--seqence", "32"}, "did you mean \"--sequence\"?"},
      {{"--profil"}, "did you mean \"--profile\"?"},
      {{"--kernels", "avx1024"}, "(known: auto, portable"},
      {{"--kernels", "portabel"}, "did you mean \"portable\"?"},
      {{"--kernels", "AVX2"}, "did you mean \"avx2\"?"},
      {{"--targets", "0"}, "--targets"},
      {{"--targets", "nan"}, "--targets"},
      {{"--threads", "4096"}, "more than the"},
      {{"--model", ""}, "--model is empty"},
      {{"--precision", "f16"}, "--precision"},
      {{"--sequence", "1"}, "--sequence"},
      {{"--sequence", "many"}, "--sequence"},
      {{"--steps", "0"}, "--steps"},
      {{"--targets", "101"}, "--targets"},
      {{"--threads", "-1"}, "--threads"},
      {{"--model", kModel, "--sequence", "1000000"}, "positions"},
      {{"model"}, "does not take \"model\""},
      {{"--kernels", "avx512-bf16", "--precision", "f32"}, "--precision bf16"},
  };
  for (const auto& [arguments, part] : cases) {
    SCOPED_TRACE(join(arguments, " "));
    const Result result = bench(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_EQ(result.err.rfind("galley: ", 0), 0u);
    expect_in(result.err, part);
    EXPECT_EQ(result.out, "");
  }
}

TEST(BenchCommand, a_missing_model_is_66) {
  const Result result = bench({"--model", "/no/model"});
  EXPECT_EQ(result.code, 66);
  expect_in(result.err, "/no/model");
}

TEST(BenchCommand, help_names_every_flag) {
  const Result result = bench({"--help"});
  EXPECT_EQ(result.code, 0);
  for (const char* flag : {"--model", "--sequence", "--targets", "--steps", "--threads",
                           "--precision", "--kernels", "--profile", "--json", "Exit codes"}) {
    expect_in(result.out, flag);
  }
}

}  // namespace
}  // namespace galley::launcher
