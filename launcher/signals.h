// SignalInbox: signals as things to read, in the order of the loop, without handlers.
//
// The signals are blocked for the whole process from construction on (threads made later inherit
// that), so none is lost and none kills. One thread owns it.
#pragma once

#include <signal.h>

#include <optional>
#include <vector>

#include "engine/core/file.h"

namespace galley::launcher {

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
