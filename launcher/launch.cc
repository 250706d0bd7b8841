// `galley launch`: a small parent of mpirun that takes the signals, shows progress, outlives an
// mpirun that hangs, and returns the code of the run.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>

#include "engine/core/processors.h"
#include "engine/core/strings.h"
#include "launcher/mpirun_line.h"
#include "launcher/process.h"
#include "launcher/progress.h"
#include "launcher/requeue.h"
#include "launcher/run.h"
#include "launcher/run_directory.h"
#include "launcher/signals.h"

namespace galley::launcher {
namespace {

constexpr int kPollMs = 100;
constexpr double kListeningSeconds = 0.7;  // from the run's first record
constexpr double kHangSeconds = 15;        // mpirun's time after the last word of the run
// The same when the code is not 0: mpirun then waits for both of its kill timers (20 s) although
// every rank has left.
constexpr double kHangNonZeroSeconds = 3;
constexpr double kImpatientSeconds = 10;   // a run's time after the second signal
constexpr double kInterruptSeconds = 0.3;  // between two INT
constexpr double kKillSeconds = 5;         // from the second INT to KILL
constexpr double kSummarySeconds = 60;
// A closed terminal sends HUP twice, some tools any signal: within this time it is one order.
constexpr double kRepeatSeconds = 1;

/// Starts mpirun in its own process group (the terminal's ^C is for launch), stderr into a pipe.
class Mpirun {
 public:
  Mpirun(std::vector<std::string> words, const Environment& environment) {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) throw_errno("create", "a pipe", errno, Reason::kInternal);
    errors_.reset(fds[0]);
    const FileDescriptor writing(fds[1]);
    fcntl(errors_.get(), F_SETFL, O_NONBLOCK);
    std::vector<std::string> variables;
    for (const auto& [name, value] : environment.all()) variables.push_back(cat(name, "=", value));
    if (geteuid() == 0) {
      for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}) {
        if (!environment.has(name)) variables.push_back(cat(name, "=1"));
      }
    }
    spawn(writing.get(), words, variables);
  }
  ~Mpirun() {
    if (ended_) return;
    kill(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Mpirun(const Mpirun&) = delete;
  Mpirun& operator=(const Mpirun&) = delete;

  int errors_fd() const { return errors_.get(); }
  void kill(int signal) {
    if (!ended_) ::kill(pid_, signal);
  }
  /// Its exit code (128 + signal) once it has ended.
  std::optional<int> try_reap() {
    int status = 0;
    if (!ended_ && waitpid(pid_, &status, WNOHANG) == pid_) {
      ended_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return ended_;
  }

 private:
  static std::vector<char*> pointers(std::vector<std::string>& words) {
    std::vector<char*> result;
    for (std::string& word : words) result.push_back(word.data());
    result.push_back(nullptr);
    return result;
  }

  void spawn(int errors, std::vector<std::string>& words, std::vector<std::string>& variables) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    sigset_t pipes;  // ignored here, as it ever was there
    sigemptyset(&pipes);
    sigaddset(&pipes, SIGPIPE);
    posix_spawnattr_setsigdefault(&attributes, &pipes);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    const int error = posix_spawnp(&pid_, words.front().c_str(), &actions, &attributes,
                                   pointers(words).data(), pointers(variables).data());
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (error == 0) return;
    ended_ = 127;
    throw Error(Reason::kNoDevice, cat("cannot start mpirun: ", std::strerror(error),
                                       "; install Open MPI (apt install openmpi-bin) or load its "
                                       "module, so that mpirun is in PATH"));
  }

  pid_t pid_ = 0;
  FileDescriptor errors_;
  std::optional<int> ended_;
};

/// What the user sees: bars or lines.
class Display {
 public:
  Display(ProgressStyle style, const Environment& environment) : style_(style) {
    const bool terminal =
        isatty(STDERR_FILENO) == 1 && environment.get("TERM").value_or("dumb") != "dumb";
    if (style == ProgressStyle::kBars || (style == ProgressStyle::kAuto && terminal)) {
      const bool plain = !environment.get("NO_COLOR").value_or("").empty();
      bars_ = std::make_unique<Bars>(STDERR_FILENO, plain ? Colour::kNo : Colour::kYes);
    }
  }

  void line(const std::string& text) {
    if (bars_) {
      bars_->scroll(text);
      return;
    }
    const std::string whole = text + "\n";
    std::fwrite(whole.data(), 1, whole.size(), stderr);
  }
  void row(const JobRow& row) {
    const auto known = std::find_if(rows_.begin(), rows_.end(),
                                    [&](const JobRow& old) { return old.name == row.name; });
    if (known != rows_.end()) {
      *known = row;
    } else {
      rows_.push_back(row);
    }
    changed_ = true;
  }
  /// Draws what changed; a summary a minute where there are no bars.
  void refresh(double now) {
    if (bars_ && changed_) bars_->show(rows_);
    changed_ = false;
    if (last_summary_ < 0) last_summary_ = now;
    if (bars_ || style_ == ProgressStyle::kNone || now - last_summary_ < kSummarySeconds) return;
    last_summary_ = now;
    for (const JobRow& row : rows_) {
      if (row.state != JobState::kRunning) continue;
      line(event_line(wall_clock_now(), row.name, progress_text(row)));
    }
  }
  /// The bars go: the summary follows on stdout.
  void end() { bars_.reset(); }

 private:
  ProgressStyle style_;
  std::unique_ptr<Bars> bars_;
  std::vector<JobRow> rows_;
  bool changed_ = false;
  double last_summary_ = -1;
};

/// HUP is none of them under nohup.
std::vector<int> stop_signals() {
  std::vector<int> signals = {SIGUSR1, SIGUSR2, SIGTERM, SIGINT};
  struct sigaction action {};
  sigaction(SIGHUP, nullptr, &action);
  if (action.sa_handler != SIG_IGN) signals.push_back(SIGHUP);
  return signals;
}

class Launch {
 public:
  Launch(const LaunchOptions& options, const Environment& environment)
      : options_(options),
        environment_(environment),
        display_(options.progress, environment),
        signals_(stop_signals()) {
    ignore_broken_pipes();  // the run goes on without its reader
  }

  int run() {
    const LaunchPlace place{own_executable(), count_cores(describe_processors(allowed_cpus())),
                            environment_.has("SLURM_JOB_ID")};
    if (geteuid() == 0 && !environment_.has("OMPI_ALLOW_RUN_AS_ROOT")) {
      display_.line("galley: running mpirun as root (a container?): OMPI_ALLOW_RUN_AS_ROOT is set");
    }
    mpirun_ = std::make_unique<Mpirun>(mpirun_line(options_, place), environment_);
    std::optional<int> ended;
    while (!ended) {
      wait();
      ended = mpirun_->try_reap();  // first: what it wrote before is in the pipe
      take_signals();
      read_errors();
      display_.refresh(monotonic_now());
      hurry();
    }
    read_errors();
    display_.end();
    return requeue(code_of(*ended));
  }

 private:
  void wait() const {
    pollfd entries[] = {{mpirun_->errors_fd(), POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
    if (errors_closed_) entries[0].fd = -1;
    poll(entries, 2, kPollMs);
  }

  void take_signals() {
    while (const std::optional<int> signal = signals_.take()) {
      const auto [order, is_new] = order_at_.try_emplace(*signal, monotonic_now());
      if (!is_new && monotonic_now() - order->second < kRepeatSeconds) continue;
      order->second = monotonic_now();
      ++signals_taken_;
      if (signals_taken_ == 2) impatient_since_ = monotonic_now();
      display_.line(event_line(wall_clock_now(), "",
                               signals_taken_ == 1
                                   ? cat("stopping, ", stop_cause(*signal),
                                         ": jobs checkpoint at their next step (again: at once)")
                                   : "stopping at once"));
    }
    // Before all ranks are up, mpirun would die of a signal; a moment later it may still swallow
    // it.
    const bool listening =
        first_record_at_ >= 0 && monotonic_now() - first_record_at_ > kListeningSeconds;
    while (listening && signals_passed_ < std::min(signals_taken_, 2)) {
      ++signals_passed_;
      mpirun_->kill(SIGUSR1);
      if (signals_passed_ < signals_taken_)
        return;  // two at once would merge: the other next round
    }
  }

  void read_errors() {
    char buffer[65536];
    for (;;) {
      const ssize_t count = read(mpirun_->errors_fd(), buffer, sizeof buffer);
      if (count <= 0) {
        if (count == 0) errors_closed_ = true;
        break;
      }
      pending_.append(buffer, static_cast<size_t>(count));
    }
    size_t start = 0;
    for (size_t end; (end = pending_.find('\n', start)) != std::string::npos; start = end + 1) {
      std::string line = pending_.substr(start, end - start);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (const std::optional<Json> record = parse_launch_record(line)) {
        on_record(*record);
      } else if (!code_) {
        display_.line(line);  // after the end mpirun only complains of the exit code
        mpirun_spoke_ = true;
      }
    }
    pending_.erase(0, start);
  }

  void on_record(const Json& record) {
    const std::string event = record.get_string("event");
    if (first_record_at_ < 0) first_record_at_ = monotonic_now();
    if (event == "directory") directory_.path = record.get_string("path");
    if (event == "line") {
      display_.line(
          event_line(wall_clock_now(), record.get_string("job"), record.get_string("text")));
    }
    if (event == "job") display_.row(job_row_from_json(record.at("row")));
    if (event == "summary") {
      display_.end();  // or the bars would take its lines away
      const std::string text = record.get_string("text");
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    }
    if (event == "end") {
      code_ = static_cast<int>(record.get_int("code"));
      ended_at_ = monotonic_now();
    }
    if (event == "goodbye") goodbye_at_ = monotonic_now();
  }

  /// An mpirun that does not come back is ended: a second INT makes it kill what is left at once.
  void hurry() {
    const double now = monotonic_now();
    const double patience = code_.value_or(0) == 0 ? kHangSeconds : kHangNonZeroSeconds;
    const bool hangs = goodbye_at_ >= 0 && now - goodbye_at_ > patience;
    const bool stuck = ended_at_ >= 0 && now - ended_at_ > kHangSeconds;
    const bool impatient = impatient_since_ >= 0 && now - impatient_since_ > kImpatientSeconds;
    if (!hangs && !stuck && !impatient) return;
    if (interrupts_ < 2 && now - interrupted_at_ > kInterruptSeconds) {
      ++interrupts_;
      interrupted_at_ = now;
      mpirun_->kill(SIGINT);
    } else if (now - interrupted_at_ > kKillSeconds) {
      mpirun_->kill(SIGKILL);
    }
  }

  int code_of(int mpirun_code) {
    if (code_) return *code_;
    const int again = reason_traits(Reason::kStopped).exit_code;
    if (!directory_.path.empty() && is_directory(directory_.path)) {
      const int code = read_exit_code(directory_.path);
      display_.line(cat("galley: mpirun ended with ", mpirun_code,
                        " before the run did; the same command continues it"));
      return code;
    }
    if (signals_taken_ > 0) return again;
    if (mpirun_code == 0) return reason_traits(Reason::kInternal).exit_code;
    // mpirun explains its own refusals; it is silent when a rank was killed while MPI started.
    if (!mpirun_spoke_ || mpirun_code == 128 + SIGKILL) {
      display_.line(
          cat("galley: mpirun ended with ", mpirun_code,
              " before the run began (was a rank killed?); the same command tries again"));
      return again;
    }
    return mpirun_code < 128 ? mpirun_code : reason_traits(Reason::kInternal).exit_code;
  }

  int requeue(int code) {
    if (!options_.requeue || code != reason_traits(Reason::kStopped).exit_code) return code;
    if (directory_.path.empty()) return code;
    const RequeueResult result = requeue_run(directory_, environment_, options_.max_requeues);
    display_.line(event_line(wall_clock_now(), "", result.text));
    return code;
  }

  const LaunchOptions& options_;
  const Environment& environment_;
  Display display_;
  SignalInbox signals_;
  std::unique_ptr<Mpirun> mpirun_;
  RunDirectory directory_;  // told by the run
  std::string pending_;     // of mpirun's stderr, an unfinished line
  bool errors_closed_ = false;
  bool mpirun_spoke_ = false;    // lines that are no records: mpirun's own, or a rank's last words
  double first_record_at_ = -1;  // MPI is up, the run reads signals
  std::map<int, double> order_at_;  // by signal
  int signals_taken_ = 0, signals_passed_ = 0;
  std::optional<int> code_;  // told by the run
  double ended_at_ = -1, goodbye_at_ = -1, impatient_since_ = -1;
  int interrupts_ = 0;
  double interrupted_at_ = -1;
};

}  // namespace

int launch_main(const LaunchOptions& options, const Environment& environment) {
  try {
    return Launch(options, environment).run();
  } catch (const Error& error) {
    std::fprintf(stderr, "galley: %s\n", error.what());
    return error.exit_code();
  }
}

}  // namespace galley::launcher
