#include "launcher/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/core/file.h"
#include "launcher/process.h"

extern char** environ;  // handed on unread

namespace galley::launcher {
namespace {

/// Reads until end of file or `end`; false when time ran out.
bool read_until(int fd, double end, std::string* output) {
  for (;;) {
    const int left_ms = static_cast<int>((end - monotonic_now()) * 1e3);
    pollfd entry{fd, POLLIN, 0};
    if (left_ms <= 0 || poll(&entry, 1, left_ms) <= 0) return false;
    char buffer[4096];
    const ssize_t count = read(fd, buffer, sizeof buffer);
    if (count <= 0) return true;
    output->append(buffer, static_cast<size_t>(count));
  }
}

}  // namespace

std::optional<CommandResult> run_command(const std::vector<std::string>& words, int timeout_ms) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return std::nullopt;
  const FileDescriptor reading(fds[0]);
  FileDescriptor writing(fds[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, writing.get(), STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::vector<std::string> copies = words;
  std::vector<char*> arguments;
  for (std::string& word : copies) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int error =
      posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  writing.reset();
  if (error != 0) return std::nullopt;
  CommandResult result;
  const bool in_time =
      read_until(reading.get(), monotonic_now() + timeout_ms * 1e-3, &result.output);
  if (!in_time) kill(pid, SIGKILL);
  int status = 0;
  waitpid(pid, &status, 0);
  if (!in_time) return std::nullopt;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace galley::launcher
