#include "launcher/coordinator.h"

#include <algorithm>
#include <utility>

#include "engine/core/strings.h"
#include "launcher/protocol.h"
#include "launcher/signals.h"

namespace galley::launcher {
namespace {

constexpr double kStopReserveSeconds = 5;  // to end the run after the last checkpoint
constexpr double kLeastRunSeconds = 5;  // a job is not started for less before the wall time's end
constexpr int kDeathsOfGpu = 2;         // of one job on one GPU, before it looks for another

Json record_of(std::string_view what) { return Json::object().set("record", Json(what)); }

}  // namespace

Coordinator::Coordinator(CoordinatorSettings settings, RunWorld world,
                         std::vector<CoordinatorJob> jobs,
                         std::vector<std::pair<std::string, std::string>> bad_jobs,
                         std::unique_ptr<placement::Policy> policy, double now)
    : settings_(settings),
      world_(std::move(world)),
      bad_jobs_(std::move(bad_jobs)),
      policy_(std::move(policy)),
      cores_(world_.cores),
      created_at_(now) {
  for (const int rank : world_.agents) last_sign_[rank] = now;
  for (const std::string& warning : world_.warnings) event(LogLevel::kWarning, "", warning);
  for (CoordinatorJob& given : jobs) {
    Job& job = jobs_.emplace_back();
    job.progress = given.last;
    job.best_step = std::max<int64_t>(given.checkpoint_step, 0);
    job.progress.step = job.best_step;
    job.given = std::move(given);
    if (job.given.finished) {
      job.state = JobState::kFinished;
      job.progress.step = job.given.last.step;
      event(LogLevel::kInfo, job.given.prepared.spec.name, "is complete since an earlier run");
    }
  }
  for (const auto& [name, reason] : bad_jobs_) {
    event(LogLevel::kError, name, cat("skipped: ", reason));
    journal(record_of("job-skipped").set("job", name).set("text", reason));
  }
  schedule(now);
}

// ------------------------------------------------------------------ planning

std::vector<placement::QueuedJob> Coordinator::queue() const {
  std::vector<placement::QueuedJob> queue;
  for (size_t i = 0; i < jobs_.size(); ++i) {
    const Job& job = jobs_[i];
    if (job.state != JobState::kWaiting) continue;
    const PreparedJob& prepared = job.given.prepared;
    placement::QueuedJob queued;
    queued.name = prepared.spec.name;
    queued.order = static_cast<int64_t>(i);
    queued.priority = prepared.spec.priority;
    queued.submitted_at = created_at_;
    queued.remaining_fraction = remaining_fraction(job);
    queued.config = prepared.config;
    queued.spec = prepared.spec;
    queued.data = prepared.data;
    queued.avoid = job.avoid;
    queue.push_back(std::move(queued));
  }
  return queue;
}

double Coordinator::remaining_fraction(const Job& job) const {
  const auto total = static_cast<double>(job.progress.total_steps);
  if (total <= 0) return 1;
  return std::max(0.0, 1 - static_cast<double>(job.progress.step) / total);
}

std::vector<placement::RunningJob> Coordinator::running() const {
  std::vector<placement::RunningJob> running;
  for (const Job& job : jobs_) {
    if (job.state != JobState::kRunning) continue;
    // Also while a group ends: its GPUs are free when all of its workers have been reaped.
    running.push_back({job.given.prepared.spec.name, job.assignment.gpus});
  }
  placement::RunningJob gone;  // GPUs of lost agents stay taken for ever
  for (size_t gpu = 0; gpu < world_.gpu_rank.size(); ++gpu) {
    if (lost_.contains(world_.gpu_rank[gpu])) gone.gpus.push_back(static_cast<int>(gpu));
  }
  if (!gone.gpus.empty()) running.push_back(std::move(gone));
  return running;
}

void Coordinator::schedule(double now) {
  if (stopping() || !any(JobState::kWaiting)) return;
  if (settings_.end_at && *settings_.end_at - stop_margin() - now < kLeastRunSeconds) return;
  const placement::PlacementPlan plan = policy_->plan(world_.cluster, running(), queue(), now);
  if (!first_plan_) first_plan_ = placement::to_json(plan, world_.cluster);
  for (Job& job : jobs_) {
    const std::string& name = job.given.prepared.spec.name;
    if (job.state != JobState::kWaiting) continue;
    for (const placement::Refusal& refusal : plan.refused) {
      if (refusal.job == name) refuse(job, refusal.reason);
    }
  }
  for (const placement::Assignment& assignment : plan.start) {
    for (Job& job : jobs_) {
      if (job.given.prepared.spec.name == assignment.job && job.state == JobState::kWaiting) {
        start(job, assignment, now);
        break;
      }
    }
  }
  for (Job& job : jobs_) {
    if (job.state != JobState::kWaiting || job.started_once) continue;
    job.started_once = true;
    event(LogLevel::kInfo, job.given.prepared.spec.name, "waits for a GPU to come free");
  }
}

void Coordinator::refuse(Job& job, const std::string& reason) {
  const std::string& name = job.given.prepared.spec.name;
  job.state = JobState::kRefused;
  job.reason = Reason::kDoesNotFit;
  job.reason_text = reason;
  journal(record_of("job-refused").set("job", name).set("text", reason));
  event(LogLevel::kError, name, cat("refused: ", reason));
}

void Coordinator::retry_or_fail(Job& job, const Attempt::Failure& failure) {
  const std::string& name = job.given.prepared.spec.name;
  const std::string who = worker_text(job, failure.worker);
  const bool one_is_to_blame = failure.worker >= 0 && failure.blame == Blame::kWorker;
  if (stopping()) {
    job.state = JobState::kStopped;
    event(LogLevel::kWarning, name, cat(who, " ended while the run stops: ", failure.text));
    return;
  }
  if (reason_traits(failure.reason).retry == Retry::kNo) {
    fail(job, failure.reason, failure.text);
    return;
  }
  ++job.restarts_in_a_row;
  if (job.restarts_in_a_row > settings_.max_restarts) {
    fail(job, failure.reason,
         cat(failure.text, "; given up after ", settings_.max_restarts,
             " restarts without a new step"));
    return;
  }
  ++job.given.totals.restarts;
  Json record = record_of("job-restarts")
                    .set("job", name)
                    .set("attempt", job.given.totals.attempts)
                    .set("reason", std::string(reason_traits(failure.reason).name))
                    .set("text", failure.text)
                    .set("restarts", job.given.totals.restarts)
                    .set("gpu_seconds", job.given.totals.gpu_seconds)
                    .set("peak_bytes", Json(job.given.totals.peak_bytes))
                    .set("tokens", job.given.totals.tokens);
  if (one_is_to_blame) {
    const placement::GpuIndex gpu = job.attempt.member(failure.worker).gpu;
    record.set("worker", failure.worker).set("gpu", world_.cluster.gpu_name(gpu));
    if (++job.deaths[gpu] >= kDeathsOfGpu &&
        std::find(job.avoid.begin(), job.avoid.end(), gpu) == job.avoid.end()) {
      job.avoid.push_back(gpu);
    }
  }
  job.state = JobState::kWaiting;
  journal(std::move(record));
  const int64_t from = std::max<int64_t>(job.given.checkpoint_step, 0);
  event(LogLevel::kWarning, name,
        cat(who, " ", failure.text, "; restarts from ",
            from > 0 ? cat("step ", from) : std::string("the start")));
}

void Coordinator::fail(Job& job, Reason reason, const std::string& text) {
  job.state = JobState::kFailed;
  job.reason = reason;
  job.reason_text = text;
  journal(record_of("job-failed")
              .set("job", job.given.prepared.spec.name)
              .set("attempt", job.given.totals.attempts)
              .set("reason", std::string(reason_traits(reason).name))
              .set("text", text)
              .set("gpu_seconds", job.given.totals.gpu_seconds)
              .set("peak_bytes", Json(job.given.totals.peak_bytes))
              .set("tokens", job.given.totals.tokens));
  event(LogLevel::kError, job.given.prepared.spec.name, cat("failed: ", text));
}

void Coordinator::handle(int from, const Json& message, double now) {
  if (lost_.contains(from)) return;
  if (last_sign_.contains(from)) last_sign_[from] = now;
  if (message_kind(message) == "signalled") {
    const auto signal = static_cast<int>(message.get_int("signal"));
    request_stop(from, signal, stop_cause(signal), now);
    return;
  }
  if (!message.contains("job")) return;
  Job* job = find_attempt(from, message);
  if (job == nullptr) return;  // late news of an older attempt
  on_news(*job, static_cast<int>(message.get_int("worker")), message, now);
}

// ------------------------------------------------------------------ time and ends

void Coordinator::tick(double now) {
  for (const auto& [rank, sign] : last_sign_) {
    if (!lost_.contains(rank) && now - sign > settings_.agent_silent_s) lose_agent(rank, now);
  }
  check_wall_time(now);
  for (Job& job : jobs_) {
    if (job.state == JobState::kRunning) check_group(job, now);
  }
  if (stop_level_ == 2 && now - stopped_at_ > settings_.kill_after_s) {
    for (Job& job : jobs_) {
      if (job.state == JobState::kRunning) job.state = JobState::kStopped;
    }
  }
}

void Coordinator::lose_agent(int rank, double now) {
  lost_.insert(rank);
  std::string place = "its node";
  for (size_t gpu = 0; gpu < world_.gpu_rank.size(); ++gpu) {
    if (world_.gpu_rank[gpu] == rank) place = world_.gpu_host[gpu];
  }
  const std::string text = cat("agent of rank ", rank, " on ", place, " is lost: silent for ",
                               format_duration(settings_.agent_silent_s));
  journal(record_of("agent-lost").set("rank", rank).set("text", text));
  event(LogLevel::kError, "", text);
  const bool nobody_left = lost_.size() == last_sign_.size();
  if (settings_.lost_agents == LostAgents::kEndTheRun || nobody_left) stop_gracefully(text, now);
  for (Job& job : jobs_) {
    if (job.state != JobState::kRunning) continue;
    if (job.attempt.lose_agent(rank, now)) settle(job, now);
  }
  schedule(now);
}

double Coordinator::stop_margin() const {
  double longest_step = 0;
  for (const Job& job : jobs_) {
    const trainer::JobProgress& last = job.progress;
    if (job.state != JobState::kRunning || last.tokens_per_second <= 0) continue;
    longest_step =
        std::max(longest_step, static_cast<double>(last.step_tokens) / last.tokens_per_second);
  }
  constexpr double kSafety = 3;
  const double margin = kStopReserveSeconds + kSafety * (longest_checkpoint_s_ + longest_step);
  // Never more than half of the time there was: a short allocation must not end before it begins.
  return settings_.end_at ? std::min(margin, 0.5 * (*settings_.end_at - created_at_)) : margin;
}

void Coordinator::check_wall_time(double now) {
  if (!settings_.end_at || stopping() || done()) return;
  const double left = *settings_.end_at - now;
  if (left > stop_margin()) return;
  stop_gracefully(cat("the wall time ends in ", format_duration(std::max(left, 0.0))), now);
}

void Coordinator::request_stop(int rank, int signal, const std::string& why, double now) {
  const int number = ++stop_requests_[{rank, signal}];
  if (number == 1 && stop_level_ == 0) stop_gracefully(why, now);
  if (number > 1 && stop_level_ < 2) stop_at_once(cat(why, " again"), now);
}

void Coordinator::stop_gracefully(const std::string& why, double now) {
  if (stop_level_ >= 1 || done()) return;
  stop_level_ = 1;
  stopped_at_ = now;
  stop_why_ = why;
  journal(record_of("stopping").set("text", why));
  event(LogLevel::kWarning, "",
        cat("stopping (", why, "): every job checkpoints at its next step"));
  for (const Job& job : jobs_) {  // the leader tells its group
    if (job.state != JobState::kRunning) continue;
    send_to_worker(job, 0, make_message("job-command").set("command", "stop"));
  }
}

void Coordinator::stop_at_once(const std::string& why, double now) {
  if (done()) return;
  stop_level_ = 2;
  stopped_at_ = now;
  if (stop_why_.empty()) stop_why_ = why;
  event(LogLevel::kWarning, "", cat("stopping at once (", why, "); the last checkpoints stand"));
  for (const Job& job : jobs_) {
    if (job.state == JobState::kRunning) end_workers(job);
  }
}

void Coordinator::fail_run(Reason reason, const std::string& why, double now) {
  if (run_reason_) return;
  run_reason_ = reason;
  stop_why_ = why;
  event(LogLevel::kError, "", why);
  stop_at_once(why, now);
}

bool Coordinator::any(JobState state) const {
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [&](const Job& job) { return job.state == state; });
}

bool Coordinator::done() const {
  if (any(JobState::kRunning)) return false;
  return stopping() || !any(JobState::kWaiting);
}

std::vector<Output> Coordinator::take_outputs() { return std::exchange(outputs_, {}); }

void Coordinator::journal(Json record) {
  Output& output = outputs_.emplace_back();
  output.kind = Output::Kind::kJournal;
  output.json = std::move(record);
}

void Coordinator::send(int to, Json message) {
  Output& output = outputs_.emplace_back();
  output.kind = Output::Kind::kSend;
  output.to = to;
  output.json = std::move(message);
}

void Coordinator::event(LogLevel level, const std::string& job, const std::string& text) {
  Output& output = outputs_.emplace_back();
  output.kind = Output::Kind::kEvent;
  output.level = level;
  output.job = job;
  output.text = text;
}

}  // namespace galley::launcher
