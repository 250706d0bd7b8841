#include "launcher/rank.h"

#include <sys/resource.h>

#include <utility>

#include "engine/core/hash.h"
#include "engine/core/processors.h"
#include "engine/core/strings.h"
#include "launcher/back_off.h"
#include "launcher/process.h"
#include "launcher/world.h"

namespace galley::launcher {
namespace {

constexpr double kFlushSeconds = 5;  // the last words of a rank

/// Fingerprint of the program, so that two versions never talk to each other.
std::string build_id() {
  const MappedFile program(own_executable());
  return hash128_hex(program.bytes(), program.size()).substr(0, 16);
}

/// A log that cannot be opened is no reason to end an agent.
std::unique_ptr<Log> open_rank_log(const std::string& folder, const std::string& host, int rank) {
  try {
    return std::make_unique<Log>(LogSettings{.path = path_join(folder, cat("rank-", rank, ".log")),
                                             .origin = cat(host, " rank ", rank)});
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace

Json own_hello(const Channel& channel, const Environment& environment) {
  Hello hello;
  hello.rank = channel.rank();
  hello.protocol = kProtocolVersion;
  hello.build = build_id();
  hello.host = host_name();
  hello.cpus = describe_processors(allowed_cpus());
  hello.node_cpus = num_online_cpus();
  hello.cpu_quota = cpu_quota();
  hello.bound_by = bound_by(environment);
  hello.binding_undone = default_binding_undone(environment);
  hello.free_memory_bytes = free_memory_bytes();
  hello.visible_gpus = environment.get("CUDA_VISIBLE_DEVICES")
                           .value_or(environment.get("SLURM_STEP_GPUS")
                                         .value_or(environment.get("SLURM_JOB_GPUS").value_or("")));
  hello.gpu_driver = path_exists("/dev/nvidiactl");
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  hello.open_file_limit = cat(limit.rlim_cur);
  hello.slurm_procid = environment.get("SLURM_PROCID").value_or("");
  hello.slurm_nodeid = environment.get("SLURM_NODEID").value_or("");
  hello.in_slurm = environment.has("SLURM_JOB_ID");
  return to_json(hello);
}

RankEnd serve_as_agent(Channel& channel, const Environment& environment, const RunParts& parts,
                       SignalInbox* signals) {
  channel.send(0, own_hello(channel, environment).dump());
  const std::string host = host_name();
  AgentSettings settings = parts.agent;
  settings.host = host;
  Agent agent(&channel, parts.start_worker, settings);
  std::unique_ptr<Log> log;
  BackOff back_off;
  while (!agent.quit()) {
    const double now = monotonic_now();
    bool busy = false;
    while (const auto received = channel.try_receive()) {
      busy = true;
      if (is_bulk(received->bytes)) {
        agent.take_bulk(received->bytes, now);
        continue;
      }
      const Json message = parse_message(received->bytes, {Direction::kToAgent});
      if (message_kind(message) == "welcome") parts.all_heard();
      if (message_kind(message) == "run" && log == nullptr) {
        log = open_rank_log(message.get_string("logs"), host, channel.rank());
        agent.set_log(log.get());
      }
      agent.handle(message, now);
    }
    while (signals != nullptr) {
      const std::optional<int> signal = signals->take();
      if (!signal) break;
      // CONT only says that mpirun is about to end its ranks; the coordinator gets its own.
      if (*signal != SIGCONT) {
        channel.send(0, make_message("signalled").set("signal", *signal).dump());
      }
    }
    busy = agent.step(now) || busy;
    if (busy) back_off.reset();
    std::vector<int> fds = agent.wait_fds();
    if (signals != nullptr) fds.push_back(signals->fd());
    if (!busy) back_off.wait(fds, now, agent.longest_sleep_s(now));
  }
  const double end = monotonic_now() + kFlushSeconds;
  bool flushed = channel.flush();
  while (!flushed && monotonic_now() < end) {
    back_off.wait({}, monotonic_now());
    flushed = channel.flush();
  }
  return {agent.exit_code(), agent.may_finalize() && flushed};
}

}  // namespace galley::launcher
