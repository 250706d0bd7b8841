// finished.json of a job directory: written after the adapter is in place, so that the same command
// again reports the job as done instead of doing it twice.
#pragma once

#include <optional>
#include <string>

#include "trainer/checkpoint.h"
#include "trainer/run_job.h"

namespace galley::trainer {

/// JOB/adapter
std::string adapter_directory(const std::string& job_directory);

void write_finished(const std::string& job_directory, const CheckpointRecord& record,
                    const JobResult& result);

/// The result of a job that was finished with these inputs and whose adapter is whole; nothing when
/// it must still be done (or its adapter written again). Error(kBadCheckpoint) when it was finished
/// with other inputs.
std::optional<JobResult> read_finished(const std::string& job_directory,
                                       const CheckpointRecord& now,
                                       const model::ModelConfig& config);

}  // namespace galley::trainer
