#include "launcher/worker.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "engine/core/link.h"
#include "engine/core/strings.h"
#include "launcher/binding.h"
#include "launcher/process.h"
#include "launcher/protocol.h"

namespace galley::launcher {
namespace {

constexpr double kBeatEverySeconds = 0.5;
constexpr double kSignEverySeconds = 0.2;  // at most so often: alive and progress
constexpr double kWaitingEverySeconds = 0.25;
constexpr int kStartTimeoutMs = 60000;
constexpr double kMeetSeconds = 60;  // a peer that starts later than that has been ended
constexpr int kDrainMs = 10000;

/// The link, shared by the job's thread and the beating one.
class SharedLink {
 public:
  explicit SharedLink(FileDescriptor socket) : link_(std::move(socket)) {}

  void send(const Json& message) {
    const std::lock_guard lock(mutex_);
    link_.send(message.dump());
  }
  bool drain() {
    const std::lock_guard lock(mutex_);
    return link_.drain(kDrainMs);
  }
  std::optional<Json> receive() {
    const std::lock_guard lock(mutex_);
    link_.flush();
    const std::optional<std::string> bytes = link_.try_receive();
    if (!bytes) return std::nullopt;
    return parse_message(*bytes, {Direction::kToWorker});
  }
  bool closed() {
    const std::lock_guard lock(mutex_);
    return link_.closed();
  }
  /// Only before the side thread starts.
  bool wait(int timeout_ms) { return link_.wait(timeout_ms); }

 private:
  std::mutex mutex_;
  Link link_;  // guarded by mutex_
};

/// Says "beat" until it is destroyed.
class Heart {
 public:
  explicit Heart(SharedLink* link)
      : thread_([this, link] {
          std::unique_lock lock(mutex_);
          while (!stop_) {
            link->send(make_message("beat"));
            wake_.wait_for(lock, std::chrono::duration<double>(kBeatEverySeconds));
          }
        }) {}
  ~Heart() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  Heart(const Heart&) = delete;
  Heart& operator=(const Heart&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

class LinkEvents : public trainer::JobEvents {
 public:
  explicit LinkEvents(SharedLink* link) : link_(link) {}

  void alive(const std::string& what) override {
    if (!due(&last_alive_)) return;
    link_->send(make_message("alive").set("what", what));
  }

  void started(int64_t step, int64_t total_steps, const std::string& note) override {
    link_->send(make_message("started")
                    .set("step", step)
                    .set("total_steps", total_steps)
                    .set("note", note));
  }

  void progress(const trainer::JobProgress& progress) override {
    new_tokens_ += progress.step_tokens;
    last_ = progress;
    unsent_ = true;
    if (due(&last_progress_)) send_progress();
  }

  void checkpointed(int64_t step, double seconds) override {
    send_progress();
    link_->send(make_message("checkpointed").set("step", step).set("seconds", seconds));
  }

  void warn(const std::string& message) override {
    link_->send(make_message("warning").set("text", message));
  }

  void waiting() override {
    take_commands();  // sees the link close
    if (due(&last_waiting_, kWaitingEverySeconds)) link_->send(make_message("waiting"));
  }

  trainer::JobCommand command() override {
    take_commands();
    // A stop holds until the job has returned; a checkpoint is asked for once.
    if (pending_ == trainer::JobCommand::kCheckpoint) {
      return std::exchange(pending_, trainer::JobCommand::kNone);
    }
    return pending_;
  }

  void send_progress() {
    if (!unsent_) return;
    unsent_ = false;
    link_->send(make_message("progress")
                    .set("progress", to_json(last_))
                    .set("new_tokens", std::exchange(new_tokens_, 0)));
  }

 private:
  void take_commands() {
    while (const std::optional<Json> message = link_->receive()) {
      if (message_kind(*message) != "command") continue;
      const std::string command = message->get_string("command");
      if (command == "stop") pending_ = trainer::JobCommand::kStop;
      if (command == "checkpoint" && pending_ == trainer::JobCommand::kNone) {
        pending_ = trainer::JobCommand::kCheckpoint;
      }
    }
    if (link_->closed()) throw Error(Reason::kAgentLost, "the agent is gone");
  }

  static bool due(double* last, double every_s = kSignEverySeconds) {
    const double now = monotonic_now();
    if (now - *last < every_s) return false;
    *last = now;
    return true;
  }

  SharedLink* link_;
  trainer::JobCommand pending_ = trainer::JobCommand::kNone;
  trainer::JobProgress last_;
  bool unsent_ = false;
  int64_t new_tokens_ = 0;
  double last_alive_ = 0, last_progress_ = 0, last_waiting_ = 0;
};

std::optional<trainer::TrainAssignment> receive_assignment(SharedLink* link) {
  const double end = monotonic_now() + kStartTimeoutMs * 1e-3;
  while (!link->closed() && monotonic_now() < end) {
    if (const std::optional<Json> message = link->receive()) {
      if (message_kind(*message) != "start") continue;
      return trainer::train_assignment_from_json(message->at("assignment"));
    }
    if (!link->closed()) link->wait(kStartTimeoutMs);
  }
  return std::nullopt;
}

Json ended(std::string_view outcome) { return make_message("ended").set("outcome", Json(outcome)); }

Json failure(Reason reason, const std::string& text) {
  return ended("failed").set("reason", std::string(reason_traits(reason).name)).set("text", text);
}

/// The result of a call as a last word; what it throws is one, too.
Json word_of(const std::function<Json()>& call) {
  try {
    return call();
  } catch (const Error& error) {
    return failure(error.reason(), error.what());
  } catch (const std::bad_alloc&) {
    return failure(Reason::kOutOfMemory, "the machine has no memory left for this worker");
  } catch (const std::exception& error) {
    return failure(Reason::kInternal, error.what());
  }
}

std::unique_ptr<GroupTransport> meet(const trainer::TrainAssignment& assignment,
                                     const std::function<FileDescriptor()>& open_relay,
                                     LinkEvents* events) {
  if (assignment.meeting.size() < 2) return nullptr;
  FileDescriptor relay;
  if (assignment.meeting.spans_nodes()) relay = open_relay();
  return join_group(
      assignment.meeting, assignment.group_rank, std::move(relay), [events] { events->waiting(); },
      kMeetSeconds);
}

Json run_assignment(const trainer::TrainAssignment& assignment, LinkEvents& events,
                    GroupTransport* transport, const JobFunction& job) {
  const trainer::JobResult result = job(assignment, events, transport);
  events.send_progress();
  const bool finished = result.outcome == trainer::JobResult::Outcome::kFinished;
  return ended(finished ? "finished" : "stopped")
      .set("progress", to_json(result.last))
      .set("adapter", result.adapter_directory)
      .set("planned_bytes", Json(result.planned_bytes))
      .set("allocated_bytes", Json(result.allocated_bytes));
}

}  // namespace

int serve_link(FileDescriptor socket, const std::function<FileDescriptor()>& open_relay,
               const JobFunction& job) {
  SharedLink link(std::move(socket));
  const std::optional<trainer::TrainAssignment> assignment = receive_assignment(&link);
  if (!assignment) return reason_traits(Reason::kAgentLost).exit_code;
  Json outcome;
  std::unique_ptr<GroupTransport> transport;
  {
    const Heart heart(&link);
    LinkEvents events(&link);
    outcome = word_of([&] {
      transport = meet(*assignment, open_relay, &events);
      return run_assignment(*assignment, events, transport.get(), job);
    });
  }
  link.send(outcome);
  const bool failed = outcome.get_string("outcome") == "failed";
  // After the own last word: who learns of it by the abort is not the first to report.
  if (failed && transport) transport->abort();
  link.drain();
  return failed ? reason_traits(reason_from_name(outcome.get_string("reason"))).exit_code : 0;
}

int worker_process_main(int argc, char** argv, const JobFunction& job) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // dies with the agent ...
  const bool known = argc == 4 && std::string_view(argv[2]) == "--parent";
  if (!known || parse_int(argv[3]) != static_cast<int64_t>(getppid())) {
    return reason_traits(Reason::kUsage).exit_code;  // ... even if it died before this line
  }
  // Slurm sends its signals to every process of a job. What they mean for a worker the coordinator
  // says over the link, and there is time to checkpoint; the agent ends workers by KILL only.
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) signal(number, SIG_IGN);
  // The kernel shall take the worker, which can be started again, and not the agent.
  std::ofstream("/proc/self/oom_score_adj") << 500;
  return serve_link(
      FileDescriptor(kWorkerLinkFd), [] { return FileDescriptor(kWorkerRelayFd); },
      [&job](const trainer::TrainAssignment& given, trainer::JobEvents& events,
             GroupTransport* transport) {
        trainer::TrainAssignment assignment = given;
        std::string note;
        assignment.cpus = bind_process(given.cpus, given.threads, &note);
        if (!note.empty()) events.warn(note);
        return job(assignment, events, transport);
      });
}

}  // namespace galley::launcher
