#include "placement/planner.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "engine/core/strings.h"

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
    const Key key(gpu.type.name, gpu.type.memory_bytes, gpu.type.relative_speed, gpu.threads);
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
  using Key = std::tuple<std::string, uint64_t, double, int>;
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
    PlacementPlan plan;
    for (const QueuedJob* job : order) place(cluster, *job, &busy, &plan);
    return plan;
  }

 private:
  static void place(const Cluster& cluster, const QueuedJob& job, std::vector<bool>* busy,
                    PlacementPlan* plan) {
    FitTable table(cluster, job);
    bool fits_somewhere = false;
    GpuIndex best = -1;
    bool best_avoided = false;
    uint64_t best_left = std::numeric_limits<uint64_t>::max();
    int considered = 0;
    for (size_t i = 0; i < cluster.gpus.size(); ++i) {
      const auto index = static_cast<GpuIndex>(i);
      if (pinned_away(job, cluster.gpus[i])) continue;
      const TypeFit& fit = table.fit(index);
      if (!fit.fits) continue;
      fits_somewhere = true;
      if ((*busy)[i]) continue;
      ++considered;
      const bool avoided = std::find(job.avoid.begin(), job.avoid.end(), index) != job.avoid.end();
      const uint64_t left = fit.best.prediction.usable_bytes - fit.best.prediction.high_bytes;
      // A GPU that failed the job is taken only when nothing else is free; then the least left
      // over.
      if (best < 0 || std::pair(avoided, left) < std::pair(best_avoided, best_left)) {
        best = index;
        best_avoided = avoided;
        best_left = left;
      }
    }
    if (!fits_somewhere) {
      plan->refused.push_back({job.name, refusal_text(cluster, job, &table)});
    } else if (best < 0) {
      plan->waiting.push_back(job.name);
    } else {
      (*busy)[static_cast<size_t>(best)] = true;
      Assignment assignment{job.name, {best}, table.fit(best).best, ""};
      assignment.explanation =
          cat("best fit of ", considered,
              considered == 1 ? " free GPU that fits: " : " free GPUs that fit: ",
              format_bytes(static_cast<double>(best_left)), " left over",
              best_avoided ? "; it failed this job before, nothing else is free" : "");
      plan->start.push_back(std::move(assignment));
    }
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

Json to_json(const Assignment& assignment, const Cluster& cluster) {
  Json gpus = Json::array(), names = Json::array();
  for (const GpuIndex gpu : assignment.gpus) {
    gpus.push(gpu);
    names.push(cluster.gpu_name(gpu));
  }
  const predictor::PlanShape& shape = assignment.candidate.shape;
  const predictor::Prediction& prediction = assignment.candidate.prediction;
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
      .set("micro_batch_tokens", shape.micro_batch_tokens)
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
  out.set("start", start).set("waiting", waiting).set("refused", refused);
  return out;
}

}  // namespace galley::placement
