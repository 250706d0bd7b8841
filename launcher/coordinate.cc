// The driver of the coordinator: gathers the ranks, prepares, carries out what the coordinator
// decides, and ends the run with one code on all ranks.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <set>

#include "engine/core/journal.h"
#include "engine/core/strings.h"
#include "launcher/back_off.h"
#include "launcher/command.h"
#include "launcher/lock.h"
#include "launcher/process.h"
#include "launcher/progress.h"
#include "launcher/rank.h"
#include "launcher/resume.h"
#include "launcher/run_directory.h"
#include "launcher/status.h"

namespace galley::launcher {
namespace {

constexpr double kBeatSeconds = 2;  // to the agents
constexpr double kTickSeconds = 0.05;
constexpr double kReadySeconds = 0.7;   // mpirun may swallow a signal that comes earlier
constexpr double kSummarySeconds = 60;  // plain lines
constexpr double kRowsSeconds = 0.5;    // records for launch
constexpr double kGoodbyeSeconds = 10;
constexpr double kStoppedGapSeconds = 1;  // a loop that slept so long was stopped
constexpr int kSlurmQuestionMs = 15000;

/// Random bytes of the system as text.
std::string random_text() {
  std::random_device device;
  std::string text;
  for (int i = 0; i < 8; ++i) text += format("%08x", device());
  return text;
}

class Driver {
 public:
  Driver(Channel& channel, const RunOptions& options, const Environment& environment,
         const RunParts& parts, SignalInbox* signals)
      : channel_(channel),
        options_(options),
        environment_(environment),
        parts_(parts),
        signals_(signals),
        started_at_(monotonic_now()) {}

  RankEnd run() {
    try {
      gather();
      prepare();
      loop();
      end_reason_ = coordinator_->reason();
      end_text_ = coordinator_->reason_text();
      finish();
    } catch (const Error& error) {
      end_reason_ = error.reason();
      end_text_ = error.what();
      line(LogLevel::kError, "", error.what());
    } catch (const std::exception& error) {
      end_reason_ = Reason::kInternal;
      end_text_ = error.what();
      line(LogLevel::kError, "", cat("internal error: ", error.what()));
    }
    return leave();
  }

 private:
  // ---------------------------------------------------------------- start

  /// Waits for the first message of every rank.
  void gather() {
    if (options_.events == EventOutput::kForLaunch) {
      const RunDirectory directory{parts_.run_directory(options_, environment_)};
      record(Json::object().set("event", "directory").set("path", directory.path));
    }
    hellos_.resize(static_cast<size_t>(channel_.size()));
    std::set<int> silent;
    for (int rank = 1; rank < channel_.size(); ++rank) silent.insert(rank);
    hellos_[0] = hello_from_json(0, own_hello(channel_, environment_));
    BackOff back_off;
    while (!silent.empty()) {
      if (monotonic_now() - started_at_ > parts_.hello_deadline_s) refuse_silent(silent);
      const auto received = channel_.try_receive();
      if (!received) {
        back_off.wait({}, monotonic_now());
        continue;
      }
      const Json message = parse_message(received->bytes, {Direction::kToCoordinator});
      if (message_kind(message) == "signalled") {
        early_signals_.emplace_back(received->from, static_cast<int>(message.get_int("signal")));
      }
      if (message_kind(message) != "hello") continue;
      hellos_[static_cast<size_t>(received->from)] = hello_from_json(received->from, message);
      silent.erase(received->from);
    }
    parts_.all_heard();
    tell_agents(make_message("welcome"));
  }

  [[noreturn]] void refuse_silent(const std::set<int>& silent) {
    silent_ = silent;
    std::vector<std::string> ranks;
    for (const int rank : silent) ranks.push_back(cat(rank));
    std::set<std::string> heard;
    for (const Hello& hello : hellos_) {
      if (!hello.host.empty()) heard.insert(hello.host);
    }
    throw Error(Reason::kNoDevice,
                cat("no word from rank ", join(ranks, ", "), " within ",
                    format_duration(parts_.hello_deadline_s), "; heard from ",
                    join(std::vector<std::string>(heard.begin(), heard.end()), ", "),
                    " only. If the nodes have several networks, name the right one: mpirun --mca "
                    "btl_tcp_if_include 10.1.0.0/16 --mca oob_tcp_if_include 10.1.0.0/16"));
  }

  void prepare() {
    directory_.path = parts_.run_directory(options_, environment_);
    directory_.create();
    lock_ = std::make_unique<RunLock>(directory_.lock(), environment_);
    remove_file_if_exists(directory_.record());
    log_ =
        std::make_unique<Log>(LogSettings{.path = path_join(directory_.logs(), "coordinator.log"),
                                          .origin = cat(hellos_[0].host, " rank 0")});
    for (const auto& [name, value] : environment_.all()) {
      if (name.starts_with("OMPI_MCA_")) log_->info(cat(name, "=", value));
    }
    prepared_ = parts_.prepare(options_, environment_, [this](const std::string& text) {
      line(LogLevel::kInfo, "", text);
      lock_->beat(monotonic_now());
      stop_before_start();
    });
    for (const PreparedJob& job : prepared_->jobs) {
      for (const std::string& note : job.notes) log_->write(LogLevel::kInfo, job.spec.name, note);
    }
    std::optional<placement::Cluster> cluster_file;
    if (!options_.cluster_file.empty()) {
      cluster_file = placement::read_cluster_file(options_.cluster_file);
    }
    RunWorld world = build_world(hellos_, cluster_file);
    const std::vector<Json> old_journal = read_journal(directory_.journal());
    attempt_ = num_run_starts(old_journal) + 1;
    journal_ = std::make_unique<Journal>(directory_.journal());
    append(Json::object()
               .set("record", "run-started")
               .set("run_attempt", attempt_)
               .set("ranks", channel_.size())
               .set("host", hellos_[0].host)
               .set("slurm_job", environment_.get("SLURM_JOB_ID").value_or("")));
    const auto valid = parts_.adapter_is_valid ? parts_.adapter_is_valid : adapter_reads;
    std::vector<CoordinatorJob> jobs =
        resume_jobs(prepared_->jobs, directory_, old_journal, valid, parts_.newest_checkpoint);
    start_own_agent(world);
    tell_agents(make_message("run").set("logs", directory_.logs()));
    make_coordinator(std::move(world), std::move(jobs));
  }

  void start_own_agent(const RunWorld& world) {
    if (std::find(world.agents.begin(), world.agents.end(), 0) == world.agents.end()) return;
    AgentSettings settings = parts_.agent;
    settings.host = hellos_[0].host;
    own_agent_ = std::make_unique<Agent>(&channel_, parts_.start_worker, settings);
    own_agent_->set_log(log_.get());
  }

  void make_coordinator(RunWorld world, std::vector<CoordinatorJob> jobs) {
    CoordinatorSettings settings = parts_.coordinator;
    settings.checkpoint_every_s = prepared_->checkpoint_every_s;
    settings.keep_checkpoints = prepared_->keep_checkpoints;
    settings.end_at = end_of_wall_time();
    settings.worker_timeout_s = options_.worker_timeout_s.value_or(prepared_->worker_timeout_s);
    settings.entropy = random_text();
    if (environment_.get("OMPI_MCA_orte_enable_recovery").value_or("0") == "1") {
      settings.lost_agents = LostAgents::kGoOn;
    }
    const size_t num_jobs = jobs.size();
    coordinator_ =
        std::make_unique<Coordinator>(settings, std::move(world), std::move(jobs),
                                      prepared_->bad_jobs, parts_.policy(), monotonic_now());
    if (coordinator_->has_plan() || !path_exists(directory_.plan())) {
      write_file_atomically(directory_.plan(), coordinator_->plan_json().dump_pretty());
    }
    const placement::Cluster& cluster = coordinator_->world().cluster;
    const bool emulated =
        cluster.gpus.empty() || cluster.gpus.front().type.name != predictor::kHostTypeName;
    line(LogLevel::kInfo, "",
         cat(directory_.path, ": start ", attempt_, ", ", counted(num_jobs, "job"), ", ",
             counted(cluster.gpus.size(), emulated ? "emulated GPU" : "host device"), ", ",
             counted(coordinator_->world().agents.size(), "agent"), ", worker timeout ",
             format_duration(settings.worker_timeout_s)));
    // "Unlimited" is a year to Slurm; nobody needs to read that.
    constexpr double kWorthSaying = 30 * 86400.0;
    if (settings.end_at && *settings.end_at - monotonic_now() < kWorthSaying) {
      line(LogLevel::kInfo, "",
           cat("the wall time ends in ", format_duration(*settings.end_at - monotonic_now()),
               "; jobs checkpoint before that"));
    }
    for (const auto& [rank, signal] : early_signals_) {
      coordinator_->request_stop(rank, signal, cat(stop_cause(signal), ", before the start"),
                                 monotonic_now());
    }
  }

  std::optional<double> end_of_wall_time() const {
    if (options_.wall_time_s) return started_at_ + *options_.wall_time_s;
    if (prepared_->wall_time_s) return started_at_ + *prepared_->wall_time_s;
    if (const auto end = environment_.get("SLURM_JOB_END_TIME")) {
      if (const auto seconds = parse_number(*end)) {
        return monotonic_now() + *seconds - wall_clock_now();
      }
    }
    const auto job = environment_.get("SLURM_JOB_ID");
    if (!job) return std::nullopt;
    const auto left = run_command({"squeue", "-h", "-o", "%L", "-j", *job}, kSlurmQuestionMs);
    if (!left || left->exit_code != 0) return std::nullopt;
    const auto seconds = parse_duration(trim(left->output));  // "UNLIMITED" is none
    return seconds ? std::optional<double>(monotonic_now() + *seconds) : std::nullopt;
  }

  /// While rows are tokenised: any signal ends the run; what is tokenised is kept.
  void stop_before_start() {
    if (signals_ == nullptr) return;
    while (const std::optional<int> signal = signals_->take()) {
      if (*signal == SIGCONT) continue;
      throw Error(Reason::kStopped, cat("stopped (", stop_cause(*signal),
                                        ") before the first job; the same command "
                                        "continues"));
    }
  }

  // ---------------------------------------------------------------- loop

  /// Says that signals to mpirun arrive from here on.
  void say_ready() {
    if (ready_said_) return;
    ready_said_ = true;
    line(LogLevel::kInfo, "", "ready");
    record(Json::object().set("event", "ready"));
  }

  void loop() {
    BackOff back_off;
    last_loop_ = monotonic_now();
    perform();
    while (!coordinator_->done()) {
      const double now = monotonic_now();
      take_signals(now);
      last_loop_ = now;
      if (now - started_at_ > kReadySeconds) say_ready();
      bool busy = receive(now);
      if (own_agent_) busy = own_agent_->step(now) || busy;
      if (now - last_tick_ >= kTickSeconds) {
        last_tick_ = now;
        coordinator_->tick(now);
        lock_beat(now);
      }
      perform();
      if (now - last_beat_ >= kBeatSeconds) {
        last_beat_ = now;
        tell_agents(make_message("coordinator-beat"));
      }
      show(now);
      write_status(now);
      channel_.flush();
      if (busy) back_off.reset();
      if (!busy && !coordinator_->done()) {
        back_off.wait(wait_fds(), now,
                      own_agent_ ? own_agent_->longest_sleep_s(now) : kIdleSeconds);
      }
    }
    perform();
    say_ready();  // a short run has been ready, too
  }

  std::vector<int> wait_fds() const {
    std::vector<int> fds;
    if (own_agent_) fds = own_agent_->wait_fds();
    if (signals_ != nullptr) fds.push_back(signals_->fd());
    return fds;
  }

  void lock_beat(double now) {
    try {
      lock_->beat(now);
    } catch (const Error&) {
      // A full disk shows in the journal, where it matters.
    }
  }

  bool receive(double now) {
    bool busy = false;
    while (const auto received = channel_.try_receive()) {
      busy = true;
      if (is_bulk(received->bytes)) {
        if (own_agent_) own_agent_->take_bulk(received->bytes, now);
        continue;
      }
      const Json message =
          parse_message(received->bytes, {Direction::kToCoordinator, Direction::kToAgent});
      if (message_direction(message) == Direction::kToAgent) {
        if (own_agent_) own_agent_->handle(message, now);
      } else {
        coordinator_->handle(received->from, message, now);
      }
    }
    return busy;
  }

  void take_signals(double now) {
    if (signals_ == nullptr) return;
    while (const std::optional<int> signal = signals_->take()) {
      if (*signal == SIGCONT) {
        // Without a stop before it, this is mpirun about to end its ranks: TERM comes next.
        if (now - last_loop_ > kStoppedGapSeconds || coordinator_->stopping()) continue;
        early_record();
        coordinator_->request_stop(0, *signal, "mpirun ends its ranks", now);
        continue;
      }
      if (*signal != SIGUSR1 && *signal != SIGUSR2) early_record();
      coordinator_->request_stop(0, *signal, stop_cause(*signal), now);
    }
  }

  /// There may be no time for one later.
  void early_record() {
    try {
      write_run_record(directory_, {.reason = Reason::kStopped,
                                    .code = reason_traits(Reason::kStopped).exit_code,
                                    .text = "stopped from outside; the same command continues",
                                    .attempt = attempt_});
    } catch (const Error& error) {
      line(LogLevel::kError, "", error.what());
    }
  }

  /// Carries out what was decided, in order: a decision that is not in the journal is not acted on.
  void perform() {
    bool journal_works = true;
    for (Output& output : coordinator_->take_outputs()) {
      switch (output.kind) {
        case Output::Kind::kJournal:
          journal_works = journal_works && append(std::move(output.json));
          break;
        case Output::Kind::kSend:
          if (journal_works || message_kind(output.json) != "assign") {
            channel_.send(output.to, output.json.dump());
          }
          break;
        case Output::Kind::kEvent:
          line(output.level, output.job, output.text);
          break;
      }
    }
  }

  bool append(Json record) {
    if (journal_failed_) return false;
    try {
      Json timed = Json::object();
      timed.set("time", format_time_utc(wall_clock_now()));
      for (const auto& [key, value] : record.as_object()) timed.set(key, value);
      journal_->append(timed);
      return true;
    } catch (const Error& error) {
      journal_failed_ = true;
      if (!coordinator_) throw;
      coordinator_->fail_run(error.reason(), error.what(), monotonic_now());
      return false;
    }
  }

  // ---------------------------------------------------------------- show

  void record(const Json& json) {
    if (options_.events != EventOutput::kForLaunch) return;
    const std::string text = launch_record(json);
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  }

  void line(LogLevel level, const std::string& job, const std::string& text) {
    if (log_) log_->write(level, job, text);
    if (options_.events == EventOutput::kForLaunch) {
      record(Json::object()
                 .set("event", "line")
                 .set("level", std::string(log_level_name(level)))
                 .set("job", job)
                 .set("text", text));
      return;
    }
    const std::string printed = event_line(wall_clock_now(), job, text) + "\n";
    std::fwrite(printed.data(), 1, printed.size(), stderr);
    std::fflush(stderr);
  }

  void show(double now) {
    if (options_.events == EventOutput::kForLaunch && now - last_rows_ >= kRowsSeconds) {
      last_rows_ = now;
      for (const JobRow& row : coordinator_->table(now)) {
        record(Json::object().set("event", "job").set("row", to_json(row)));
      }
    }
    if (last_summary_ < 0) last_summary_ = now;
    if (now - last_summary_ < kSummarySeconds) return;
    last_summary_ = now;
    for (const JobRow& row : coordinator_->table(now)) {
      if (row.state != JobState::kRunning) continue;
      if (options_.events == EventOutput::kForLaunch) {
        log_->write(LogLevel::kInfo, row.name, progress_text(row));
      } else {
        line(LogLevel::kInfo, row.name, progress_text(row));
      }
    }
  }

  /// For `galley status`. A full disk shows in the journal, where it matters.
  void write_status(double now) {
    if (last_status_ >= 0 && now - last_status_ < kStatusSeconds) return;
    last_status_ = now;
    const RunStatus status{.time = wall_clock_now(),
                           .attempt = attempt_,
                           .host = hellos_[0].host,
                           .slurm_job = environment_.get("SLURM_JOB_ID").value_or(""),
                           .jobs = coordinator_->table(now)};
    try {
      replace_small_file(directory_.status(), to_json(status).dump());
    } catch (const Error&) {
    }
  }

  // ---------------------------------------------------------------- end

  void finish() {
    last_status_ = -1;
    write_status(monotonic_now());
    const std::vector<JobRow> rows = coordinator_->table(monotonic_now());
    for (const JobRow& row : rows) {
      record(Json::object().set("event", "job").set("row", to_json(row)));
    }
    line(end_reason_ == Reason::kOk ? LogLevel::kInfo : LogLevel::kWarning, "", end_text_);
    try {
      write_file_atomically(directory_.jobs_table(),
                            jobs_csv(rows, environment_.get("SLURM_JOB_ID").value_or("")));
    } catch (const Error& error) {
      line(LogLevel::kError, "", error.what());
    }
    const std::string table = summary_table(rows, directory_.path);
    if (options_.events == EventOutput::kForLaunch) {
      record(Json::object().set("event", "summary").set("text", table));
      return;
    }
    std::fwrite(table.data(), 1, table.size(), stdout);
    std::fflush(stdout);
  }

  /// Writes the record, tells every rank the code, waits for their goodbyes.
  RankEnd leave() {
    const int code = reason_traits(end_reason_).exit_code;
    if (lock_) {
      append_end(code);
      try {
        write_run_record(directory_, {end_reason_, code, one_line(end_text_), attempt_});
      } catch (const Error& error) {
        line(LogLevel::kError, "", error.what());
      }
    }
    const bool alive = silent_.empty() && (!coordinator_ || coordinator_->everybody_alive());
    record(Json::object().set("event", "end").set("code", code).set("text", end_text_));
    const Json quit = make_message("quit").set("code", code).set("finalize", alive);
    tell_agents(quit);
    if (own_agent_) own_agent_->handle(quit, monotonic_now());
    const bool all_left = wait_for_goodbyes() && alive;
    lock_.reset();
    record(Json::object().set("event", "goodbye"));
    return {code, all_left};
  }

  void append_end(int code) {
    if (!journal_ || journal_failed_) return;
    try {
      append(Json::object()
                 .set("record", "run-ended")
                 .set("run_attempt", attempt_)
                 .set("code", code)
                 .set("reason", std::string(reason_traits(end_reason_).name)));
    } catch (const Error&) {
      // The completion record says the same.
    }
  }

  bool wait_for_goodbyes() {
    std::set<int> waiting;
    for (int rank = 1; rank < channel_.size(); ++rank) {
      if (!silent_.contains(rank)) waiting.insert(rank);
    }
    const double end = monotonic_now() + kGoodbyeSeconds;
    BackOff back_off;
    bool flushed = false;
    while ((!waiting.empty() || !flushed) && monotonic_now() < end) {
      flushed = channel_.flush();
      const auto received = channel_.try_receive();
      if (!received) {
        back_off.wait({}, monotonic_now());
        continue;
      }
      if (is_bulk(received->bytes)) continue;  // of workers that have been ended
      const Json message =
          parse_message(received->bytes, {Direction::kToCoordinator, Direction::kToAgent});
      if (message_kind(message) == "goodbye") waiting.erase(received->from);
    }
    return waiting.empty() && flushed;
  }

  void tell_agents(const Json& message) {
    const std::string bytes = message.dump();
    for (int rank = 1; rank < channel_.size(); ++rank) {
      if (!silent_.contains(rank)) channel_.send(rank, bytes);
    }
    const bool to_own =
        message_kind(message) == "run" || message_kind(message) == "coordinator-beat";
    if (own_agent_ && to_own) own_agent_->handle(message, monotonic_now());
  }

  Channel& channel_;
  const RunOptions& options_;
  const Environment& environment_;
  const RunParts& parts_;
  SignalInbox* signals_;
  double started_at_;
  std::vector<Hello> hellos_;                       // by rank
  std::set<int> silent_;                            // never heard
  std::vector<std::pair<int, int>> early_signals_;  // rank and signal, before the start
  RunDirectory directory_;
  std::unique_ptr<RunLock> lock_;
  std::unique_ptr<Log> log_;
  std::unique_ptr<Journal> journal_;
  std::optional<PreparedRun> prepared_;
  std::unique_ptr<Agent> own_agent_;
  std::unique_ptr<Coordinator> coordinator_;
  int attempt_ = 1;
  bool journal_failed_ = false;
  bool ready_said_ = false;
  double last_loop_ = 0, last_tick_ = 0, last_beat_ = 0, last_rows_ = 0, last_summary_ = -1;
  double last_status_ = -1;
  Reason end_reason_ = Reason::kInternal;
  std::string end_text_;
};

}  // namespace

RankEnd coordinate(Channel& channel, const RunOptions& options, const Environment& environment,
                   const RunParts& parts, SignalInbox* signals) {
  return Driver(channel, options, environment, parts, signals).run();
}

}  // namespace galley::launcher
