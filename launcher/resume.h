// What an earlier start of the same run left: attempts, totals, finished jobs. Reads the journal
// and the job directories; writes nothing.
#pragma once

#include <vector>

#include "engine/core/json.h"
#include "launcher/coordinator.h"
#include "launcher/run_directory.h"

namespace galley::launcher {

/// Number of earlier starts in a journal.
int num_run_starts(const std::vector<Json>& journal);
/// The jobs as the coordinator takes them. A job is finished when the journal says so and its
/// adapter still reads; `adapter_is_valid` decides the latter.
std::vector<CoordinatorJob> resume_jobs(
    const std::vector<PreparedJob>& jobs, const RunDirectory& directory,
    const std::vector<Json>& journal,
    const std::function<bool(const PreparedJob&, const std::string& folder)>& adapter_is_valid,
    const std::function<int64_t(const std::string& job_directory)>& newest_checkpoint);
/// True when `folder` holds an adapter of this job's model that reads back.
bool adapter_reads(const PreparedJob& job, const std::string& folder);

}  // namespace galley::launcher
