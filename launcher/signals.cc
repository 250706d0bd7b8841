#include "launcher/signals.h"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::launcher {

std::string stop_cause(int signal) {
  switch (signal) {
    case SIGUSR1:
      return "on request";
    case SIGUSR2:
      return "signal USR2";
    case SIGTERM:
      return "signal TERM";
    case SIGINT:
      return "signal INT";
    case SIGHUP:
      return "signal HUP";
    default:
      return cat("signal ", signal);
  }
}

void ignore_broken_pipes() { signal(SIGPIPE, SIG_IGN); }

SignalInbox::SignalInbox(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  file_.reset(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!file_.valid()) throw_errno("create", "a signal descriptor", errno, Reason::kInternal);
}

SignalInbox::~SignalInbox() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

std::optional<int> SignalInbox::take() {
  signalfd_siginfo info;
  if (read(file_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) {
    return std::nullopt;
  }
  return static_cast<int>(info.ssi_signo);
}

}  // namespace galley::launcher
