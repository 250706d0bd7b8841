#include "launcher/agent.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "engine/core/strings.h"
#include "launcher/attempt.h"
#include "launcher/back_off.h"
#include "launcher/process.h"

namespace galley::launcher {
namespace {

constexpr int kCoordinator = 0;
constexpr uint64_t kMaxOutputBytes = 1 << 20;
constexpr double kTellWaitingSeconds = 1;  // a wait this long is the coordinator's business
constexpr double kTellAliveSeconds = 2;    // what a worker of a group does, so often

/// The last line that a worker wrote by itself before it died ("terminate called ..."), if any.
std::string last_output_line(const std::string& path) {
  if (path.empty() || !path_exists(path) || file_bytes(path) > kMaxOutputBytes) return "";
  const std::string output = read_file(path);
  const std::string_view text = trim(output);
  return std::string(
      text.substr(text.rfind('\n') == std::string_view::npos ? 0 : text.rfind('\n') + 1));
}

}  // namespace

struct Agent::Worker {
  std::string job;
  int64_t attempt = 0;
  int number = 0, group_size = 1;  // its group rank, and of how many
  int64_t group = 0;               // this start of the job among all of the run
  std::unique_ptr<RunningWorker> process;
  std::unique_ptr<Log> log;
  std::string output_file;
  double start_s = 60;          // until the first sign
  double silent_s = 10;         // without any message: stopped, or gone mad
  double deadline_s = 10;       // between signs of progress
  double deadline_factor = 20;  // times the longest time between signs so far
  double started_at = 0;
  double last_sign = -1;  // of progress; -1: none yet
  double longest_gap = 0;
  double last_beat = -1;      // any message; -1: none yet
  double last_wait = -1;      // it said that it waits for its peers
  double waiting_since = -1;  // without a sign of progress since then; -1: it works
  bool waiting_told = false;
  double alive_told_at = -1;
  double last_sample = -1;
  double last_report = 0;
  double last_word_at = -1;  // its "ended" came
  uint64_t peak_bytes = 0, reported_peak = 0;
  int64_t oom_kills = 0;  // counter of the node when it started
  bool killed = false;
  Reason killed_reason = Reason::kOk;
  Blame killed_blame = Blame::kWorker;
  std::string killed_text;
  std::string what;  // its last sign
  Json ended;        // its own last word
};

Agent::Agent(Channel* channel, WorkerStarter starter, AgentSettings settings)
    : channel_(channel),
      starter_(std::move(starter)),
      settings_(std::move(settings)),
      relay_(channel) {}

Agent::~Agent() = default;

void Agent::log(LogLevel level, const std::string& job, const std::string& text) {
  if (log_ != nullptr) log_->write(level, job, text);
}

Json Agent::about(const Worker& worker, std::string_view kind) const {
  return make_message(kind)
      .set("job", worker.job)
      .set("attempt", worker.attempt)
      .set("worker", worker.number);
}

// ------------------------------------------------------------------ from the coordinator

void Agent::handle(const Json& message, double now) {
  const std::string& kind = message_kind(message);
  if (kind == "run") logs_folder_ = message.get_string("logs");
  if (kind == "coordinator-beat") coordinator_beat_ = now;
  if (kind == "assign") assign(message, now);
  if (kind == "quit") {
    exit_code_ = static_cast<int>(message.get_int("code"));
    may_finalize_ = message.get_bool("finalize");
    end_workers(now);
    channel_->send(kCoordinator, make_message("goodbye").dump());
    quit_ = true;
  }
  if (kind != "job-command" && kind != "job-end") return;
  for (const auto& worker : workers_) {
    if (worker->job != message.get_string("job")) continue;
    if (worker->attempt != message.get_int("attempt")) continue;  // meant for an older attempt
    if (worker->number != message.get_int("worker")) continue;
    if (kind == "job-end") {
      // One that has died by itself shall say so.
      if (worker->process->try_reap()) continue;
      worker->killed_blame = worker->killed ? worker->killed_blame : Blame::kOrder;
      kill(*worker, Reason::kStopped, "was ended at once");
    } else {
      worker->process->link().send(
          make_message("command").set("command", message.get_string("command")).dump());
    }
  }
}

void Agent::assign(const Json& message, double now) {
  auto worker = std::make_unique<Worker>();
  worker->job = message.get_string("job");
  worker->attempt = message.get_int("attempt");
  worker->number = static_cast<int>(message.get_int("worker"));
  worker->group_size = static_cast<int>(message.get_int("workers"));
  worker->group = message.get_int("group");
  worker->start_s = message.get_double("start_s");
  worker->silent_s = message.get_double("silent_s");
  worker->deadline_s = message.get_double("deadline_s");
  worker->deadline_factor = message.get_double("deadline_factor", worker->deadline_factor);
  worker->started_at = now;
  worker->oom_kills = oom_kill_count();
  try {
    start_process(*worker, message);
  } catch (const Error& error) {
    relay_.close(worker->group, worker->number);
    log(LogLevel::kError, worker->job, error.what());
    channel_->send(kCoordinator, about(*worker, "job-ended")
                                     .set("outcome", "failed")
                                     .set("reason", std::string(reason_traits(error.reason()).name))
                                     .set("text", cat("could not be started: ", error.what()))
                                     .set("peak_bytes", 0)
                                     .dump());
    return;
  }
  worker->process->link().send(
      make_message("start").set("assignment", message.at("assignment")).dump());
  const std::string which =
      worker->group_size > 1 ? cat(" (", worker->number, " of ", worker->group_size, ")") : "";
  const std::string text = cat("attempt ", worker->attempt, which, " on ",
                               message.get_string("place"), ": worker ", worker->process->pid());
  log(LogLevel::kInfo, worker->job, text);
  if (worker->log) worker->log->write(LogLevel::kInfo, worker->job, text);
  workers_.push_back(std::move(worker));
}

/// Each worker of a group writes files of its own: agents of several machines may share a folder.
void Agent::start_process(Worker& worker, const Json& message) {
  if (!logs_folder_.empty()) {
    const std::string one =
        worker.number == 0 ? worker.job : cat(worker.job, ".worker-", worker.number);
    worker.output_file =
        path_join(logs_folder_, worker.number == 0 ? worker.job + ".worker.txt" : one + ".txt");
    worker.log = std::make_unique<Log>(
        LogSettings{.path = path_join(logs_folder_, one + ".log"),
                    .origin = cat(settings_.host, " rank ", channel_->rank())});
  }
  WorkerStart start{worker.job, worker.output_file, -1};
  if (const Json* peers = message.find("peers"); peers != nullptr) {
    std::vector<int> ranks;
    for (const Json& rank : peers->as_array()) ranks.push_back(static_cast<int>(rank.as_int()));
    start.relay_fd = relay_.open(worker.group, worker.number, std::move(ranks),
                                 static_cast<uint64_t>(message.get_int("ring_bytes")));
  }
  worker.process = starter_(start);
}

void Agent::end_workers(double now) {
  for (const auto& worker : workers_) worker->process->kill();
  const double end = now + settings_.leave_s;
  for (const auto& worker : workers_) {
    while (!worker->process->try_reap() && monotonic_now() < end) usleep(1000);
  }
  workers_.clear();
}

// ------------------------------------------------------------------ rounds

bool Agent::step(double now) {
  bool busy = false;
  for (const auto& worker : workers_) busy = step_worker(*worker, now) || busy;
  busy = relay_.step(now) || busy;
  std::erase_if(workers_, [](const auto& worker) { return worker->process == nullptr; });
  if (now - last_beat_ >= settings_.beat_every_s) {
    last_beat_ = now;
    channel_->send(kCoordinator, make_message("agent-beat").dump());
  }
  channel_->flush();
  if (coordinator_beat_ >= 0 && now - coordinator_beat_ > settings_.coordinator_silent_s &&
      !quit_) {
    log(LogLevel::kError, "", "the coordinator is silent; this agent ends");
    exit_code_ = reason_traits(Reason::kAgentLost).exit_code;
    end_workers(now);
    quit_ = true;
  }
  return busy;
}

std::vector<int> Agent::wait_fds() const {
  std::vector<int> fds;
  for (const auto& worker : workers_) {
    if (!worker->process->link().closed()) fds.push_back(worker->process->link().fd());
  }
  return fds;
}

double Agent::longest_sleep_s(double now) const {
  if (workers_.empty()) return kIdleSeconds;
  return relay_.empty() ? kBriskSeconds : relay_.longest_sleep_s(now);
}

bool Agent::step_worker(Worker& worker, double now) {
  const bool busy = take_messages(worker, now);
  sample_memory(worker, now);
  check_deadlines(worker, now);
  if (const std::optional<WorkerExit> exit = worker.process->try_reap()) {
    take_messages(worker, now);  // what it said before it ended
    report_end(worker, *exit);
    relay_.close(worker.group, worker.number);
    worker.process.reset();
    return true;
  }
  return busy;
}

bool Agent::take_messages(Worker& worker, double now) {
  bool busy = false;
  Link& link = worker.process->link();
  link.flush();
  while (const std::optional<std::string> bytes = link.try_receive()) {
    busy = true;
    try {
      on_message(worker, parse_message(*bytes, {Direction::kFromWorker}), now);
    } catch (const Error& error) {
      kill(worker, Reason::kInternal, cat("spoke nonsense: ", error.what()));
      return true;
    }
  }
  return busy;
}

void Agent::on_message(Worker& worker, const Json& message, double now) {
  const std::string& kind = message_kind(message);
  worker.last_beat = now;
  if (kind == "beat") return;
  if (kind == "waiting") {
    on_waiting(worker, now);
    return;
  }
  on_sign(worker, message, now);
  if (kind == "alive" || kind == "ended") return;
  Json forwarded = about(worker, cat("job-", kind));
  for (const auto& [key, value] : message.as_object()) {
    if (key != "kind") forwarded.set(key, value);
  }
  channel_->send(kCoordinator, forwarded.dump());
  log_message(worker, message);
}

void Agent::on_waiting(Worker& worker, double now) {
  worker.last_wait = now;
  if (worker.waiting_since < 0) worker.waiting_since = now;
  if (worker.waiting_told || now - worker.waiting_since < kTellWaitingSeconds) return;
  worker.waiting_told = true;
  channel_->send(kCoordinator, about(worker, "job-waiting")
                                   .set("waiting", true)
                                   .set("seconds", now - worker.waiting_since)
                                   .dump());
}

void Agent::on_sign(Worker& worker, const Json& message, double now) {
  const std::string& kind = message_kind(message);
  if (worker.last_sign >= 0) {
    const double quiet_since = std::max(worker.last_sign, worker.last_wait);
    worker.longest_gap = std::max(worker.longest_gap, now - quiet_since);
  }
  worker.last_sign = now;
  worker.waiting_since = -1;
  if (worker.waiting_told) {
    worker.waiting_told = false;
    channel_->send(kCoordinator,
                   about(worker, "job-waiting").set("waiting", false).set("seconds", 0).dump());
  }
  if (kind == "alive") {
    worker.what = message.get_string("what");
    if (worker.group_size > 1 && now - worker.alive_told_at >= kTellAliveSeconds) {
      worker.alive_told_at = now;
      channel_->send(kCoordinator, about(worker, "job-alive").set("what", worker.what).dump());
    }
  }
  if (kind == "ended") {
    worker.ended = message;
    worker.last_word_at = now;
    worker.last_sample = -1;  // once more before it is gone
    sample_memory(worker, now);
  }
}

void Agent::log_message(const Worker& worker, const Json& message) {
  if (!worker.log) return;
  const std::string& kind = message_kind(message);
  if (kind == "warning") {
    worker.log->write(LogLevel::kWarning, worker.job, message.get_string("text"));
  } else if (kind == "checkpointed") {
    worker.log->write(LogLevel::kInfo, worker.job,
                      cat("checkpoint of step ", message.get_int("step"), " in ",
                          format_duration(message.get_double("seconds"))));
  } else if (kind == "started") {
    worker.log->write(LogLevel::kInfo, worker.job,
                      cat("from step ", message.get_int("step"), " of ",
                          message.get_int("total_steps"), " ", message.get_string("note")));
  }
}

void Agent::sample_memory(Worker& worker, double now) {
  if (now - worker.last_sample < settings_.memory_every_s && worker.last_sample >= 0) return;
  worker.last_sample = now;
  worker.peak_bytes = std::max(worker.peak_bytes, worker.process->resident_bytes());
  if (worker.peak_bytes == worker.reported_peak) return;
  if (now - worker.last_report < settings_.memory_report_s) return;
  worker.last_report = now;
  worker.reported_peak = worker.peak_bytes;
  channel_->send(kCoordinator,
                 about(worker, "job-memory").set("peak_bytes", Json(worker.peak_bytes)).dump());
}

void Agent::check_deadlines(Worker& worker, double now) {
  if (worker.killed) return;
  if (worker.last_word_at >= 0) {
    if (now - worker.last_word_at > settings_.leave_s) {
      kill(worker, Reason::kOk, "did not leave after its last word");
    }
    return;
  }
  if (worker.process->link().closed()) {
    kill(worker, Reason::kWorkerDied, "closed its link without a word");
    return;
  }
  // The side thread beats from the assignment on; before that the program has to be loaded.
  const bool heard = worker.last_beat >= 0;
  const double silence = now - (heard ? worker.last_beat : worker.started_at);
  if (silence > (heard ? worker.silent_s : std::max(settings_.first_word_s, worker.silent_s))) {
    kill(worker, Reason::kWorkerHung, cat("gave no sign of life for ", format_duration(silence)));
    return;
  }
  const bool signed_once = worker.last_sign >= 0;
  const double limit =
      signed_once ? std::max(worker.deadline_s, worker.deadline_factor * worker.longest_gap)
                  : std::max(worker.start_s, worker.deadline_s);
  // While it waits for its peers it is not to blame; what ends a group in which all wait for each
  // other is the coordinator.
  const double quiet_since =
      std::max(signed_once ? worker.last_sign : worker.started_at, worker.last_wait);
  const double waited = now - quiet_since;
  if (waited <= limit) return;
  kill(worker, Reason::kWorkerHung,
       cat("made no progress for ", format_duration(waited),
           worker.what.empty() ? std::string() : cat(" (last: ", worker.what, ")")));
}

void Agent::kill(Worker& worker, Reason reason, const std::string& text) {
  if (!worker.killed) {
    worker.killed = true;
    worker.killed_reason = reason;
    worker.killed_text = text;
  }
  worker.process->kill();
}

/// How a worker ended, as it said itself, or else as its end looks from outside.
Json Agent::last_word(const Worker& worker, const WorkerExit& exit) const {
  Json message = about(worker, "job-ended");
  if (!worker.ended.is_null()) {
    for (const auto& [key, value] : worker.ended.as_object()) {
      if (key != "kind") message.set(key, value);
    }
    const bool peer_gone = message.get_string("reason") == reason_traits(Reason::kWorkerDied).name;
    return message.set("blame", Json(blame_name(peer_gone ? Blame::kPeer : Blame::kWorker)));
  }
  Reason reason = Reason::kWorkerDied;
  std::string text;
  // A link that closed only says that the worker has died; how it ended says why.
  if (worker.killed && worker.killed_reason != Reason::kWorkerDied) {
    reason = worker.killed_reason;
    text = worker.killed_text;
  } else if (exit.signal != 0) {
    text = cat("died (killed by signal ", exit.signal, ", ", strsignal(exit.signal), ")");
    const int64_t kills = oom_kill_count() - worker.oom_kills;
    if (exit.signal == SIGKILL && kills > 0) {
      text += "; the node's out-of-memory killer struck: out of host memory";
    }
  } else {
    text = cat("died (exit code ", exit.exit_code, " without a word)");
  }
  return message.set("outcome", "failed")
      .set("reason", std::string(reason_traits(reason).name))
      .set("text", text)
      .set("blame", Json(blame_name(worker.killed_blame)));
}

void Agent::report_end(Worker& worker, const WorkerExit& exit) {
  Json message = last_word(worker, exit);
  const std::string own_words = last_output_line(worker.output_file);
  if (worker.ended.is_null() && !own_words.empty()) {
    message.set("text", cat(message.get_string("text"), "; it wrote: ", own_words.substr(0, 300)));
  }
  message.set("peak_bytes", Json(worker.peak_bytes));
  const bool failed = message.get_string("outcome") == "failed";
  const std::string text =
      failed ? cat("attempt ", worker.attempt, " failed: ", message.get_string("text"))
             : cat("attempt ", worker.attempt, " ", message.get_string("outcome"));
  log(failed ? LogLevel::kWarning : LogLevel::kInfo, worker.job, text);
  if (worker.log) {
    worker.log->write(failed ? LogLevel::kWarning : LogLevel::kInfo, worker.job, text);
  }
  if (own_words.empty() && !worker.output_file.empty()) remove_file_if_exists(worker.output_file);
  channel_->send(kCoordinator, message.dump());
}

}  // namespace galley::launcher
