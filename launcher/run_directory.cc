#include "launcher/run_directory.h"

#include <algorithm>
#include <map>

#include "engine/core/file.h"
#include "engine/core/journal.h"
#include "engine/core/strings.h"
#include "launcher/process.h"
#include "launcher/run.h"

namespace galley::launcher {

void RunDirectory::create() const {
  for (const char* folder : {"logs", "inbox", "jobs", "tokens"}) {
    make_directories(path_join(path, folder));
  }
}

void write_run_record(const RunDirectory& directory, const RunRecord& record) {
  const Json json = Json::object()
                        .set("format", "galley-done-1")
                        .set("code", record.code)
                        .set("reason", std::string(reason_traits(record.reason).name))
                        .set("text", record.text)
                        .set("attempt", record.attempt)
                        .set("time", format_time_utc(wall_clock_now()));
  write_file_atomically(directory.record(), json.dump_pretty());
}

std::optional<RunRecord> read_run_record(const RunDirectory& directory) {
  if (!path_exists(directory.record())) return std::nullopt;
  Json json;
  JsonFault fault;
  if (!parse_json(read_file(directory.record()), &json, &fault)) return std::nullopt;
  const Json* code = json.find("code");
  if (code == nullptr || !code->is_int()) return std::nullopt;
  return RunRecord{.reason = reason_from_name(json.get_string("reason")),
                   .code = static_cast<int>(code->as_int()),
                   .text = json.get_string("text"),
                   .attempt = static_cast<int>(json.get_int("attempt"))};
}

int read_exit_code(const std::string& run_directory) {
  if (!is_directory(run_directory)) {
    throw Error(Reason::kMissingPath, cat("there is no run directory ", run_directory));
  }
  const std::optional<RunRecord> record = read_run_record(RunDirectory{run_directory});
  return record ? record->code : reason_traits(Reason::kStopped).exit_code;
}

int64_t saved_steps(const RunDirectory& directory) {
  std::map<std::string, int64_t> steps;
  for (const Json& record : read_journal(directory.journal())) {
    const std::string what = record.get_string("record");
    int64_t step = -1;
    if (what == "job-checkpointed") step = record.get_int("step");
    if (what == "job-finished") step = record.at("progress").get_int("step") + 1;
    if (step < 0) continue;
    int64_t& known = steps[record.get_string("job")];
    known = std::max(known, step);
  }
  int64_t sum = 0;
  for (const auto& [job, step] : steps) sum += step;
  return sum;
}

}  // namespace galley::launcher
