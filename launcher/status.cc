#include "launcher/status.h"

#include <algorithm>

#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "launcher/table.h"

namespace galley::launcher {
namespace {

constexpr const char* kFormat = "galley-status-1";
constexpr double kSilentSeconds = 10;  // a run that lives would have written
constexpr double kFewMinutes = 120;
constexpr size_t kNameWidth = 40;
constexpr size_t kReasonWidth = 120;

/// "2 s ago", "in the future" for clocks that differ.
std::string ago(double seconds) {
  return seconds < 0 ? std::string("just now") : cat(format_duration(seconds), " ago");
}

std::string head_line(const std::string& directory, const FoundStatus& found, double now) {
  if (found.record) {
    return cat(directory, ": ended with code ", found.record->code, ": ", found.record->text, "\n");
  }
  if (!found.status) {
    return cat(directory, ": has not begun its jobs yet, or was ended before it did\n");
  }
  const RunStatus& status = *found.status;
  const double age = now - status.time;
  std::string line = cat(directory, ": start ", status.attempt, ", coordinated on ", status.host);
  if (!status.slurm_job.empty()) line += cat(", Slurm job ", status.slurm_job);
  line += cat(", as of ", ago(age), "\n");
  if (age > kSilentSeconds) {
    line += cat("no news for ", format_duration(age),
                age > kFewMinutes
                    ? ": the run was killed, or its file system does not answer; the same command "
                      "continues it\n"
                    : ": the run is busy, stopped, or was killed; the same command continues it\n");
  }
  return line;
}

std::string memory_of(uint64_t measured, uint64_t predicted) {
  if (measured == 0 && predicted == 0) return "-";
  const auto text = [](uint64_t bytes) {
    return bytes == 0 ? std::string("?") : format_bytes(static_cast<double>(bytes));
  };
  return cat(text(measured), " of ", text(predicted));
}

void add_job(const JobRow& row, Table* table) {
  const trainer::JobProgress& progress = row.progress;
  const bool running = row.state == JobState::kRunning;
  const bool ran = progress.step > 0 && progress.total_steps > 0;
  const std::string note = shortened(one_line(row.reason), kReasonWidth);
  table->add(
      {shortened(row.name, kNameWidth), std::string(job_state_name(row.state)),
       row.place.empty() ? "-" : row.place,
       ran ? cat(progress.step, "/", progress.total_steps) : "-",
       ran ? format("%.4f", progress.loss) : "-",
       running && progress.tokens_per_second > 0 ? format_count(progress.tokens_per_second) : "-",
       memory_of(row.attempt_peak_bytes, row.predicted_bytes),
       running && row.seconds_left >= 0 ? format_duration(row.seconds_left) : "-",
       cat(row.totals.restarts), row.state == JobState::kFinished ? row.adapter : note});
  for (const WorkerRow& worker : row.workers) {
    table->add({"", "", "  " + worker.place, "", "", "",
                memory_of(worker.peak_bytes, worker.predicted_bytes), "", "", ""});
  }
}

}  // namespace

Json to_json(const RunStatus& status) {
  Json jobs = Json::array();
  for (const JobRow& row : status.jobs) jobs.push(to_json(row));
  return Json::object()
      .set("format", kFormat)
      .set("time", status.time)
      .set("attempt", status.attempt)
      .set("host", status.host)
      .set("slurm_job", status.slurm_job)
      .set("jobs", jobs);
}

namespace {

RunStatus status_from_json(const Json& json) {
  RunStatus status;
  status.time = json.get_double("time");
  status.attempt = static_cast<int>(json.get_int("attempt"));
  status.host = json.get_string("host");
  status.slurm_job = json.get_string("slurm_job");
  for (const Json& row : json.at("jobs").as_array()) {
    status.jobs.push_back(job_row_from_json(row));
  }
  return status;
}

}  // namespace

FoundStatus read_status(const std::string& run_directory) {
  const RunDirectory directory{run_directory};
  if (!is_directory(run_directory) || !is_directory(run_directory + "/jobs")) {
    throw Error(
        Reason::kMissingPath,
        cat(run_directory, path_exists(run_directory) ? " is no run directory" : " does not exist",
            "; a run's directory is runs/ and the stem of its job file, or --run's name"));
  }
  FoundStatus found;
  found.record = read_run_record(directory);
  if (!path_exists(directory.status())) return found;
  const std::string broken =
      cat(directory.status(), " is broken; a run that goes on replaces it within seconds");
  const Json json =
      parse_json_or_throw(read_file(directory.status()), directory.status(), Reason::kBadData);
  if (!json.is_object()) throw Error(Reason::kBadData, broken);
  if (const Json* format = json.find("format");
      format == nullptr || !format->is_string() || format->as_string() != kFormat) {
    throw Error(Reason::kUnsupported, cat(directory.status(), " is of another version of galley (",
                                          format == nullptr ? "no format" : format->dump(), ")"));
  }
  try {
    found.status = status_from_json(json);
  } catch (const Error&) {  // a key that is missing or of another type
    throw Error(Reason::kBadData, broken);
  }
  return found;
}

std::string status_text(const std::string& run_directory, const FoundStatus& found, double now) {
  std::string text = head_line(run_directory, found, now);
  if (!found.status || found.status->jobs.empty()) return text;
  Table table({"job", "state", "on", "step", "loss", "tok/s", "memory (measured of predicted)",
               "left", "restarts", "adapter or reason"});
  for (const JobRow& row : found.status->jobs) add_job(row, &table);
  return text + table.text();
}

}  // namespace galley::launcher
