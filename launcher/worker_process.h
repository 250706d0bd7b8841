// RunningWorker: a worker as its agent sees it, and how worker processes are started and ended.
//
// Two implementations: a process of its own (the product) and a thread (tests). Owned and used by
// the agent's thread, which must be the process's main thread: workers die with the thread that
// started them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/core/env.h"
#include "engine/core/link.h"

namespace galley::launcher {

/// How a worker's process ended.
struct WorkerExit {
  int exit_code = 0;  // when signal is 0
  int signal = 0;
};

class RunningWorker {
 public:
  virtual ~RunningWorker() = default;
  virtual Link& link() = 0;
  /// SIGKILL to its whole process group; nothing happens when it has ended.
  virtual void kill() = 0;
  /// How it ended, once it has; its group is killed and it is reaped then. Does not wait.
  virtual std::optional<WorkerExit> try_reap() = 0;
  /// RssAnon + RssShmem now; 0 when it has ended.
  virtual uint64_t resident_bytes() = 0;
  virtual int pid() const = 0;
};

struct WorkerStart {
  std::string job;
  std::string output_file;  // stdout and stderr of the process; empty: /dev/null
  int relay_fd = -1;        // memory of its RelayPort, to inherit; -1: its group is on one node
};
/// Starts a worker that waits for its assignment on the link. Error(kInternal, kIo, ...).
using WorkerStarter = std::function<std::unique_ptr<RunningWorker>(const WorkerStart&)>;

/// Starts `program worker --parent PID` by posix_spawn: own process group, signals reset, nothing
/// of the MPI launcher's in its environment, stdin from /dev/null.
WorkerStarter process_starter(std::string program, Environment environment);

}  // namespace galley::launcher
