// What people see of a run: states, the run's reason and code, the rows of the table.
#include <algorithm>

#include "engine/core/strings.h"
#include "launcher/coordinator.h"

namespace galley::launcher {
namespace {

/// GPUs in group order, neighbours on a node as one range: "n1:gpu0-1 a100-40gb".
struct PlacePart {
  std::string text;  // "n1:gpu0-1"
  std::string type;
};

std::vector<PlacePart> place_parts(const placement::Cluster& cluster,
                                   const std::vector<placement::GpuIndex>& gpus) {
  std::vector<PlacePart> parts;
  for (size_t i = 0; i < gpus.size();) {
    const placement::Gpu& first = cluster.gpus[static_cast<size_t>(gpus[i])];
    int last = first.local_index;
    PlacePart part{cluster.gpu_name(gpus[i]), first.type.name};
    for (++i; i < gpus.size(); ++i) {
      const placement::Gpu& next = cluster.gpus[static_cast<size_t>(gpus[i])];
      const bool follows = next.node == first.node && next.local_index == last + 1;
      if (!follows || next.type.name != first.type.name) break;
      last = next.local_index;
    }
    if (last != first.local_index) part.text += cat("-", last);
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace

std::string_view job_state_name(JobState state) {
  switch (state) {
    case JobState::kWaiting:
      return "waiting";
    case JobState::kRunning:
      return "running";
    case JobState::kFinished:
      return "finished";
    case JobState::kFailed:
      return "failed";
    case JobState::kRefused:
      return "refused";
    case JobState::kSkipped:
      return "skipped";
    case JobState::kStopped:
      break;
  }
  return "stopped";
}

Reason Coordinator::reason() const {
  if (run_reason_) return *run_reason_;
  for (const Job& job : jobs_) {
    // A full disk or a missing permission concerns the site: running again as it is does not help.
    if (job.state == JobState::kFailed && reason_traits(job.reason).fault == Fault::kSite) {
      return job.reason;
    }
  }
  if (any(JobState::kStopped) || any(JobState::kWaiting) || any(JobState::kRunning)) {
    return Reason::kStopped;
  }
  const auto refused = static_cast<size_t>(std::count_if(
      jobs_.begin(), jobs_.end(), [](const Job& job) { return job.state == JobState::kRefused; }));
  if (refused > 0 && refused == jobs_.size() && bad_jobs_.empty()) return Reason::kDoesNotFit;
  if (refused > 0 || any(JobState::kFailed) || !bad_jobs_.empty()) return Reason::kJobFailed;
  return Reason::kOk;
}

int Coordinator::exit_code() const { return reason_traits(reason()).exit_code; }

std::string Coordinator::reason_text() const {
  switch (reason()) {
    case Reason::kOk:
      return "all jobs are complete";
    case Reason::kStopped:
      return cat("stopped early (", stop_why_, "); the same command continues");
    case Reason::kDoesNotFit:
      return "no job fits these resources";
    default:
      break;
  }
  if (run_reason_) return stop_why_;
  std::vector<std::string> parts;
  for (const Job& job : jobs_) {
    if (job.state != JobState::kFailed && job.state != JobState::kRefused) continue;
    parts.push_back(cat(job.given.prepared.spec.name, ": ", job.reason_text));
  }
  for (const auto& [name, why] : bad_jobs_) parts.push_back(cat(name, ": ", why));
  return join(parts, "; ");
}

double Coordinator::seconds_left(const Job& job, double now) const {
  const int64_t steps = job.progress.step - job.first_step;
  if (job.state != JobState::kRunning || job.first_step_at == 0 || steps <= 0) return -1;
  const double per_step = (now - job.first_step_at) / static_cast<double>(steps);
  return per_step * static_cast<double>(job.progress.total_steps - job.progress.step);
}

JobRow Coordinator::row_of(const Job& job, double now) const {
  JobRow row;
  row.name = job.given.prepared.spec.name;
  row.state = job.state;
  row.progress = job.progress;
  row.seconds_left = seconds_left(job, now);
  row.totals = job.given.totals;
  row.reason = job.reason_text;
  row.place = job.given.place;
  row.predicted_bytes = job.given.predicted_bytes;
  row.low_bytes = job.given.low_bytes;
  row.high_bytes = job.given.high_bytes;
  const std::vector<placement::GpuIndex>& gpus = job.assignment.gpus;
  const predictor::Candidate& candidate = job.assignment.candidate;
  if (!gpus.empty()) {
    row.place = place_text(world_.cluster, gpus, candidate.shape.layout);
    row.predicted_bytes = candidate.prediction.predicted_bytes;
    row.low_bytes = candidate.prediction.low_bytes;
    row.high_bytes = candidate.prediction.high_bytes;
  }
  row.attempt_peak_bytes = gpus.empty() ? row.totals.peak_bytes : 0;
  for (size_t worker = 0; worker < gpus.size(); ++worker) {
    const predictor::WorkerNeed need = need_of(candidate.prediction, static_cast<int>(worker));
    if (need.predicted_bytes == row.predicted_bytes) {
      row.attempt_peak_bytes =
          std::max(row.attempt_peak_bytes, job.attempt.members()[worker].peak_bytes);
    }
    if (gpus.size() == 1) continue;
    row.workers.push_back({place_text(world_.cluster, {gpus[worker]}, {}), need.predicted_bytes,
                           need.low_bytes, need.high_bytes,
                           job.attempt.members()[worker].peak_bytes});
  }
  if (job.state == JobState::kRunning) {
    row.totals.gpu_seconds += (now - job.attempt.started_at()) * static_cast<double>(gpus.size());
  }
  if (job.state == JobState::kFinished) row.adapter = job.given.directory + "/adapter";
  return row;
}

std::vector<JobRow> Coordinator::table(double now) const {
  std::vector<JobRow> rows;
  for (const Job& job : jobs_) rows.push_back(row_of(job, now));
  for (const auto& [name, why] : bad_jobs_) {
    JobRow row;
    row.name = name;
    row.state = JobState::kSkipped;
    row.reason = why;
    rows.push_back(std::move(row));
  }
  return rows;
}

Json Coordinator::plan_json() const {
  return Json::object()
      .set("policy", policy_->name())
      .set("cluster", placement::to_json(world_.cluster))
      .set("plan", first_plan_.value_or(Json::object()));
}

std::string place_text(const placement::Cluster& cluster,
                       const std::vector<placement::GpuIndex>& gpus,
                       const model::ParallelLayout& layout) {
  const std::vector<PlacePart> parts = place_parts(cluster, gpus);
  const bool alike = std::all_of(parts.begin(), parts.end(), [&](const PlacePart& part) {
    return part.type == parts.front().type;
  });
  std::vector<std::string> texts;
  for (const PlacePart& part : parts) {
    texts.push_back(alike ? part.text : cat(part.text, " ", part.type));
  }
  std::string text = join(texts, " + ");
  if (alike && !parts.empty()) text += cat(" ", parts.front().type);
  if (gpus.size() < 2) return text;
  model::ParallelLayout shape = layout;
  shape.stage_layers.clear();
  return cat(text, " (", model::to_text(shape), ")");
}

}  // namespace galley::launcher
