#include "tests/bench/bench_program.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "engine/core/error.h"
#include "engine/core/processors.h"
#include "engine/core/strings.h"

namespace galley::bench {
namespace {

std::vector<int> thread_counts(const std::string& text) {
  std::vector<int> counts;
  for (const std::string& word : split(text, ',')) {
    const std::optional<int64_t> count = parse_int(word);
    if (!count || *count < 1 || *count > 4096) {
      throw Error(Reason::kUsage, cat("--threads ", text, " is no list of counts; write 1,2"));
    }
    counts.push_back(static_cast<int>(*count));
  }
  return counts;
}

std::vector<device::KernelSet> kernel_sets(const std::string& text) {
  if (text == "all") return device::usable_kernel_sets();
  std::vector<device::KernelSet> sets;
  for (const std::string& word : split(text, ',')) {
    sets.push_back(device::kernel_set_from_name(word));
  }
  return sets;
}

}  // namespace

bool BenchArguments::has(const std::string& flag) const {
  return std::find(flags.begin(), flags.end(), flag) != flags.end();
}

BenchArguments parse_arguments(int argc, char** argv, const std::string& help,
                               const std::vector<std::string>& own_flags) {
  BenchArguments arguments;
  const auto value = [&](int* at) -> std::string {
    if (*at + 1 >= argc) throw Error(Reason::kUsage, cat(argv[*at], " needs a value"));
    return argv[++*at];
  };
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      arguments.json = true;
    } else if (word == "--cpu-time") {
      arguments.clock = device::BenchClock::kProcessor;
    } else if (word == "--filter") {
      arguments.filter = value(&i);
    } else if (word == "--threads") {
      arguments.threads = thread_counts(value(&i));
    } else if (word == "--kernels") {
      arguments.kernels = kernel_sets(value(&i));
    } else if (std::find(own_flags.begin(), own_flags.end(), word) != own_flags.end()) {
      arguments.flags.push_back(word);
    } else if (word == "--help" || word == "-h") {
      std::fputs(help.c_str(), stdout);
      std::exit(0);
    } else {
      std::vector<std::string> known = {"--json",    "--cpu-time", "--filter",
                                        "--threads", "--kernels",  "--help"};
      known.insert(known.end(), own_flags.begin(), own_flags.end());
      throw Error(Reason::kUsage, cat("unknown flag \"", word, "\"", did_you_mean(word, known)));
    }
  }
  if (arguments.threads.empty()) {
    arguments.threads = {1};
    if (const int all = useful_threads_here(); all > 1) arguments.threads.push_back(all);
  }
  return arguments;
}

Reporter::Reporter(bool json) : json_(json), machine_(device::processor_name()) {}

void Reporter::machine_line(const std::string& text) const {
  if (!json_) std::printf("# %s: %s\n", machine_.c_str(), text.c_str());
  std::fflush(stdout);
}

void Reporter::add(const device::BenchRecord& record) const {
  std::printf("%s\n", json_ ? device::to_json(record, machine_).dump().c_str()
                            : device::to_line(record).c_str());
  std::fflush(stdout);
}

void Reporter::skip(const std::string& name, const std::string& reason) const {
  std::fprintf(json_ ? stderr : stdout, "%s: skipped: %s\n", name.c_str(), reason.c_str());
}

int run_program(const std::string& name, int (*body)(int argc, char** argv), int argc,
                char** argv) {
  try {
    return body(argc, argv);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: internal error: %s\n", name.c_str(), error.what());
    return reason_traits(Reason::kInternal).exit_code;
  }
}

}  // namespace galley::bench
