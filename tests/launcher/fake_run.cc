#include "tests/launcher/fake_run.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <sstream>

#include "engine/core/file.h"
#include "engine/core/strings.h"

namespace galley::launcher::testing {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr int64_t kStepsPerCheckpoint = 5;

std::string checkpoint_file(const std::string& directory) { return directory + "/step"; }

void write_checkpoint(const std::string& directory, int64_t step) {
  write_file_atomically(checkpoint_file(directory), cat(step));
}

/// Workers of a group by the job's name: "tp2-a", "pp2-b", "dp3-c"; {1, 1, 1} for others.
model::ParallelLayout layout_of(const std::string& name) {
  model::ParallelLayout layout;
  if (name.size() < 4 || name[3] != '-' || name[2] < '2' || name[2] > '9') return layout;
  const int count = name[2] - '0';
  if (name.starts_with("tp")) layout.tp_size = count;
  if (name.starts_with("pp")) layout.pp_size = count;
  if (name.starts_with("dp")) layout.dp_size = count;
  return layout;
}

/// Every worker tells every other one its step, and the leader whether to stop; true: stop.
bool exchange(GroupTransport& transport, int64_t step, bool stop) {
  const std::array<int64_t, 2> mine = {step, stop ? 1 : 0};
  bool stops = stop;
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    const auto* bytes = reinterpret_cast<const std::byte*>(mine.data());
    for (size_t sent = 0; sent < sizeof mine;) {
      const size_t count = transport.try_write(peer, bytes + sent, sizeof mine - sent);
      sent += count;
      if (count == 0) transport.wait();
    }
  }
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    std::array<int64_t, 2> theirs{};
    auto* bytes = reinterpret_cast<std::byte*>(theirs.data());
    for (size_t got = 0; got < sizeof theirs;) {
      const std::span<const std::byte> ready = transport.readable(peer);
      const size_t count = std::min(ready.size(), sizeof theirs - got);
      std::copy_n(ready.begin(), count, bytes + got);
      if (count > 0) transport.consume(peer, count);
      got += count;
      if (count == 0) transport.wait();
    }
    GALLEY_CHECK(theirs[0] == step);
    if (peer == 0) stops = theirs[1] == 1;
  }
  return stops;
}

/// A group on the first free GPUs with enough memory each; nothing while there are too few.
std::optional<placement::Assignment> place_group(const placement::Cluster& cluster,
                                                 const placement::QueuedJob& job, uint64_t need,
                                                 std::vector<bool>* busy) {
  placement::Assignment assignment;
  assignment.job = job.name;
  predictor::PlanShape& shape = assignment.candidate.shape;
  shape.layout = layout_of(job.name);
  for (size_t i = 0; i < cluster.gpus.size(); ++i) {
    const placement::Gpu& gpu = cluster.gpus[i];
    if ((*busy)[i] || gpu.type.memory_bytes < need) continue;
    // Pipelines cross nodes: no two stages on one.
    const bool same_node =
        !assignment.gpus.empty() &&
        cluster.gpus[static_cast<size_t>(assignment.gpus.back())].node == gpu.node;
    if (shape.layout.pp_size > 1 && same_node) continue;
    if (static_cast<int>(assignment.gpus.size()) == shape.layout.num_workers()) break;
    assignment.gpus.push_back(static_cast<int>(i));
    shape.worker_threads.push_back(gpu.threads);
  }
  if (static_cast<int>(assignment.gpus.size()) < shape.layout.num_workers()) return std::nullopt;
  for (const int gpu : assignment.gpus) (*busy)[static_cast<size_t>(gpu)] = true;
  shape.micro_batch_tokens = 16;
  assignment.candidate.prediction.predicted_bytes = need;
  return assignment;
}

class FakePolicy : public placement::Policy {
 public:
  std::string name() const override { return "fake"; }
  placement::PlacementPlan plan(const placement::Cluster& cluster,
                                const std::vector<placement::RunningJob>& running,
                                const std::vector<placement::QueuedJob>& queue,
                                double) const override {
    placement::PlacementPlan plan;
    std::vector<bool> busy(cluster.gpus.size(), false);
    for (const auto& job : running) {
      for (const int gpu : job.gpus) busy[static_cast<size_t>(gpu)] = true;
    }
    for (const auto& job : queue) {
      const auto need = static_cast<uint64_t>(static_cast<double>(job.spec.sequence) * kGib / 1024);
      if (layout_of(job.name).num_workers() > 1) {
        if (auto assignment = place_group(cluster, job, need, &busy)) {
          plan.start.push_back(*assignment);
        } else {
          plan.waiting.push_back(job.name);
        }
        continue;
      }
      int best = -1;
      bool fits = false;
      for (size_t i = 0; i < cluster.gpus.size(); ++i) {
        if (cluster.gpus[i].type.memory_bytes < need) continue;
        fits = true;
        if (busy[i]) continue;
        if (best < 0 || cluster.gpus[i].type.memory_bytes <
                            cluster.gpus[static_cast<size_t>(best)].type.memory_bytes) {
          best = static_cast<int>(i);
        }
      }
      if (!fits) {
        plan.refused.push_back({job.name, "needs more memory than any GPU has"});
      } else if (best < 0) {
        plan.waiting.push_back(job.name);
      } else {
        busy[static_cast<size_t>(best)] = true;
        placement::Assignment assignment;
        assignment.job = job.name;
        assignment.gpus = {best};
        assignment.candidate.shape.threads = cluster.gpus[static_cast<size_t>(best)].threads;
        assignment.candidate.prediction.predicted_bytes = need;
        plan.start.push_back(assignment);
      }
    }
    return plan;
  }
};

}  // namespace

int64_t fake_checkpoint_step(const std::string& job_directory) {
  const std::string file = checkpoint_file(job_directory);
  return path_exists(file) ? parse_int(read_file(file)).value_or(-1) : -1;
}

trainer::JobResult fake_job(const trainer::TrainAssignment& assignment, trainer::JobEvents& events,
                            GroupTransport* transport) {
  const model::TrainSpec& spec = assignment.spec;
  const std::string& directory = assignment.job_directory;
  make_directories(directory);
  const int64_t first = std::max<int64_t>(fake_checkpoint_step(directory), 0);
  const bool marked = path_exists(directory + "/marked");
  trainer::JobResult result;
  result.last.total_steps = spec.max_steps;
  result.last.step = first;
  const bool leads = assignment.group_rank == 0;
  if (leads) events.started(first, spec.max_steps, "");
  const std::string& name = spec.name;
  if (name == "bad") throw Error(Reason::kNumerics, "the loss is not finite");
  if (name == "full") throw Error(Reason::kDiskFull, "no space left for a checkpoint");
  if (name == "die-always") raise(SIGKILL);
  for (int64_t step = first + 1; step <= spec.max_steps; ++step) {
    if (!marked && name.starts_with("die-") && parse_int(name.substr(4)) == step) {
      write_file_atomically(directory + "/marked", "");
      raise(SIGKILL);
    }
    if (!marked && name == "hang" && step == 3) {
      write_file_atomically(directory + "/marked", "");
      for (;;) pause();
    }
    events.alive(cat("step ", step));
    // The leader says whether this step is the last.
    bool stop = leads && events.command() == trainer::JobCommand::kStop && step < spec.max_steps;
    if (transport != nullptr) stop = exchange(*transport, step, stop);
    usleep(static_cast<useconds_t>(spec.learning_rate * 1e3));
    result.last.step = step;
    result.last.loss = 1.0 / static_cast<double>(step);
    result.last.step_tokens = 100;
    result.last.tokens_per_second = 1000;
    if (leads) events.progress(result.last);
    if (leads && (stop || step % kStepsPerCheckpoint == 0)) {
      write_checkpoint(directory, step);
      events.checkpointed(step, 0.001);
    }
    if (stop) {
      result.outcome = trainer::JobResult::Outcome::kStopped;
      return result;
    }
  }
  if (!leads) return result;
  make_directories(directory + "/adapter");
  write_file_atomically(directory + "/adapter/done", cat(spec.max_steps));
  result.adapter_directory = directory + "/adapter";
  return result;
}

PreparedJob fake_prepared_job(const std::string& name, int64_t steps, double step_ms, double gib) {
  PreparedJob job;
  job.spec.name = name;
  job.spec.max_steps = steps;
  job.spec.learning_rate = step_ms;                      // read back by fake_job
  job.spec.sequence = static_cast<int64_t>(gib * 1024);  // MiB, read back by the policy
  return job;
}

std::unique_ptr<placement::Policy> fake_policy() { return std::make_unique<FakePolicy>(); }

RunParts fake_parts(const std::string& runs) {
  RunParts parts;
  parts.run_directory = [runs](const RunOptions& options, const Environment&) {
    return path_join(runs, options.run_name.empty() ? "fake" : options.run_name);
  };
  parts.prepare = [runs](const RunOptions& options, const Environment& environment,
                         const RunParts::Report& report) {
    PreparedRun run;
    run.run_directory = fake_parts(runs).run_directory(options, environment);
    std::istringstream file(read_file(options.job_file));
    std::string name;
    int64_t steps = 0;
    double step_ms = 0, gib = 0;
    while (file >> name >> steps >> step_ms >> gib) {
      if (steps <= 0)
        throw Error(Reason::kBadConfig, cat("job ", name, ": steps must be positive"));
      run.jobs.push_back(fake_prepared_job(name, steps, step_ms, gib));
      report(cat(name, ": prepared"));
    }
    return run;
  };
  parts.policy = fake_policy;
  parts.adapter_is_valid = [](const PreparedJob&, const std::string& folder) {
    return path_exists(folder + "/done");
  };
  parts.newest_checkpoint = fake_checkpoint_step;
  return parts;
}

placement::Cluster fake_cluster(const std::vector<std::vector<double>>& gib_of_nodes) {
  placement::Cluster cluster;
  cluster.emulated = true;
  for (size_t node = 0; node < gib_of_nodes.size(); ++node) {
    cluster.nodes.push_back({cat("n", node + 1)});
    for (size_t i = 0; i < gib_of_nodes[node].size(); ++i) {
      placement::Gpu gpu;
      gpu.type.name = cat("gpu-", gib_of_nodes[node][i], "gib");
      gpu.type.memory_bytes = static_cast<uint64_t>(gib_of_nodes[node][i] * kGib);
      gpu.type.emulated = true;
      gpu.node = static_cast<int>(node);
      gpu.local_index = static_cast<int>(i);
      cluster.gpus.push_back(gpu);
    }
  }
  return cluster;
}

}  // namespace galley::launcher::testing
