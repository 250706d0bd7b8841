#include "launcher/mpirun_line.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/core/strings.h"

namespace galley::launcher {
namespace {

constexpr int kDefaultRanks = 2;  // a coordinator and one agent: enough for a machine

constexpr std::array<std::string_view, 5> kCountWords = {"-n", "-np", "--n", "--np", "-c"};
constexpr std::array<std::string_view, 5> kHostWords = {"--host", "-host", "-H", "--hostfile",
                                                        "-hostfile"};

template <typename Words>
bool is_one_of(const std::string& option, const Words& words) {
  return std::find(words.begin(), words.end(), option) != words.end();
}

/// What the user's own options of mpirun say of ranks.
struct OwnPlacement {
  bool by_count = false, by_host = false;
  int num_ranks = 0;  // 0: not told
};

OwnPlacement own_placement(const std::vector<std::string>& options) {
  OwnPlacement own;
  for (size_t i = 0; i < options.size(); ++i) {
    own.by_host = own.by_host || is_one_of(options[i], kHostWords);
    if (!is_one_of(options[i], kCountWords)) continue;
    own.by_count = true;
    if (i + 1 < options.size()) {
      own.num_ranks = static_cast<int>(parse_int(options[i + 1]).value_or(0));
    }
  }
  return own;
}

void add(std::vector<std::string>* words, std::initializer_list<std::string> more) {
  words->insert(words->end(), more);
}

}  // namespace

std::vector<std::string> mpirun_line(const LaunchOptions& options, const LaunchPlace& place) {
  std::vector<std::string> words = {"mpirun"};
  const OwnPlacement own = own_placement(options.mpirun_options);
  int num_ranks = options.num_ranks;
  const bool told = own.by_count || own.by_host || place.inside_slurm;
  if (num_ranks == 0 && !told) num_ranks = kDefaultRanks;
  if (num_ranks > 0) add(&words, {"-n", cat(num_ranks)});
  // On this machine alone mpirun refuses more ranks than cores; those that wait sleep.
  if (std::max(num_ranks, own.num_ranks) > place.num_cores && !own.by_host && !place.inside_slurm) {
    add(&words, {"--oversubscribe"});
  }
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
  if (options.run.worker_timeout_s)
    add(&words, {"--worker-timeout", format("%.3fs", *options.run.worker_timeout_s)});
  add(&words, {"--events-for-launch", options.run.job_file});
  return words;
}

}  // namespace galley::launcher
