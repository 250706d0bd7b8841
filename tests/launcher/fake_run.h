// A run with made-up jobs: everything of the launcher is real but the training.
//
// A job file has one line per job: NAME STEPS MILLISECONDS_PER_STEP GIB. A fake job sleeps through
// its steps, keeps its checkpoint in a small file, and writes "steps seen" for the tests to check.
// Placement: the smallest free GPU with enough memory. A job "tp2-...", "pp2-..." or "dp2-..." is a
// group of so many workers on the first free GPUs, who hand each other a number at every step.
#pragma once

#include <memory>
#include <string>

#include "launcher/rank.h"
#include "launcher/worker.h"

namespace galley::launcher::testing {

/// Special names: "die-N" kills itself before step N in its first attempt; "die-always"; "hang"
/// stops making progress after step 2 in its first attempt; "bad" throws kNumerics; "full" throws
/// kDiskFull.
trainer::JobResult fake_job(const trainer::TrainAssignment& assignment, trainer::JobEvents& events,
                            GroupTransport* transport);

PreparedJob fake_prepared_job(const std::string& name, int64_t steps, double step_ms, double gib);
std::unique_ptr<placement::Policy> fake_policy();
/// Parts that read such a job file; runs live in `runs`.
RunParts fake_parts(const std::string& runs);
/// Step of a fake job's checkpoint; -1: none.
int64_t fake_checkpoint_step(const std::string& job_directory);
/// Cluster of nodes n1, n2, ... each with GPUs of these GiB.
placement::Cluster fake_cluster(const std::vector<std::vector<double>>& gib_of_nodes);

}  // namespace galley::launcher::testing
