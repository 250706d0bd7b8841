// Speed of sums between two processes of one node, beside plain copies of the same bytes: the
// second process is a fork of this one.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/device/communicator.h"
#include "tests/bench/bench_program.h"

namespace galley::bench {
namespace {

using device::BenchRecord;
using device::Communicator;

constexpr const char* kHelp =
    "bench_communicator [FLAG...]: all-reduce between two processes beside copies of one\n"
    "  --filter TEXT      only cases whose name has TEXT, e.g. \"1.0 MiB\"\n"
    "  --json             JSON lines\n";

constexpr int kSamples = 15;
constexpr int64_t kLeastFloats = 4 << 20;  // summed per sample: small cases are repeated

struct Case {
  int64_t floats = 0;
  std::string name() const {
    return cat("all-reduce ", format_bytes(static_cast<double>(4 * floats)));
  }
  int64_t repeats() const { return std::max<int64_t>(1, kLeastFloats / floats / 4); }
};

/// Seconds of one all-reduce; both processes call it.
double reduce_seconds(Communicator* group, const Case& c, std::vector<float>* data) {
  std::fill(data->begin(), data->end(), 0.5f);
  double start = 0;
  group->all_reduce_host({&start, 1});
  const double begin_s = seconds_of(CLOCK_MONOTONIC);
  for (int64_t i = 0; i < c.repeats(); ++i) group->all_reduce(data->data(), c.floats);
  return (seconds_of(CLOCK_MONOTONIC) - begin_s) / static_cast<double>(c.repeats());
}

double copy_seconds(const Case& c, const std::vector<float>& from, std::vector<float>* to) {
  const double begin_s = seconds_of(CLOCK_MONOTONIC);
  for (int64_t i = 0; i < c.repeats(); ++i) {
    std::memcpy(to->data(), from.data(), from.size() * sizeof(float));
    asm volatile("" : : "r"(to->data()) : "memory");  // each copy counts
  }
  return (seconds_of(CLOCK_MONOTONIC) - begin_s) / static_cast<double>(c.repeats());
}

void run_case(Communicator* group, const Case& c, const Reporter& reporter) {
  std::vector<float> data(static_cast<size_t>(c.floats)), copy(data.size(), 1.0f);
  std::vector<double> times_us, rates, fractions;
  for (int sample = 0; sample <= kSamples; ++sample) {
    double copy_s = 0;
    if (group->rank() == 0) copy_s = copy_seconds(c, data, &copy);
    const double reduce_s = reduce_seconds(group, c, &data);
    if (sample == 0) continue;  // takes the pages
    times_us.push_back(reduce_s * 1e6);
    rates.push_back(static_cast<double>(data.size() * sizeof(float)) / reduce_s / 1e9);
    fractions.push_back(copy_s / reduce_s);
  }
  if (group->rank() != 0) return;
  BenchRecord record;
  record.name = c.name();
  record.unit = "us";
  record.value = device::spread_of(times_us);
  record.fraction = device::spread_of(fractions).median;
  record.limit = "copy of its bytes";
  record.rate = device::spread_of(rates).median;
  record.rate_unit = "GB/s";
  record.threads = 1;
  reporter.add(record);
}

void run_rank(int rank, const BenchArguments& arguments, const std::string& token) {
  const GroupMeeting meeting{token, {0, 0}, group_ring_bytes(1 << 20)};
  // A killed partner is noticed: the other is its parent or its child.
  const pid_t parent = ::getppid();
  const auto check = [rank, parent] {
    const bool gone = rank == 1 ? ::getppid() != parent : ::waitpid(-1, nullptr, WNOHANG) > 0;
    if (gone) throw Error(Reason::kWorkerDied, "the other process of the benchmark has ended");
  };
  const auto transport = join_group(meeting, rank, {}, check, 10);
  const auto group = device::make_host_communicator(transport.get(), {0, 1});
  const Reporter reporter(arguments.json && rank == 0);
  for (const int64_t floats :
       {int64_t{16}, int64_t{16} << 10, int64_t{256} << 10, int64_t{4} << 20}) {
    const Case c{floats};
    if (arguments.wants(c.name())) run_case(group.get(), c, reporter);
  }
  double done = 0;
  group->all_reduce_host({&done, 1});
}

int run_benchmark(int argc, char** argv) {
  const BenchArguments arguments = parse_arguments(argc, argv, kHelp, {});
  const std::string token = cat("bench-communicator-", ::getpid());
  const pid_t child = ::fork();  // before there are threads
  if (child < 0) throw Error(Reason::kIo, "cannot start a second process");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_rank(1, arguments, token);
    ::_exit(0);
  }
  run_rank(0, arguments, token);
  ::waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace galley::bench

int main(int argc, char** argv) {
  return galley::bench::run_program("bench_communicator", galley::bench::run_benchmark, argc, argv);
}
