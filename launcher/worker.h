// Worker: the process that does a job's work, seen from inside. It never loads MPI.
//
// The main thread runs the job; a side thread beats. Both share the link under one lock. A worker
// of a group meets the others first. It ends when its job ends, when the agent is gone, or when
// another one of its group has failed.
#pragma once

#include <functional>

#include "engine/core/file.h"
#include "trainer/run_job.h"

namespace galley::launcher {

/// What a worker does with its assignment; trainer::run_job in the product.
using JobFunction = std::function<trainer::JobResult(const trainer::TrainAssignment&,
                                                     trainer::JobEvents&, GroupTransport*)>;

/// File descriptors in a worker process: the link, and the memory of its RelayPort, which is there
/// when its group spans nodes.
constexpr int kWorkerLinkFd = 3;
constexpr int kWorkerRelayFd = 4;

/// Takes one assignment from the link, joins its group, runs it, reports how it ended. `open_relay`
/// is asked for the relay's memory when the group spans nodes. Returns the exit code.
int serve_link(FileDescriptor link, const std::function<FileDescriptor()>& open_relay,
               const JobFunction& job);

/// Main of a worker process: argv is {program, "worker", "--parent", PID}. Dies with its parent,
/// offers itself to the out-of-memory killer first, then serves the link at kWorkerLinkFd.
int worker_process_main(int argc, char** argv, const JobFunction& job);

}  // namespace galley::launcher
