#include "launcher/mpirun_line.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/core/strings.h"

namespace galley::launcher {
namespace {

constexpr int kDefaultRanks = 2;  // a coordinator and one agent: enough for a machine

/// The user's own options decide where ranks go.
bool places_ranks(const std::vector<std::string>& options) {
  constexpr std::array<std::string_view, 10> kWords = {
      "-n", "-np", "--n", "--np", "-c", "--host", "-host", "-H", "--hostfile", "-hostfile"};
  return std::any_of(options.begin(), options.end(), [&](const std::string& option) {
    return std::find(kWords.begin(), kWords.end(), option) != kWords.end();
  });
}

void add(std::vector<std::string>* words, std::initializer_list<std::string> more) {
  words->insert(words->end(), more);
}

}  // namespace

std::vector<std::string> mpirun_line(const LaunchOptions& options, const LaunchPlace& place) {
  std::vector<std::string> words = {"mpirun"};
  const bool placed = places_ranks(options.mpirun_options);
  int num_ranks = options.num_ranks;
  if (num_ranks == 0 && !placed && !place.inside_slurm) num_ranks = kDefaultRanks;
  if (num_ranks > 0) add(&words, {"-n", cat(num_ranks)});
  if (num_ranks > place.num_cores && !placed && !place.inside_slurm)
    add(&words, {"--oversubscribe"});
  add(&words, {"--bind-to", "none", "-q"});
  // Time between CONT and TERM when mpirun itself is ended; a cut link is seen in seconds.
  add(&words, {"--mca", "odls_base_sigkill_timeout", "10"});
  add(&words, {"--mca", "oob_tcp_keepalive_time", "5"});
  add(&words, {"--mca", "oob_tcp_keepalive_intvl", "2"});
  add(&words, {"--mca", "oob_tcp_keepalive_probes", "3"});
  words.insert(words.end(), options.mpirun_options.begin(), options.mpirun_options.end());
  add(&words, {place.program, "run"});
  if (!options.run.cluster_file.empty()) add(&words, {"--cluster", options.run.cluster_file});
  if (!options.run.run_name.empty()) add(&words, {"--run", options.run.run_name});
  if (options.run.skip_bad_jobs) add(&words, {"--skip-bad-jobs"});
  if (options.run.wall_time_s)
    add(&words, {"--wall-time", format("%.3fs", *options.run.wall_time_s)});
  add(&words, {"--events-for-launch", options.run.job_file});
  return words;
}

}  // namespace galley::launcher
