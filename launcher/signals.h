// SignalInbox: signals as things to read, in the order of the loop, without handlers.
//
// The signals are blocked for the whole process from construction on (threads made later inherit
// that), so none is lost and none kills. One thread owns it.
#pragma once

#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "engine/core/file.h"

namespace galley::launcher {

/// What a stop by this signal is called: "on request" for USR1 (a user's, or what launch makes of
/// any signal of its own), else "signal TERM".
std::string stop_cause(int signal);
/// Writing to a closed pipe or terminal fails from here on instead of ending the process.
void ignore_broken_pipes();

class SignalInbox {
 public:
  explicit SignalInbox(const std::vector<int>& signals);
  ~SignalInbox();
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;
  /// The next signal that has come, or nothing.
  std::optional<int> take();
  int fd() const { return file_.get(); }

 private:
  sigset_t before_;
  FileDescriptor file_;
};

}  // namespace galley::launcher
