#include "launcher/worker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "launcher/process.h"
#include "launcher/worker.h"

namespace galley::launcher {
namespace {

constexpr std::array<std::string_view, 5> kLauncherPrefixes = {"OMPI_", "PMIX_", "PMI_", "ORTE_",
                                                               "PRTE_"};

bool belongs_to_launcher(std::string_view name) {
  for (const std::string_view prefix : kLauncherPrefixes) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// A copy that setting up the worker's own descriptors cannot overwrite.
FileDescriptor above_worker_fds(int fd) {
  if (fd < 0) return FileDescriptor();
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, kWorkerRelayFd + 1);
  if (copy < 0) throw_errno("copy", "a relay's descriptor", errno, Reason::kInternal);
  return FileDescriptor(copy);
}

/// What posix_spawn does between the parent and the program.
class SpawnSettings {
 public:
  /// `relay_fd`: above the descriptors that a worker gets by number; -1: none.
  SpawnSettings(int link_fd, int relay_fd, const std::string& output_file) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    const char* output = output_file.empty() ? "/dev/null" : output_file.c_str();
    posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, output,
                                     O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&actions_, STDOUT_FILENO, STDERR_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, link_fd, kWorkerLinkFd);
    if (relay_fd >= 0) posix_spawn_file_actions_adddup2(&actions_, relay_fd, kWorkerRelayFd);
    posix_spawnattr_init(&attributes_);
    sigset_t signals;
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attributes_, &signals);
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes_, &signals);
    posix_spawnattr_setpgroup(&attributes_, 0);  // or mpirun's signals reach the worker directly
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

class WorkerProcess : public RunningWorker {
 public:
  WorkerProcess(pid_t pid, FileDescriptor socket) : pid_(pid), link_(std::move(socket)) {}
  ~WorkerProcess() override {
    if (exit_) return;
    kill();
    waitpid(pid_, nullptr, 0);
  }

  Link& link() override { return link_; }
  void kill() override {
    if (!exit_) ::kill(-pid_, SIGKILL);
  }

  std::optional<WorkerExit> try_reap() override {
    if (exit_) return exit_;
    siginfo_t info{};
    // Look before reaping: while the pid is a zombie its group cannot be somebody else's.
    if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid != pid_) {
      return std::nullopt;
    }
    ::kill(-pid_, SIGKILL);
    int status = 0;
    waitpid(pid_, &status, 0);
    exit_ = WorkerExit{WIFEXITED(status) ? WEXITSTATUS(status) : 0,
                       WIFSIGNALED(status) ? WTERMSIG(status) : 0};
    return exit_;
  }

  uint64_t resident_bytes() override { return exit_ ? 0 : launcher::resident_bytes(pid_); }
  int pid() const override { return pid_; }

 private:
  pid_t pid_;
  Link link_;
  std::optional<WorkerExit> exit_;
};

}  // namespace

WorkerStarter process_starter(std::string program, Environment environment) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment.all()) {
    if (!belongs_to_launcher(name)) variables.push_back(cat(name, "=", value));
  }
  return [program = std::move(program), variables = std::move(variables)](
             const WorkerStart& start) -> std::unique_ptr<RunningWorker> {
    auto [own, theirs] = Link::make_sockets();
    std::vector<std::string> words = {"galley", "worker", "--parent", cat(getpid())};
    std::vector<std::string> copies = variables;
    const FileDescriptor relay = above_worker_fds(start.relay_fd);
    const SpawnSettings settings(theirs.get(), relay.get(), start.output_file);
    pid_t pid = 0;
    const int error = posix_spawn(&pid, program.c_str(), settings.actions(), settings.attributes(),
                                  pointers(words).data(), pointers(copies).data());
    if (error != 0) {
      throw_errno(cat("start a worker for ", start.job, " with output to"), start.output_file,
                  error, Reason::kInternal);
    }
    return std::make_unique<WorkerProcess>(pid, std::move(own));
  };
}

}  // namespace galley::launcher
