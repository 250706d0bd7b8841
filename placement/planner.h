// Planner: who runs where, now. Pure: cluster, running groups, queue and `now` in, a plan out.
//
// Policies share this interface; best fit is the first. GPUs are reused as jobs end: the
// coordinator calls plan() after every change and journals the decisions before acting on them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/train_spec.h"
#include "placement/cluster.h"
#include "predictor/predictor.h"

namespace galley::placement {

/// A job as the planner sees it.
struct QueuedJob {
  std::string name;
  int64_t order = 0;  // position in the job file(s)
  int64_t priority = 0;
  double submitted_at = 0;        // seconds
  double remaining_fraction = 1;  // of its steps
  model::ModelConfig config;
  model::TrainSpec spec;
  predictor::DataShape data;
  std::vector<GpuIndex> avoid;  // GPUs that failed it
};

struct RunningJob {
  std::string name;  // "": GPUs that are lost
  std::vector<GpuIndex> gpus;
};

struct Assignment {
  std::string job;
  std::vector<GpuIndex> gpus;  // by group rank
  predictor::Candidate candidate;
  std::string explanation;  // why these GPUs
};
struct Refusal {
  std::string job;
  std::string reason;  // why no GPU type of the cluster can run it, and what would fit
};
struct PlacementPlan {
  std::vector<Assignment> start;                 // now, in this order
  std::vector<std::string> waiting;              // for GPUs to come free
  std::map<std::string, std::string> waits_for;  // by job of `waiting`: the GPUs, for people
  std::vector<Refusal> refused;                  // can never run on this cluster
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string name() const = 0;
  virtual PlacementPlan plan(const Cluster& cluster, const std::vector<RunningJob>& running,
                             const std::vector<QueuedJob>& queue, double now) const = 0;
};
/// Highest priority first, then order; each on the smallest GPU (bytes left over after high_bytes)
/// that fits among the free ones; a job waits when only busy GPUs fit it, later ones may pass it.
/// A job that fits no GPU alone, or whose pins ask for it, gets the smallest group that fits the
/// free GPUs, the fastest of that size. While it waits, the free GPUs of the group that it would
/// get on the whole cluster are kept for it.
std::unique_ptr<Policy> policy_best_fit();

/// Dry-run of a whole queue for `galley plan`: start and end times with GPUs reused as jobs end.
struct ScheduledJob {
  Assignment assignment;
  double start = 0, end = 0;  // seconds from now
};
struct Forecast {
  std::vector<ScheduledJob> jobs;
  std::vector<Refusal> refused;
};
Forecast forecast(const Policy& policy, const Cluster& cluster,
                  const std::vector<QueuedJob>& queue);

Json to_json(const Assignment& assignment, const Cluster& cluster);
Json to_json(const PlacementPlan& plan, const Cluster& cluster);

}  // namespace galley::placement
