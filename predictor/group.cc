// predict() for groups: bytes of every worker, and the speed of all of them together.
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "engine/core/error.h"
#include "engine/core/group_transport.h"
#include "engine/core/strings.h"
#include "engine/model/pipeline.h"
#include "predictor/figures.h"

namespace galley::predictor {
namespace {

// Between processes of the host device: rings in shared memory, and rings with the agents' MPI in
// between (measured: one way, megabytes).
constexpr double kHostLinkBytes = 5e9, kHostNetworkBytes = 2.5e9;
// Seconds before the first byte of a message arrives.
constexpr double kLinkLatency = 15e-6, kNetworkLatency = 60e-6;
// A description without links: PCIe 4, and a network card of 100 Gbit/s.
constexpr double kCardLinkBytes = 24e9, kCardNetworkBytes = 12e9;
// The optimizer reads and writes each byte of parameters, gradients and moments about once.
constexpr double kOptimizerPasses = 1.75;
constexpr double kHostBytesPerThread = 8e9;
// Micro batches that are followed one by one; more of them repeat the steady part.
constexpr int kFollowedMicroBatches = 256;

struct Link {
  double bytes_per_s = 0, latency_s = 0;
  bool operator<(const Link& other) const { return bytes_per_s < other.bytes_per_s; }
};

Link link_between(const GroupGpu& a, const GroupGpu& b) {
  const bool same_node = a.node == b.node;
  const auto of = [&](const GpuType& type) {
    const double given = same_node ? type.link_bytes_per_s : type.network_bytes_per_s;
    if (!runs_on_host(type)) {
      return given > 0 ? given : same_node ? kCardLinkBytes : kCardNetworkBytes;
    }
    const double host = same_node ? kHostLinkBytes : kHostNetworkBytes;
    return given > 0 ? std::min(given, host) : host;
  };
  return {std::min(of(a.type), of(b.type)), same_node ? kLinkLatency : kNetworkLatency};
}

double seconds_of(const Link& link, double bytes, double messages) {
  return bytes <= 0 ? 0 : bytes / link.bytes_per_s + messages * link.latency_s;
}

/// What of a memory plan a prediction needs.
struct PlanBytes {
  uint64_t weights = 0, trainable = 0, activations = 0, workspace = 0;
  std::string moment;
  uint64_t total() const { return weights + trainable + activations + workspace; }
};

/// Seconds of one worker for one micro batch.
struct WorkerTimes {
  double forward_s = 0, backward_s = 0;
  double communication_s = 0;  // inside them
};

class Group {
 public:
  Group(const JobView& job, const PlanShape& shape, std::span<const GroupGpu> gpus)
      : config_(job.config),
        spec_(job.spec),
        data_(job.data),
        linears_(job.linears),
        shape_(shape),
        gpus_(gpus),
        settings_(memory_settings(job, shape)) {
    GALLEY_CHECK(static_cast<int>(gpus.size()) == shape.layout.num_workers());
    for (const GroupGpu& gpu : gpus) ++workers_on_node_[gpu.node];
  }

  /// Whether all workers of a stage fit.
  bool stage_fits(int stage) {
    for (int rank = 0; rank < num_workers(); ++rank) {
      if (place(rank).position.pp_rank != stage) continue;
      const WorkerNeed need = need_of(rank);
      if (need.high_bytes > need.usable_bytes) return false;
    }
    return true;
  }

  Prediction predicted() {
    Prediction prediction;
    add_bytes(&prediction);
    if (prediction.fits) add_speed(&prediction);
    return prediction;
  }

 private:
  int num_workers() const { return static_cast<int>(gpus_.size()); }
  const GroupGpu& gpu(int rank) const { return gpus_[static_cast<size_t>(rank)]; }
  model::WorkerPlace place(int rank) const { return model::WorkerPlace::of(shape_.layout, rank); }
  int rank_of(int tp_rank, int pp_rank, int dp_rank) const {
    return model::group_rank(shape_.layout, {tp_rank, pp_rank, dp_rank});
  }
  int threads(int rank) const {
    return shape_.worker_threads.empty() ? shape_.threads
                                         : shape_.worker_threads.at(static_cast<size_t>(rank));
  }
  int64_t micro_batch_tokens(int dp_rank) const {
    return shape_.replica_tokens.empty() ? shape_.micro_batch_tokens
                                         : shape_.replica_tokens.at(static_cast<size_t>(dp_rank));
  }

  // Bytes.

  const PlanBytes& plan_of(int rank) {
    const model::WorkerPlace at = place(rank);
    const model::WorkerShape part = model::worker_shape(config_, at);
    const int64_t tokens = micro_batch_tokens(at.position.dp_rank);
    // Neighbours with equal slices hold the same bytes.
    const bool own = shape_.layout.sequence_parallel == model::SequenceParallel::kYes;
    const auto key = std::tuple(at.position.pp_rank, own ? at.position.tp_rank : 0, part.num_heads,
                                part.num_kv_heads, part.intermediate, part.vocab_size, tokens,
                                runs_on_host(gpu(rank).type), threads(rank));
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
    settings_.micro_batch_tokens = tokens;
    settings_.micro_batch_rows = std::min(spec_.global_batch, tokens);
    const model::MemoryPlan plan = model::memory_plan(
        config_, shape_.layout, at.position, settings_, traits_for(gpu(rank).type, threads(rank)));
    PlanBytes bytes{plan.weights_bytes, plan.trainable_bytes, plan.activations_bytes,
                    plan.workspace_bytes, ""};
    if (!plan.moments.empty()) {
      bytes.moment = plan.moments[static_cast<size_t>(plan.peak_moment)].name;
    }
    return plans_.emplace(key, std::move(bytes)).first->second;
  }

  uint64_t communication_bytes(int rank) const {
    if (!runs_on_host(gpu(rank).type)) return gpu(rank).type.communicator_bytes;
    const size_t ring = group_ring_bytes(group_message_bytes(config_, shape_));
    const uint64_t node = group_memory_bytes(workers_on_node_.at(gpu(rank).node), ring);
    return node + (workers_on_node_.size() > 1 ? relay_memory_bytes(ring) : 0);
  }

  WorkerNeed need_of(int rank) {
    const GpuType& type = gpu(rank).type;
    WorkerNeed need;
    need.planned_bytes = plan_of(rank).total();
    need.communication_bytes = communication_bytes(rank);
    need.predicted_bytes = need.planned_bytes + need.communication_bytes +
                           (runs_on_host(type) ? 0 : type.context_bytes) +
                           process_bytes(type, settings_);
    const uint64_t error = error_bytes(need.predicted_bytes);
    need.low_bytes = need.predicted_bytes - std::min(error, need.predicted_bytes);
    need.high_bytes = need.predicted_bytes + error;
    need.usable_bytes = usable_bytes(type);
    return need;
  }

  void add_bytes(Prediction* prediction) {
    int fullest = 0;
    int64_t least_left = 0;
    prediction->fits = true;
    for (int rank = 0; rank < num_workers(); ++rank) {
      const WorkerNeed need = need_of(rank);
      prediction->fits = prediction->fits && need.high_bytes <= need.usable_bytes;
      const int64_t left =
          static_cast<int64_t>(need.usable_bytes) - static_cast<int64_t>(need.high_bytes);
      if (rank == 0 || left < least_left) {
        fullest = rank;
        least_left = left;
      }
      prediction->workers.push_back(need);
    }
    describe_fullest(fullest, prediction);
  }

  void describe_fullest(int rank, Prediction* prediction) {
    const WorkerNeed& need = prediction->workers[static_cast<size_t>(rank)];
    const PlanBytes& plan = plan_of(rank);
    const GpuType& type = gpu(rank).type;
    prediction->planned_bytes = need.planned_bytes;
    prediction->predicted_bytes = need.predicted_bytes;
    prediction->low_bytes = need.low_bytes;
    prediction->high_bytes = need.high_bytes;
    prediction->usable_bytes = need.usable_bytes;
    prediction->moment = plan.moment;
    prediction->parts = {{"weights", plan.weights},
                         {"adapter and optimizer", plan.trainable},
                         {"activations", plan.activations},
                         {"workspace", plan.workspace},
                         {"communication", need.communication_bytes},
                         {runs_on_host(type) ? "process" : "context",
                          need.predicted_bytes - need.planned_bytes - need.communication_bytes}};
    if (prediction->fits) return;
    const model::WorkerPosition at = place(rank).position;
    prediction->reason =
        cat("needs ", format_bytes(static_cast<double>(need.high_bytes)), " on the GPU of stage ",
            at.pp_rank, ", tensor-parallel rank ", at.tp_rank, "; ", type.name, " has ",
            format_bytes(static_cast<double>(need.usable_bytes)));
  }

  // Speed.

  /// The slowest link from a worker to those that `same` chooses.
  template <typename Same>
  Link slowest_link(int rank, const Same& same) const {
    Link slowest{1e18, 0};
    for (int other = 0; other < num_workers(); ++other) {
      if (other == rank || !same(place(other).position)) continue;
      slowest = std::min(slowest, link_between(gpu(rank), gpu(other)));
    }
    return slowest;
  }

  /// The same in all replicas.
  const model::WorkerTraffic& traffic_of(int rank) {
    const int in_replica = rank % (shape_.layout.tp_size * shape_.layout.pp_size);
    const auto found = traffic_.find(in_replica);
    if (found != traffic_.end()) return found->second;
    return traffic_
        .emplace(in_replica, model::worker_traffic(config_, linears_, place(in_replica),
                                                   shape_.recompute_blocks))
        .first->second;
  }

  WorkerTimes times_of(int rank, double tokens) {
    const model::WorkerPlace at = place(rank);
    const double rate =
        device_flops(gpu(rank).type, threads(rank), shape_.may_round_inputs) * kStepEfficiency;
    const model::WorkerFlops flops =
        model::worker_flops(config_, linears_, at, mean_tokens(spec_, data_) / 2,
                            data_.target_fraction, shape_.recompute_blocks);
    WorkerTimes times{tokens * flops.forward / rate, tokens * flops.backward / rate, 0};
    if (shape_.layout.tp_size == 1) return times;
    const model::WorkerTraffic& traffic = traffic_of(rank);
    const Link link = slowest_link(rank, [&](const model::WorkerPosition& other) {
      return other.pp_rank == at.position.pp_rank && other.dp_rank == at.position.dp_rank;
    });
    const double messages =
        2.0 * (shape_.layout.tp_size - 1) * traffic.tensor_calls_per_micro_batch;
    times.communication_s = seconds_of(link, tokens * traffic.tensor_bytes_per_token, messages);
    const double forward_share = flops.forward / std::max(1.0, flops.forward + flops.backward);
    times.forward_s += times.communication_s * forward_share;
    times.backward_s += times.communication_s * (1 - forward_share);
    return times;
  }

  /// Seconds that a hand-over to the next stage takes, the slowest of a replica.
  double hand_over_seconds(int dp_rank, double tokens) {
    double slowest = 0;
    if (shape_.layout.pp_size == 1) return slowest;
    const model::WorkerTraffic& first = traffic_of(rank_of(0, 0, dp_rank));
    for (int stage = 0; stage + 1 < shape_.layout.pp_size; ++stage) {
      const Link link =
          link_between(gpu(rank_of(0, stage, dp_rank)), gpu(rank_of(0, stage + 1, dp_rank)));
      // The first stage sends its output only.
      slowest = std::max(slowest, seconds_of(link, tokens * first.stage_bytes_per_token, 1));
    }
    return slowest;
  }

  struct ReplicaTimes {
    double step_s = 0;           // pipeline of one global batch
    double busy_s = 0;           // of all its workers together
    double communication_s = 0;  // inside busy_s
  };
  ReplicaTimes replica_times(int dp_rank, double rows) {
    const double mean = mean_tokens(spec_, data_);
    const auto capacity = static_cast<double>(micro_batch_tokens(dp_rank));
    const double rows_of_one = std::max(1.0, std::floor(capacity / mean + 1e-9));
    const int count = std::max(1, static_cast<int>(std::ceil(rows / rows_of_one - 1e-9)));
    const double tokens = rows * mean / count;
    ReplicaTimes replica;
    std::vector<model::StageTimes> stages;
    for (int stage = 0; stage < shape_.layout.pp_size; ++stage) {
      model::StageTimes slowest;
      for (int tp_rank = 0; tp_rank < shape_.layout.tp_size; ++tp_rank) {
        const WorkerTimes times = times_of(rank_of(tp_rank, stage, dp_rank), tokens);
        slowest.forward_s = std::max(slowest.forward_s, times.forward_s);
        slowest.backward_s = std::max(slowest.backward_s, times.backward_s);
        replica.busy_s += count * (times.forward_s + times.backward_s);
        replica.communication_s += count * times.communication_s;
      }
      stages.push_back(slowest);
    }
    const int followed = std::min(count, kFollowedMicroBatches);
    replica.step_s = model::pipeline_seconds(stages, followed, hand_over_seconds(dp_rank, tokens));
    double slowest_stage = 0;
    for (const model::StageTimes& stage : stages) {
      slowest_stage = std::max(slowest_stage, stage.forward_s + stage.backward_s);
    }
    replica.step_s += (count - followed) * slowest_stage;
    return replica;
  }

  /// Sums of gradients once per step, and the optimizer; the slowest worker.
  struct StepEnd {
    double reduce_s = 0, optimizer_s = 0;
  };
  StepEnd step_end() {
    StepEnd end;
    const model::ParallelLayout& layout = shape_.layout;
    for (int rank = 0; rank < num_workers(); ++rank) {
      const model::WorkerPosition at = place(rank).position;
      const int peers = std::max(layout.tp_size, layout.dp_size);
      if (peers > 1) {
        const Link link = slowest_link(rank, [&](const model::WorkerPosition& other) {
          return other.pp_rank == at.pp_rank &&
                 (other.tp_rank == at.tp_rank || other.dp_rank == at.dp_rank);
        });
        const double bytes = traffic_of(rank).step_bytes;
        end.reduce_s = std::max(end.reduce_s, seconds_of(link, bytes, 2.0 * (peers - 1)));
      }
      const GpuType& type = gpu(rank).type;
      const double bandwidth = runs_on_host(type)
                                   ? kHostBytesPerThread * threads(rank) / type.slowdown
                                   : std::max(1e9, type.bandwidth_bytes_per_s);
      const double bytes = kOptimizerPasses * static_cast<double>(plan_of(rank).trainable);
      end.optimizer_s = std::max(end.optimizer_s, bytes / bandwidth);
    }
    return end;
  }

  void add_speed(Prediction* prediction) {
    const int replicas = shape_.layout.dp_size;
    double rows = static_cast<double>(spec_.global_batch);
    if (data_.num_rows > 0) rows = std::min(rows, static_cast<double>(data_.num_rows));
    double slowest = 0, busy = 0, communication = 0;
    for (int replica = 0; replica < replicas; ++replica) {
      const double share = shape_.replica_shares.empty()
                               ? 1.0 / replicas
                               : shape_.replica_shares.at(static_cast<size_t>(replica));
      const ReplicaTimes times = replica_times(replica, rows * share);
      slowest = std::max(slowest, times.step_s);
      busy += times.busy_s;
      communication += times.communication_s;
    }
    const StepEnd end = step_end();
    const double workers = num_workers();
    const double step = slowest + end.reduce_s + end.optimizer_s;
    busy += workers * (end.reduce_s + end.optimizer_s);
    communication += workers * end.reduce_s;
    prediction->idle_share = std::clamp(1 - busy / (workers * step), 0.0, 1.0);
    prediction->communication_share = std::clamp(communication / (workers * step), 0.0, 1.0);
    prediction->tokens_per_second = rows * mean_tokens(spec_, data_) / step;
    add_duration(spec_, data_, prediction);
  }

  using PlanKey = std::tuple<int, int, int64_t, int64_t, int64_t, int64_t, int64_t, bool, int>;
  const model::ModelConfig& config_;
  const model::TrainSpec& spec_;
  const DataShape& data_;
  const std::vector<model::AdaptedLinear>& linears_;
  const PlanShape& shape_;
  const std::span<const GroupGpu> gpus_;
  model::MemorySettings settings_;  // its micro batch is of the replica looked at last
  std::map<int, int> workers_on_node_;
  std::map<PlanKey, PlanBytes> plans_;
  std::map<int, model::WorkerTraffic> traffic_;  // by rank within a replica
};

}  // namespace

uint64_t group_message_bytes(const model::ModelConfig& config, const PlanShape& shape) {
  int64_t tokens = shape.micro_batch_tokens;
  for (const int64_t of_replica : shape.replica_tokens) tokens = std::max(tokens, of_replica);
  return static_cast<uint64_t>(tokens) * static_cast<uint64_t>(config.hidden) * sizeof(float);
}

bool stage_fits(const JobView& job, const PlanShape& shape, std::span<const GroupGpu> gpus,
                int stage) {
  return Group(job, shape, gpus).stage_fits(stage);
}

Prediction predict_group(const JobView& job, const PlanShape& shape,
                         std::span<const GroupGpu> gpus) {
  if (shape.layout.num_workers() == 1) {
    GALLEY_CHECK(gpus.size() == 1);
    PlanShape alone = shape;
    if (!shape.worker_threads.empty()) alone.threads = shape.worker_threads.front();
    return predict(job.config, job.spec, job.data, alone, gpus.front().type);
  }
  return Group(job, shape, gpus).predicted();
}

Prediction predict(const model::ModelConfig& config, const model::TrainSpec& spec,
                   const DataShape& data, const PlanShape& shape, std::span<const GroupGpu> gpus) {
  const std::vector<model::AdaptedLinear> linears = model::adapted_linears(config, spec.lora);
  return predict_group({config, spec, data, linears}, shape, gpus);
}

}  // namespace galley::predictor
