// The coordinator and the workers of its jobs: how a group starts, what its workers say, how it
// ends.
#include <algorithm>

#include "engine/core/hash.h"
#include "engine/core/strings.h"
#include "launcher/coordinator.h"
#include "launcher/protocol.h"

namespace galley::launcher {
namespace {

// From a worker's start to its first sign of progress: its program, libraries, the first weights.
constexpr double kStartSeconds = 60;
constexpr double kLateSeconds = 30;  // others wait so long for a worker before people are told

Json record_of(std::string_view what) { return Json::object().set("record", Json(what)); }

}  // namespace

predictor::WorkerNeed need_of(const predictor::Prediction& prediction, int worker) {
  const auto index = static_cast<size_t>(worker);
  if (index < prediction.workers.size()) return prediction.workers[index];
  predictor::WorkerNeed need;
  need.planned_bytes = prediction.planned_bytes;
  need.predicted_bytes = prediction.predicted_bytes;
  need.low_bytes = prediction.low_bytes;
  need.high_bytes = prediction.high_bytes;
  need.usable_bytes = prediction.usable_bytes;
  return need;
}

// ------------------------------------------------------------------ start

void Coordinator::start(Job& job, const placement::Assignment& assignment, double now) {
  const std::string& name = job.given.prepared.spec.name;
  const predictor::PlanShape& shape = assignment.candidate.shape;
  job.state = JobState::kRunning;
  job.started_once = true;
  job.lateness_told = false;
  job.assignment = assignment;
  job.first_step_at = 0;
  ++job.given.totals.attempts;
  std::vector<Member> members;
  Json ranks = Json::array();
  for (size_t worker = 0; worker < assignment.gpus.size(); ++worker) {
    Member& member = members.emplace_back();
    member.gpu = assignment.gpus[worker];
    member.rank = world_.gpu_rank[static_cast<size_t>(member.gpu)];
    member.host = world_.gpu_host[static_cast<size_t>(member.gpu)];
    const bool own_threads = worker < shape.worker_threads.size();
    member.cpus =
        cores_.take(member.host, own_threads ? shape.worker_threads[worker] : shape.threads);
    ranks.push(member.rank);
  }
  job.attempt = Attempt(++num_starts_, std::move(members), now);
  const std::string place = place_text(world_.cluster, assignment.gpus, shape.layout);
  journal(record_of("job-assigned")
              .set("job", name)
              .set("attempt", job.given.totals.attempts)
              .set("rank", job.attempt.member(0).rank)
              .set("ranks", std::move(ranks))
              .set("place", place)
              .set("placement", placement::to_json(assignment, world_.cluster)));
  for (int worker = 0; worker < job.attempt.size(); ++worker) {
    send_to_worker(job, worker, assign_message(job, worker));
  }
  const auto bytes = static_cast<double>(assignment.candidate.prediction.predicted_bytes);
  event(LogLevel::kInfo, name,
        cat("starts on ", place, " (needs ", format_bytes(bytes),
            job.attempt.size() > 1 ? " on the fullest GPU)" : ")"));
}

Json Coordinator::assign_message(const Job& job, int worker) const {
  const std::vector<Member>& members = job.attempt.members();
  Json message =
      make_message("assign")
          .set("group", job.attempt.id())
          .set("workers", job.attempt.size())
          .set("place", world_.cluster.gpu_name(members[static_cast<size_t>(worker)].gpu))
          .set("start_s", kStartSeconds)
          .set("silent_s", settings_.worker_timeout_s)
          .set("deadline_s", progress_deadline(job.assignment))
          .set("deadline_factor", settings_.deadline_factor);
  const trainer::TrainAssignment assignment = train_assignment(job, worker);
  if (assignment.meeting.spans_nodes()) {
    Json peers = Json::array();
    for (const Member& member : members) peers.push(member.rank);
    message.set("peers", std::move(peers)).set("ring_bytes", Json(assignment.meeting.ring_bytes));
  }
  return message.set("assignment", trainer::to_json(assignment));
}

GroupMeeting Coordinator::meeting(const Job& job) const {
  GroupMeeting meeting;
  if (job.attempt.size() < 2) return meeting;
  // Derived, so that the same inputs always give the same outputs; nobody else knows the entropy.
  meeting.token = hash128_hex(
      cat(settings_.entropy, "/", job.given.prepared.spec.name, "/", job.given.totals.attempts));
  for (const Member& member : job.attempt.members()) {
    meeting.nodes.push_back(world_.cluster.gpus[static_cast<size_t>(member.gpu)].node);
  }
  meeting.ring_bytes = group_ring_bytes(
      predictor::group_message_bytes(job.given.prepared.config, job.assignment.candidate.shape));
  return meeting;
}

trainer::TrainAssignment Coordinator::train_assignment(const Job& job, int worker) const {
  const predictor::PlanShape& shape = job.assignment.candidate.shape;
  const Member& member = job.attempt.members()[static_cast<size_t>(worker)];
  const predictor::WorkerNeed need = need_of(job.assignment.candidate.prediction, worker);
  const auto index = static_cast<size_t>(worker);
  trainer::TrainAssignment assignment;
  assignment.spec = job.given.prepared.spec;
  assignment.job_directory = job.given.directory;
  assignment.token_file = job.given.prepared.token_file;
  assignment.micro_batch_tokens = shape.micro_batch_tokens;
  assignment.recompute_blocks = shape.recompute_blocks;
  assignment.weight_dtype = shape.weight_dtype;
  assignment.may_round_inputs = shape.may_round_inputs;
  assignment.precision_note = shape.precision_note;
  assignment.capacity_bytes = need.usable_bytes;
  assignment.threads =
      index < shape.worker_threads.size() ? shape.worker_threads[index] : shape.threads;
  assignment.cpus = member.cpus;
  assignment.checkpoint_every_s = settings_.checkpoint_every_s;
  assignment.keep_checkpoints = settings_.keep_checkpoints;
  assignment.planned_bytes = need.planned_bytes;
  assignment.slowdown = world_.cluster.gpus[static_cast<size_t>(member.gpu)].type.slowdown;
  assignment.layout = shape.layout;
  if (job.attempt.size() < 2) return assignment;
  assignment.group_rank = worker;
  assignment.meeting = meeting(job);
  assignment.replica_shares = shape.replica_shares;
  const auto replica = static_cast<size_t>(model::worker_position(shape.layout, worker).dp_rank);
  if (replica < shape.replica_tokens.size()) {
    assignment.micro_batch_tokens = shape.replica_tokens[replica];
  }
  return assignment;
}

double Coordinator::progress_deadline(const placement::Assignment& assignment) const {
  // A worker gives a sign after each micro batch, forward or backward, of its stage; the time that
  // it waits for others does not count. A replica's speed is its share of the group's.
  const predictor::PlanShape& shape = assignment.candidate.shape;
  const double speed = assignment.candidate.prediction.tokens_per_second;
  double slowdown = 1;
  for (const placement::GpuIndex gpu : assignment.gpus) {
    slowdown = std::max(slowdown, world_.cluster.gpus[static_cast<size_t>(gpu)].type.slowdown);
  }
  double longest = 0;
  for (int replica = 0; speed > 0 && replica < shape.layout.dp_size; ++replica) {
    const auto index = static_cast<size_t>(replica);
    const double share = index < shape.replica_shares.size() && shape.replica_shares[index] > 0
                             ? shape.replica_shares[index]
                             : 1.0 / shape.layout.dp_size;
    const int64_t tokens = index < shape.replica_tokens.size() ? shape.replica_tokens[index]
                                                               : shape.micro_batch_tokens;
    longest = std::max(longest, slowdown * static_cast<double>(tokens) / (share * speed));
  }
  return std::max(settings_.worker_timeout_s, settings_.deadline_factor * longest);
}

void Coordinator::send_to_worker(const Job& job, int worker, Json message) {
  const Member& member = job.attempt.members()[static_cast<size_t>(worker)];
  if (member.ended || lost_.contains(member.rank)) return;
  send(member.rank, message.set("job", job.given.prepared.spec.name)
                        .set("attempt", job.given.totals.attempts)
                        .set("worker", worker));
}

void Coordinator::end_workers(const Job& job) {
  for (int worker = 0; worker < job.attempt.size(); ++worker) {
    send_to_worker(job, worker, make_message("job-end"));
  }
}

std::string Coordinator::worker_text(const Job& job, int worker) const {
  if (worker < 0) {
    return cat("its group on ", place_text(world_.cluster, job.assignment.gpus,
                                           job.assignment.candidate.shape.layout));
  }
  const Member& member = job.attempt.members()[static_cast<size_t>(worker)];
  const std::string number = job.attempt.size() > 1 ? cat(" ", worker) : "";
  return cat("its worker", number, " on ", world_.cluster.gpu_name(member.gpu));
}

// ------------------------------------------------------------------ news of workers

Coordinator::Job* Coordinator::find_attempt(int from, const Json& message) {
  const int64_t worker = message.get_int("worker");
  for (Job& job : jobs_) {
    if (job.given.prepared.spec.name != message.get_string("job")) continue;
    if (job.state != JobState::kRunning || worker < 0 || worker >= job.attempt.size() ||
        job.given.totals.attempts != message.get_int("attempt")) {
      return nullptr;
    }
    const Member& member = job.attempt.member(static_cast<int>(worker));
    return member.rank == from && !member.ended ? &job : nullptr;
  }
  return nullptr;
}

void Coordinator::on_news(Job& job, int worker, const Json& message, double now) {
  const std::string& kind = message_kind(message);
  Member& member = job.attempt.member(worker);
  member.peak_bytes =
      std::max(member.peak_bytes, static_cast<uint64_t>(message.get_int("peak_bytes")));
  job.given.totals.peak_bytes = std::max(job.given.totals.peak_bytes, member.peak_bytes);
  if (kind == "job-warning") {
    event(LogLevel::kWarning, job.given.prepared.spec.name, message.get_string("text"));
  }
  if (kind == "job-alive") member.what = message.get_string("what");
  if (kind == "job-waiting") {
    const double since = std::max(now - message.get_double("seconds"), 0.0);
    member.waiting_since = message.get_bool("waiting") ? since : -1;
  }
  if (kind == "job-ended") {
    job.attempt.end(worker, message, now);
    settle(job, now);
    schedule(now);
  }
  if (worker != 0) return;  // steps and checkpoints are the leader's to tell
  if (kind == "job-started") on_started(job, message, now);
  if (kind == "job-progress") on_progress(job, message, now);
  if (kind == "job-checkpointed") on_checkpointed(job, message);
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

void Coordinator::check_group(Job& job, double now) {
  if (job.attempt.size() < 2) return;
  const std::optional<double> since = job.attempt.all_wait_since();
  if (since && now - *since > progress_deadline(job.assignment)) {
    job.attempt.fail(Reason::kWorkerHung,
                     cat("made no progress for ", format_duration(now - *since),
                         ": all its workers wait for each other"),
                     now);
  }
  settle(job, now);
  const int late = job.attempt.late_worker(now - kLateSeconds);
  if (late < 0 || job.lateness_told) return;
  job.lateness_told = true;
  const std::string& what = job.attempt.member(late).what;
  event(LogLevel::kInfo, job.given.prepared.spec.name,
        cat("others of its workers have waited ", format_duration(kLateSeconds), " for ",
            worker_text(job, late), what.empty() ? "" : cat(" (", what, ")")));
}

void Coordinator::settle(Job& job, double now) {
  if (job.attempt.must_end_rest(now)) {
    job.attempt.rest_is_told();
    end_workers(job);
  }
  if (job.state != JobState::kRunning || !job.attempt.all_ended()) return;
  close_attempt(job, now);
  const Json& word = job.attempt.leader_word();
  if (const Json* progress = word.is_null() ? nullptr : word.find("progress")) {
    job.progress = progress_from_json(*progress);
  }
  switch (job.attempt.outcome()) {
    case Attempt::Outcome::kFinished:
      finish(job);
      break;
    case Attempt::Outcome::kStopped:
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
      break;
    case Attempt::Outcome::kFailed:
      retry_or_fail(job, job.attempt.failure());
      break;
  }
}

void Coordinator::close_attempt(Job& job, double now) {
  job.given.totals.gpu_seconds +=
      (now - job.attempt.started_at()) * static_cast<double>(job.attempt.size());
  for (const Member& member : job.attempt.members()) {
    cores_.give_back(member.host, member.cpus);
  }
}

void Coordinator::finish(Job& job) {
  const std::string& name = job.given.prepared.spec.name;
  const predictor::Prediction& prediction = job.assignment.candidate.prediction;
  job.state = JobState::kFinished;
  Json workers = Json::array();
  for (int worker = 0; worker < job.attempt.size(); ++worker) {
    const Member& member = job.attempt.member(worker);
    workers.push(Json::object()
                     .set("gpu", world_.cluster.gpu_name(member.gpu))
                     .set("planned_bytes", Json(member.planned_bytes))
                     .set("allocated_bytes", Json(member.allocated_bytes))
                     .set("predicted_bytes", Json(need_of(prediction, worker).predicted_bytes))
                     .set("peak_bytes", Json(member.peak_bytes)));
  }
  const Json& word = job.attempt.leader_word();
  journal(record_of("job-finished")
              .set("job", name)
              .set("attempt", job.given.totals.attempts)
              .set("adapter", word.get_string("adapter"))
              .set("progress", to_json(job.progress))
              .set("restarts", job.given.totals.restarts)
              .set("gpu_seconds", job.given.totals.gpu_seconds)
              .set("planned_bytes", word.get_int("planned_bytes"))
              .set("allocated_bytes", word.get_int("allocated_bytes"))
              .set("predicted_bytes", Json(prediction.predicted_bytes))
              .set("peak_bytes", Json(job.given.totals.peak_bytes))
              .set("workers", std::move(workers))
              .set("tokens", job.given.totals.tokens));
  event(LogLevel::kInfo, name,
        cat("finished: ", job.progress.step, " steps, loss ", format("%.4f", job.progress.loss)));
}

}  // namespace galley::launcher
