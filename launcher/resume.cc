#include "launcher/resume.h"

#include <algorithm>

#include "engine/core/file.h"
#include "engine/model/adapter_file.h"
#include "launcher/protocol.h"

namespace galley::launcher {
namespace {

void take_record(const Json& record, CoordinatorJob* job) {
  const std::string what = record.get_string("record");
  JobTotals& totals = job->totals;
  totals.attempts = std::max(totals.attempts, static_cast<int>(record.get_int("attempt")));
  totals.restarts = std::max(totals.restarts, static_cast<int>(record.get_int("restarts")));
  totals.gpu_seconds = std::max(totals.gpu_seconds, record.get_double("gpu_seconds"));
  totals.tokens = std::max(totals.tokens, record.get_int("tokens"));
  totals.peak_bytes =
      std::max(totals.peak_bytes, static_cast<uint64_t>(record.get_int("peak_bytes")));
  if (what == "job-assigned") {
    job->finished = false;
    const Json& placement = record.at("placement");
    job->place = record.get_string("place");
    job->predicted_bytes = static_cast<uint64_t>(placement.get_int("predicted_bytes"));
    job->low_bytes = static_cast<uint64_t>(placement.get_int("low_bytes"));
    job->high_bytes = static_cast<uint64_t>(placement.get_int("high_bytes"));
  }
  if (what == "job-finished") {
    job->finished = true;
    job->last = progress_from_json(record.at("progress"));
  }
}

}  // namespace

int num_run_starts(const std::vector<Json>& journal) {
  return static_cast<int>(std::count_if(journal.begin(), journal.end(), [](const Json& record) {
    return record.get_string("record") == "run-started";
  }));
}

std::vector<CoordinatorJob> resume_jobs(
    const std::vector<PreparedJob>& jobs, const RunDirectory& directory,
    const std::vector<Json>& journal,
    const std::function<bool(const PreparedJob&, const std::string& folder)>& adapter_is_valid,
    const std::function<int64_t(const std::string& job_directory)>& newest_checkpoint) {
  std::vector<CoordinatorJob> result;
  for (const PreparedJob& prepared : jobs) {
    CoordinatorJob job;
    job.prepared = prepared;
    job.directory = directory.job(prepared.spec.name);
    for (const Json& record : journal) {
      if (record.get_string("job") == prepared.spec.name) take_record(record, &job);
    }
    if (job.finished) job.finished = adapter_is_valid(prepared, job.directory + "/adapter");
    if (!job.finished && is_directory(job.directory)) {
      job.checkpoint_step = newest_checkpoint(job.directory);
    }
    result.push_back(std::move(job));
  }
  return result;
}

bool adapter_reads(const PreparedJob& job, const std::string& folder) {
  try {
    model::read_adapter(folder, job.config);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace galley::launcher
