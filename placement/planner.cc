#include "placement/planner.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "engine/core/strings.h"
#include "placement/describe.h"
#include "placement/group_search.h"
#include "placement/pins.h"

namespace galley::placement {
namespace {

/// What one job can do on one GPU type with one number of threads.
struct TypeFit {
  predictor::Candidate best;  // fastest that fits, else the smallest
  bool fits = false;
};

/// Candidates depend on the GPU type and its threads only, so each pair is predicted once per job.
class FitTable {
 public:
  FitTable(const Cluster& cluster, const QueuedJob& job) : cluster_(cluster), job_(job) {}

  const TypeFit& fit(GpuIndex index) {
    const Gpu& gpu = cluster_.gpus[static_cast<size_t>(index)];
    const Key key(gpu.type.name, gpu.type.memory_bytes, gpu.type.relative_speed, gpu.type.slowdown,
                  gpu.threads);
    const auto found = fits_.find(key);
    if (found != fits_.end()) return found->second;
    TypeFit result;
    for (const predictor::Candidate& candidate : predictor::candidates(
             job_.config, job_.spec, job_.data, gpu.type, std::max(1, gpu.threads))) {
      result.best = candidate;
      if (candidate.prediction.fits) {
        result.fits = true;
        break;
      }
    }
    return fits_.emplace(key, result).first->second;
  }

 private:
  using Key = std::tuple<std::string, uint64_t, double, double, int>;
  const Cluster& cluster_;
  const QueuedJob& job_;
  std::map<Key, TypeFit> fits_;
};

bool pinned_away(const QueuedJob& job, const Gpu& gpu) {
  return !job.spec.gpu_type.empty() && job.spec.gpu_type != gpu.type.name;
}

/// A pin to a type that nobody has heard of is a misspelling.
std::string remedy_of_pin(const std::string& pin) {
  std::vector<std::string> names;
  for (const predictor::GpuType& type : predictor::gpu_table()) names.push_back(type.name);
  if (std::find(names.begin(), names.end(), pin) != names.end())
    return "remove the pin or ask for such a GPU";
  const std::string hint = did_you_mean(pin, names);
  return cat("no such type is known", hint,
             hint.empty() ? "; known: " : " Known: ", join(names, ", "));
}

/// Why no GPU of the cluster can hold the job, by type; what would fit comes from the predictor.
std::string refusal_text(const Cluster& cluster, const QueuedJob& job, FitTable* table) {
  std::set<std::string> types, seen;
  std::vector<std::string> reasons;
  for (size_t i = 0; i < cluster.gpus.size(); ++i) {
    const Gpu& gpu = cluster.gpus[i];
    types.insert(gpu.type.name);
    if (pinned_away(job, gpu)) continue;
    if (seen.insert(gpu.type.name).second) {
      reasons.push_back(table->fit(static_cast<GpuIndex>(i)).best.prediction.reason);
    }
  }
  const std::string all = join({types.begin(), types.end()}, ", ");
  if (cluster.gpus.empty()) return "there is no GPU and no host device in this allocation";
  if (reasons.empty()) {
    return cat("plan.gpu_type pins it to \"", job.spec.gpu_type, "\", but the allocation has only ",
               all, "; ", remedy_of_pin(job.spec.gpu_type));
  }
  return join(reasons, ". ");
}

class BestFit : public Policy {
 public:
  std::string name() const override { return "best-fit"; }

  PlacementPlan plan(const Cluster& cluster, const std::vector<RunningJob>& running,
                     const std::vector<QueuedJob>& queue, double) const override {
    std::vector<bool> busy(cluster.gpus.size(), false);
    for (const RunningJob& job : running) {
      for (const GpuIndex gpu : job.gpus) busy.at(static_cast<size_t>(gpu)) = true;
    }
    std::vector<const QueuedJob*> order;
    for (const QueuedJob& job : queue) order.push_back(&job);
    std::stable_sort(order.begin(), order.end(), [](const QueuedJob* a, const QueuedJob* b) {
      if (a->priority != b->priority) return a->priority > b->priority;
      return a->order < b->order;
    });
    Round round{cluster, running, std::vector<bool>(cluster.gpus.size()), std::move(busy), {}};
    for (const RunningJob& job : running) {
      for (const GpuIndex gpu : job.gpus) {
        if (job.name.empty()) round.lost[static_cast<size_t>(gpu)] = true;
      }
    }
    for (const QueuedJob* job : order) place(*job, &round);
    return std::move(round.plan);
  }

 private:
  struct Round {
    const Cluster& cluster;
    const std::vector<RunningJob>& running;
    std::vector<bool> lost;
    std::vector<bool> busy;  // taken, or kept for a job that waits
    PlacementPlan plan;
  };

  static void place(const QueuedJob& job, Round* round) {
    FitTable table(round->cluster, job);
    if (!asks_for_group(job.spec) && place_alone(job, &table, round)) return;
    if (forbids_group(job.spec)) {
      round->plan.refused.push_back({job.name, refusal_text(round->cluster, job, &table)});
    } else {
      place_group(job, &table, round);
    }
  }

  /// On one GPU, now or later; false when none of the cluster can hold the job.
  static bool place_alone(const QueuedJob& job, FitTable* table, Round* round) {
    const Cluster& cluster = round->cluster;
    bool fits_somewhere = false;
    GpuIndex best = -1;
    bool best_avoided = false;
    uint64_t best_left = std::numeric_limits<uint64_t>::max();
    int considered = 0;
    for (size_t i = 0; i < cluster.gpus.size(); ++i) {
      const auto index = static_cast<GpuIndex>(i);
      if (pinned_away(job, cluster.gpus[i])) continue;
      const TypeFit& fit = table->fit(index);
      if (!fit.fits) continue;
      fits_somewhere = true;
      if (round->busy[i]) continue;
      ++considered;
      const bool avoided = avoids(job, index);
      const uint64_t left = fit.best.prediction.usable_bytes - fit.best.prediction.high_bytes;
      // A GPU that failed the job is taken only when nothing else is free; then the least left
      // over.
      if (best < 0 || std::pair(avoided, left) < std::pair(best_avoided, best_left)) {
        best = index;
        best_avoided = avoided;
        best_left = left;
      }
    }
    if (!fits_somewhere) return false;
    if (best < 0) {
      round->plan.waiting.push_back(job.name);
      round->plan.waits_for[job.name] = "a GPU that holds it to come free";
      return true;
    }
    Assignment assignment{job.name, {best}, table->fit(best).best, ""};
    assignment.explanation =
        cat("best fit of ", considered,
            considered == 1 ? " free GPU that fits: " : " free GPUs that fit: ",
            format_bytes(static_cast<double>(best_left)), " left over",
            best_avoided ? "; it failed this job before, nothing else is free" : "");
    start(std::move(assignment), round);
    return true;
  }

  static bool avoids(const QueuedJob& job, GpuIndex gpu) {
    return std::find(job.avoid.begin(), job.avoid.end(), gpu) != job.avoid.end();
  }

  static void start(Assignment assignment, Round* round) {
    for (const GpuIndex gpu : assignment.gpus) round->busy[static_cast<size_t>(gpu)] = true;
    round->plan.start.push_back(std::move(assignment));
  }

  static void place_group(const QueuedJob& job, FitTable* table, Round* round) {
    const Cluster& cluster = round->cluster;
    std::vector<bool> allowed(cluster.gpus.size()), free = allowed, unspoilt = allowed;
    for (size_t i = 0; i < allowed.size(); ++i) {
      allowed[i] = !pinned_away(job, cluster.gpus[i]) && !round->lost[i];
      free[i] = allowed[i] && !round->busy[i];
      unspoilt[i] = free[i] && !avoids(job, static_cast<GpuIndex>(i));
    }
    GroupSearch search(cluster, job);
    std::optional<FoundGroup> found = search.best(unspoilt);
    const bool avoided = !found && free != unspoilt && (found = search.best(free));
    if (found) {
      Assignment assignment{job.name, found->gpus, found->candidate, ""};
      assignment.explanation = group_explanation(cluster, job, *found);
      if (search.spans_nodes()) {
        assignment.explanation +=
            "; no node has as many GPUs, so the sums of every layer cross the network";
      }
      if (avoided)
        assignment.explanation += "; some of them failed this job before, nothing else is free";
      start(std::move(assignment), round);
      return;
    }
    const std::optional<FoundGroup> wanted = free == allowed ? std::nullopt : search.best(allowed);
    if (!wanted) {
      const std::string group = search.refusal(allowed);
      round->plan.refused.push_back(
          {job.name, asks_for_group(job.spec) ? group
                     : group.empty()          ? refusal_text(cluster, job, table)
                                     : cat(refusal_text(cluster, job, table), ". And ", group)});
      return;
    }
    keep_for(job, *wanted, round);
  }

  /// Jobs behind it must not take one by one the GPUs that it waits for together.
  static void keep_for(const QueuedJob& job, const FoundGroup& wanted, Round* round) {
    std::vector<GpuIndex> taken, kept;
    for (const GpuIndex gpu : wanted.gpus) {
      (round->busy[static_cast<size_t>(gpu)] ? taken : kept).push_back(gpu);
      round->busy[static_cast<size_t>(gpu)] = true;
    }
    std::string text = cat(wanted.gpus.size(), " GPUs (", shape_text(wanted.candidate.shape),
                           "): ", gpus_text(round->cluster, taken), " to come free");
    if (!kept.empty()) text += cat("; ", gpus_text(round->cluster, kept), " kept for it");
    round->plan.waiting.push_back(job.name);
    round->plan.waits_for[job.name] = text;
  }

  /// Who has which layers, and what even stages would have cost.
  static std::string stages_explanation(const Cluster& cluster, const QueuedJob& job,
                                        const FoundGroup& found) {
    predictor::PlanShape shape = found.candidate.shape;
    const std::vector<int> layers = model::stage_layers(job.config, shape.layout);
    shape.layout.stage_layers.clear();
    if (shape.layout.pp_size == 1 || layers == model::stage_layers(job.config, shape.layout)) {
      return "";
    }
    std::vector<std::string> stages;
    std::vector<predictor::GroupGpu> gpus;
    for (const GpuIndex index : found.gpus) {
      const Gpu& gpu = cluster.gpus[static_cast<size_t>(index)];
      gpus.push_back({gpu.type, std::max(1, gpu.threads), gpu.node});
    }
    for (int stage = 0; stage < shape.layout.pp_size; ++stage) {
      const auto first = static_cast<size_t>(model::group_rank(shape.layout, {0, stage, 0}));
      stages.push_back(cat(layers[static_cast<size_t>(stage)], " on ",
                           cluster.gpu_name(found.gpus[first]), " ", gpus[first].type.name));
    }
    const predictor::Prediction even =
        predictor::predict(job.config, job.spec, job.data, shape, gpus);
    std::string text = cat("; layers by speed and memory (the last stage has the head, too): ",
                           join(stages, ", "));
    if (even.fits && even.tokens_per_second > 0) {
      text +=
          cat(", ",
              format("%.2f", found.candidate.prediction.tokens_per_second / even.tokens_per_second),
              " times as fast as even stages");
    } else {
      text += "; even stages would not fit";
    }
    return text;
  }

  static std::string group_explanation(const Cluster& cluster, const QueuedJob& job,
                                       const FoundGroup& found) {
    const model::ParallelLayout& layout = found.candidate.shape.layout;
    std::string text = asks_for_group(job.spec) ? "as pinned" : "no GPU holds it alone";
    text += cat(": ", types_text(cluster, found.gpus), " as ", shape_text(found.candidate.shape),
                ", the fastest of ", found.considered, found.considered == 1 ? " plan" : " plans",
                " with ", found.gpus.size(), " GPUs");
    if (layout.pp_size > 1) {
      text += cat("; all stages have ", layout.tp_size == 1 ? "one GPU" : "the same tp size",
                  layout.dp_size > 1 ? " in each replica" : "");
    }
    text += stages_explanation(cluster, job, found);
    const std::string shares = shares_text(found.candidate.shape);
    return shares.empty() ? text : cat(text, "; ", shares, " by speed");
  }
};

}  // namespace

std::unique_ptr<Policy> policy_best_fit() { return std::make_unique<BestFit>(); }

Forecast forecast(const Policy& policy, const Cluster& cluster,
                  const std::vector<QueuedJob>& jobs) {
  Forecast out;
  std::vector<QueuedJob> queue = jobs;
  std::vector<ScheduledJob> running;
  double now = 0;
  while (!queue.empty() || !running.empty()) {
    std::vector<RunningJob> held;
    for (const ScheduledJob& job : running)
      held.push_back({job.assignment.job, job.assignment.gpus});
    const PlacementPlan plan = policy.plan(cluster, held, queue, now);
    const auto leave_queue = [&](const std::string& name) {
      std::erase_if(queue, [&](const QueuedJob& job) { return job.name == name; });
    };
    for (const Refusal& refusal : plan.refused) {
      out.refused.push_back(refusal);
      leave_queue(refusal.job);
    }
    for (const Assignment& assignment : plan.start) {
      double fraction = 1;
      for (const QueuedJob& job : queue) {
        if (job.name == assignment.job) fraction = job.remaining_fraction;
      }
      leave_queue(assignment.job);
      running.push_back(
          {assignment, now, now + fraction * assignment.candidate.prediction.seconds});
    }
    if (running.empty()) break;
    const auto next = std::min_element(running.begin(), running.end(),
                                       [](const auto& a, const auto& b) { return a.end < b.end; });
    now = next->end;
    out.jobs.push_back(*next);
    running.erase(next);
  }
  return out;
}

namespace {

/// What each GPU of an assignment holds, by group rank.
Json workers_json(const Assignment& assignment, const Cluster& cluster) {
  const predictor::PlanShape& shape = assignment.candidate.shape;
  const predictor::Prediction& prediction = assignment.candidate.prediction;
  Json workers = Json::array();
  for (size_t rank = 0; rank < prediction.workers.size() && rank < assignment.gpus.size(); ++rank) {
    const predictor::WorkerNeed& need = prediction.workers[rank];
    const model::WorkerPosition at = model::worker_position(shape.layout, static_cast<int>(rank));
    const GpuIndex gpu = assignment.gpus[rank];
    const auto replica = static_cast<size_t>(at.dp_rank);
    Json worker = Json::object();
    worker.set("gpu", gpu)
        .set("gpu_name", cluster.gpu_name(gpu))
        .set("gpu_type", cluster.gpus[static_cast<size_t>(gpu)].type.name)
        .set("tp_rank", at.tp_rank)
        .set("pp_rank", at.pp_rank)
        .set("dp_rank", at.dp_rank)
        .set("micro_batch_tokens", shape.replica_tokens.empty() ? shape.micro_batch_tokens
                                                                : shape.replica_tokens[replica])
        .set("threads", shape.worker_threads.empty() ? shape.threads : shape.worker_threads[rank])
        .set("planned_bytes", need.planned_bytes)
        .set("predicted_bytes", need.predicted_bytes)
        .set("low_bytes", need.low_bytes)
        .set("high_bytes", need.high_bytes)
        .set("usable_bytes", need.usable_bytes)
        .set("communication_bytes", need.communication_bytes);
    workers.push(std::move(worker));
  }
  return workers;
}

}  // namespace

Json to_json(const Assignment& assignment, const Cluster& cluster) {
  Json gpus = Json::array(), names = Json::array();
  for (const GpuIndex gpu : assignment.gpus) {
    gpus.push(gpu);
    names.push(cluster.gpu_name(gpu));
  }
  const predictor::PlanShape& shape = assignment.candidate.shape;
  const predictor::Prediction& prediction = assignment.candidate.prediction;
  Json shares = Json::array();
  for (const double share : shape.replica_shares) shares.push(share);
  Json parts = Json::object();
  for (const predictor::PredictionPart& part : prediction.parts) parts.set(part.name, part.bytes);
  Json out = Json::object();
  out.set("job", assignment.job)
      .set("gpus", gpus)
      .set("gpu_names", names)
      .set("gpu_type", cluster.gpus.at(static_cast<size_t>(assignment.gpus.at(0))).type.name)
      .set("tp", shape.layout.tp_size)
      .set("pp", shape.layout.pp_size)
      .set("dp", shape.layout.dp_size)
      .set("layout", model::to_json(shape.layout))
      .set("micro_batch_tokens", shape.micro_batch_tokens)
      .set("replica_shares", shares)
      .set("recompute", shape.recompute_blocks ? "block" : "none")
      .set("weights", dtype_name(shape.weight_dtype))
      .set("may_round_inputs", shape.may_round_inputs)
      .set("precision_note", shape.precision_note)
      .set("threads", shape.threads)
      .set("planned_bytes", prediction.planned_bytes)
      .set("predicted_bytes", prediction.predicted_bytes)
      .set("low_bytes", prediction.low_bytes)
      .set("high_bytes", prediction.high_bytes)
      .set("usable_bytes", prediction.usable_bytes)
      .set("moment", prediction.moment)
      .set("parts", parts)
      .set("workers", workers_json(assignment, cluster))
      .set("idle_share", prediction.idle_share)
      .set("communication_share", prediction.communication_share)
      .set("tokens_per_second", prediction.tokens_per_second)
      .set("steps", prediction.steps)
      .set("seconds", prediction.seconds)
      .set("explanation", assignment.explanation);
  return out;
}

Json to_json(const PlacementPlan& plan, const Cluster& cluster) {
  Json start = Json::array(), waiting = Json::array(), refused = Json::array();
  for (const Assignment& assignment : plan.start) start.push(to_json(assignment, cluster));
  for (const std::string& job : plan.waiting) waiting.push(job);
  for (const Refusal& refusal : plan.refused) {
    Json entry = Json::object();
    entry.set("job", refusal.job).set("reason", refusal.reason);
    refused.push(entry);
  }
  Json out = Json::object();
  Json waits_for = Json::object();
  for (const auto& [job, what] : plan.waits_for) waits_for.set(job, what);
  out.set("start", start)
      .set("waiting", waiting)
      .set("waits_for", waits_for)
      .set("refused", refused);
  return out;
}

}  // namespace galley::placement
