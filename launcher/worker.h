// Worker: the process that does a job's work, seen from inside. It never loads MPI.
//
// The main thread runs the job; a side thread beats. Both share the link under one lock. The worker
// ends when its job ends or when the agent is gone.
#pragma once

#include <functional>

#include "engine/core/file.h"
#include "trainer/run_job.h"

namespace galley::launcher {

/// What a worker does with its assignment; trainer::run_job in the product.
using JobFunction =
    std::function<trainer::JobResult(const trainer::TrainAssignment&, trainer::JobEvents&)>;

/// File descriptor of the link in a worker process.
constexpr int kWorkerLinkFd = 3;

/// Takes one assignment from the link, runs it, reports how it ended. Returns the exit code.
int serve_link(FileDescriptor link, const JobFunction& job);

/// Main of a worker process: argv is {program, "worker", "--parent", PID}. Dies with its parent,
/// offers itself to the out-of-memory killer first, then serves the link at kWorkerLinkFd.
int worker_process_main(int argc, char** argv, const JobFunction& job);

}  // namespace galley::launcher
