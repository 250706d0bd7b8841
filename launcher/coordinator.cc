#include "launcher/coordinator.h"

#include <algorithm>
#include <utility>

#include "engine/core/strings.h"
#include "launcher/protocol.h"
#include "launcher/signals.h"

namespace galley::launcher {
namespace {

constexpr double kStartSeconds =
    60;  // a worker's program, libraries and weights may take this long
constexpr double kStopReserveSeconds = 5;  // to end the run after the last checkpoint
constexpr double kLeastRunSeconds = 5;  // a job is not started for less before the wall time's end
constexpr int kDeathsOfGpu = 2;         // of one job on one GPU, before it looks for another

Json record_of(std::string_view what) { return Json::object().set("record", Json(what)); }

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

std::vector<placement::RunningJob> Coordinator::running() const {
  std::vector<placement::RunningJob> running;
  for (const Job& job : jobs_) {
    if (job.state != JobState::kRunning) continue;
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

void Coordinator::start(Job& job, const placement::Assignment& assignment, double now) {
  const std::string& name = job.given.prepared.spec.name;
  const placement::GpuIndex gpu = assignment.gpus.front();
  job.state = JobState::kRunning;
  job.started_once = true;
  job.assignment = assignment;
  job.rank = world_.gpu_rank[static_cast<size_t>(gpu)];
  job.cpus =
      cores_.take(world_.gpu_host[static_cast<size_t>(gpu)], assignment.candidate.shape.threads);
  job.started_at = now;
  job.first_step_at = 0;
  ++job.given.totals.attempts;
  journal(record_of("job-assigned")
              .set("job", name)
              .set("attempt", job.given.totals.attempts)
              .set("rank", job.rank)
              .set("placement", placement::to_json(assignment, world_.cluster)));
  send(job.rank, make_message("assign")
                     .set("job", name)
                     .set("attempt", job.given.totals.attempts)
                     .set("place", world_.cluster.gpu_name(gpu))
                     .set("start_s", kStartSeconds)
                     .set("deadline_s", progress_deadline(assignment))
                     .set("deadline_factor", settings_.deadline_factor)
                     .set("assignment", trainer::to_json(train_assignment(job))));
  event(
      LogLevel::kInfo, name,
      cat("starts on ", world_.cluster.gpu_name(gpu), " ",
          world_.cluster.gpus[static_cast<size_t>(gpu)].type.name, " (needs ",
          format_bytes(static_cast<double>(assignment.candidate.prediction.predicted_bytes)), ")"));
}

trainer::TrainAssignment Coordinator::train_assignment(const Job& job) const {
  const predictor::Candidate& candidate = job.assignment.candidate;
  trainer::TrainAssignment assignment;
  assignment.spec = job.given.prepared.spec;
  assignment.job_directory = job.given.directory;
  assignment.token_file = job.given.prepared.token_file;
  assignment.micro_batch_tokens = candidate.shape.micro_batch_tokens;
  assignment.recompute_blocks = candidate.shape.recompute_blocks;
  assignment.weight_dtype = candidate.shape.weight_dtype;
  assignment.may_round_inputs = candidate.shape.may_round_inputs;
  assignment.precision_note = candidate.shape.precision_note;
  assignment.capacity_bytes = candidate.prediction.usable_bytes;
  assignment.threads = candidate.shape.threads;
  assignment.cpus = job.cpus;
  assignment.checkpoint_every_s = settings_.checkpoint_every_s;
  assignment.keep_checkpoints = settings_.keep_checkpoints;
  assignment.planned_bytes = candidate.prediction.planned_bytes;
  return assignment;
}

double Coordinator::progress_deadline(const placement::Assignment& assignment) const {
  // A micro batch is the longest stretch without a sign of progress.
  const double speed = assignment.candidate.prediction.tokens_per_second;
  const double tokens = static_cast<double>(assignment.candidate.shape.micro_batch_tokens);
  const double longest = speed > 0 ? tokens / speed : 0;
  return std::max(settings_.least_deadline_s, settings_.deadline_factor * longest);
}

// ------------------------------------------------------------------ news of agents

Coordinator::Job* Coordinator::find_attempt(int from, const Json& message) {
  for (Job& job : jobs_) {
    if (job.given.prepared.spec.name != message.get_string("job")) continue;
    const bool current = job.state == JobState::kRunning && job.rank == from &&
                         job.given.totals.attempts == message.get_int("attempt");
    return current ? &job : nullptr;
  }
  return nullptr;
}

void Coordinator::handle(int from, const Json& message, double now) {
  if (lost_.contains(from)) return;
  if (last_sign_.contains(from)) last_sign_[from] = now;
  const std::string& kind = message_kind(message);
  if (kind == "signalled") {
    const auto signal = static_cast<int>(message.get_int("signal"));
    request_stop(from, signal, stop_cause(signal), now);
    return;
  }
  if (!message.contains("job")) return;
  Job* job = find_attempt(from, message);
  if (job == nullptr) return;  // late news of an older attempt
  if (kind == "job-started") on_started(*job, message, now);
  if (kind == "job-progress") on_progress(*job, message, now);
  if (kind == "job-checkpointed") on_checkpointed(*job, message);
  if (kind == "job-warning") {
    event(LogLevel::kWarning, job->given.prepared.spec.name, message.get_string("text"));
  }
  if (kind == "job-ended") on_ended(*job, message, now);
  const auto peak = static_cast<uint64_t>(message.get_int("peak_bytes"));
  job->given.totals.peak_bytes = std::max(job->given.totals.peak_bytes, peak);
}

void Coordinator::on_started(Job& job, const Json& message, double now) {
  const int64_t step = message.get_int("step");
  const std::string note = message.get_string("note");
  job.progress.step = step;
  job.progress.total_steps = message.get_int("total_steps");
  job.first_step = step;
  job.first_step_at = now;
  std::string text = step == 0
                         ? cat("running, ", job.progress.total_steps, " steps")
                         : cat("running again from step ", step, " of ", job.progress.total_steps);
  if (job.best_step > step) text += cat(" (lost ", job.best_step - step, " steps)");
  if (!note.empty()) text += cat("; ", note);
  event(LogLevel::kInfo, job.given.prepared.spec.name, text);
}

void Coordinator::on_progress(Job& job, const Json& message, double now) {
  job.progress = progress_from_json(message.at("progress"));
  if (job.first_step_at == 0) {
    job.first_step_at = now;
    job.first_step = job.progress.step;
  }
  job.given.totals.tokens += message.get_int("new_tokens");
  if (job.progress.step > job.best_step) {
    job.best_step = job.progress.step;
    job.restarts_in_a_row = 0;
  }
}

void Coordinator::on_checkpointed(Job& job, const Json& message) {
  const double seconds = message.get_double("seconds");
  const int64_t step = message.get_int("step");
  job.given.checkpoint_step = std::max(job.given.checkpoint_step, step);
  job.progress.checkpoint_step = step;
  longest_checkpoint_s_ = std::max(longest_checkpoint_s_, seconds);
  journal(record_of("job-checkpointed")
              .set("job", job.given.prepared.spec.name)
              .set("attempt", job.given.totals.attempts)
              .set("step", step)
              .set("seconds", seconds));
}

void Coordinator::close_attempt(Job& job, double now) {
  job.given.totals.gpu_seconds +=
      (now - job.started_at) * static_cast<double>(job.assignment.gpus.size());
  cores_.give_back(world_.gpu_host[static_cast<size_t>(job.assignment.gpus.front())], job.cpus);
  job.cpus.clear();
}

void Coordinator::on_ended(Job& job, const Json& message, double now) {
  job.given.totals.peak_bytes =
      std::max(job.given.totals.peak_bytes, static_cast<uint64_t>(message.get_int("peak_bytes")));
  close_attempt(job, now);
  const std::string outcome = message.get_string("outcome");
  if (const Json* progress = message.find("progress"); progress != nullptr) {
    job.progress = progress_from_json(*progress);
  }
  if (outcome == "finished") {
    finish(job, message);
  } else if (outcome == "stopped") {
    job.state = stopping() ? JobState::kStopped : JobState::kWaiting;
    journal(record_of("job-stopped")
                .set("job", job.given.prepared.spec.name)
                .set("attempt", job.given.totals.attempts)
                .set("step", job.progress.step)
                .set("gpu_seconds", job.given.totals.gpu_seconds)
                .set("peak_bytes", Json(job.given.totals.peak_bytes))
                .set("tokens", job.given.totals.tokens));
    event(LogLevel::kInfo, job.given.prepared.spec.name,
          cat("stopped at step ", job.progress.step, "; the checkpoint is written"));
  } else {
    retry_or_fail(job, reason_from_name(message.get_string("reason", "internal")),
                  message.get_string("text"));
  }
  schedule(now);
}

void Coordinator::finish(Job& job, const Json& message) {
  const std::string& name = job.given.prepared.spec.name;
  job.state = JobState::kFinished;
  journal(record_of("job-finished")
              .set("job", name)
              .set("attempt", job.given.totals.attempts)
              .set("adapter", message.get_string("adapter"))
              .set("progress", to_json(job.progress))
              .set("restarts", job.given.totals.restarts)
              .set("gpu_seconds", job.given.totals.gpu_seconds)
              .set("planned_bytes", message.get_int("planned_bytes"))
              .set("allocated_bytes", message.get_int("allocated_bytes"))
              .set("predicted_bytes", Json(job.assignment.candidate.prediction.predicted_bytes))
              .set("peak_bytes", Json(job.given.totals.peak_bytes))
              .set("tokens", job.given.totals.tokens));
  event(LogLevel::kInfo, name,
        cat("finished: ", job.progress.step, " steps, loss ", format("%.4f", job.progress.loss)));
}

void Coordinator::retry_or_fail(Job& job, Reason reason, const std::string& text) {
  const std::string& name = job.given.prepared.spec.name;
  const placement::GpuIndex gpu = job.assignment.gpus.front();
  const std::string place = world_.cluster.gpu_name(gpu);
  if (stopping()) {
    job.state = JobState::kStopped;
    event(LogLevel::kWarning, name, cat("ended on ", place, " while the run stops: ", text));
    return;
  }
  if (reason_traits(reason).retry == Retry::kNo) {
    fail(job, reason, text);
    return;
  }
  ++job.restarts_in_a_row;
  if (job.restarts_in_a_row > settings_.max_restarts) {
    fail(job, reason,
         cat(text, "; given up after ", settings_.max_restarts, " restarts without a new step"));
    return;
  }
  ++job.given.totals.restarts;
  if (++job.deaths[gpu] >= kDeathsOfGpu &&
      std::find(job.avoid.begin(), job.avoid.end(), gpu) == job.avoid.end()) {
    job.avoid.push_back(gpu);
  }
  job.state = JobState::kWaiting;
  journal(record_of("job-restarts")
              .set("job", name)
              .set("attempt", job.given.totals.attempts)
              .set("reason", std::string(reason_traits(reason).name))
              .set("text", text)
              .set("restarts", job.given.totals.restarts)
              .set("gpu_seconds", job.given.totals.gpu_seconds)
              .set("peak_bytes", Json(job.given.totals.peak_bytes))
              .set("tokens", job.given.totals.tokens));
  const int64_t from = std::max<int64_t>(job.given.checkpoint_step, 0);
  event(LogLevel::kWarning, name,
        cat("its worker on ", place, " ", text, "; restarts from ",
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

// ------------------------------------------------------------------ time and ends

void Coordinator::tick(double now) {
  for (const auto& [rank, sign] : last_sign_) {
    if (!lost_.contains(rank) && now - sign > settings_.agent_silent_s) lose_agent(rank, now);
  }
  check_wall_time(now);
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
    if (job.state != JobState::kRunning || job.rank != rank) continue;
    close_attempt(job, now);
    retry_or_fail(job, Reason::kAgentLost, "is gone with its agent");
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
  for (const Job& job : jobs_) {
    if (job.state != JobState::kRunning || lost_.contains(job.rank)) continue;
    send(job.rank, make_message("job-command")
                       .set("job", job.given.prepared.spec.name)
                       .set("attempt", job.given.totals.attempts)
                       .set("command", "stop"));
  }
}

void Coordinator::stop_at_once(const std::string& why, double now) {
  if (done()) return;
  stop_level_ = 2;
  stopped_at_ = now;
  if (stop_why_.empty()) stop_why_ = why;
  event(LogLevel::kWarning, "", cat("stopping at once (", why, "); the last checkpoints stand"));
  for (const Job& job : jobs_) {
    if (job.state != JobState::kRunning || lost_.contains(job.rank)) continue;
    send(job.rank, make_message("job-end")
                       .set("job", job.given.prepared.spec.name)
                       .set("attempt", job.given.totals.attempts));
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

// ------------------------------------------------------------------ looking

double Coordinator::remaining_fraction(const Job& job) const {
  const auto total = static_cast<double>(job.progress.total_steps);
  if (total <= 0) return 1;
  return std::max(0.0, 1 - static_cast<double>(job.progress.step) / total);
}

double Coordinator::seconds_left(const Job& job, double now) const {
  const int64_t steps = job.progress.step - job.first_step;
  if (job.state != JobState::kRunning || job.first_step_at == 0 || steps <= 0) return -1;
  const double per_step = (now - job.first_step_at) / static_cast<double>(steps);
  return per_step * static_cast<double>(job.progress.total_steps - job.progress.step);
}

std::vector<JobRow> Coordinator::table(double now) const {
  std::vector<JobRow> rows;
  for (const Job& job : jobs_) {
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
    if (!job.assignment.gpus.empty()) {
      const placement::GpuIndex gpu = job.assignment.gpus.front();
      const predictor::Prediction& prediction = job.assignment.candidate.prediction;
      row.place = cat(world_.cluster.gpu_name(gpu), " ",
                      world_.cluster.gpus[static_cast<size_t>(gpu)].type.name);
      row.predicted_bytes = prediction.predicted_bytes;
      row.low_bytes = prediction.low_bytes;
      row.high_bytes = prediction.high_bytes;
    }
    if (job.state == JobState::kRunning) {
      row.totals.gpu_seconds +=
          (now - job.started_at) * static_cast<double>(job.assignment.gpus.size());
    }
    if (job.state == JobState::kFinished) row.adapter = job.given.directory + "/adapter";
    rows.push_back(std::move(row));
  }
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
