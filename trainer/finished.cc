#include "trainer/finished.h"

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/model/adapter_file.h"
#include "trainer/resume.h"

namespace galley::trainer {
namespace {

constexpr uint64_t kMaxRecordBytes = uint64_t{64} << 20;

std::string finished_path(const std::string& job_directory) {
  return path_join(job_directory, "finished.json");
}

}  // namespace

std::string adapter_directory(const std::string& job_directory) {
  return path_join(job_directory, "adapter");
}

void write_finished(const std::string& job_directory, const CheckpointRecord& record,
                    const JobResult& result) {
  const JobProgress& last = result.last;
  Json json = Json::object();
  json.set("record", to_json(record))
      .set("loss", last.loss)
      .set("gradient_norm", last.gradient_norm)
      .set("learning_rate", last.learning_rate)
      .set("epoch", last.epoch)
      .set("tokens_per_second", last.tokens_per_second)
      .set("planned_bytes", result.planned_bytes)
      .set("allocated_bytes", result.allocated_bytes);
  write_file_atomically(finished_path(job_directory), json.dump_pretty());
}

std::optional<JobResult> read_finished(const std::string& job_directory,
                                       const CheckpointRecord& now,
                                       const model::ModelConfig& config) {
  const std::string path = finished_path(job_directory);
  if (!path_exists(path)) return std::nullopt;
  Json json;
  CheckpointRecord record;
  try {
    json = parse_json_or_throw(read_file(path, kMaxRecordBytes), path, Reason::kBadCheckpoint);
    record = checkpoint_record_from_json(json.at("record"));
  } catch (const Error&) {
    return std::nullopt;  // a damaged note: the checkpoint decides
  }
  require_same_job(record, now, path);
  JobResult result;
  result.adapter_directory = adapter_directory(job_directory);
  try {
    model::read_adapter(result.adapter_directory, config);
  } catch (const Error&) {
    return std::nullopt;  // the adapter is gone or damaged: written again from the checkpoint
  }
  result.last.step = record.step;
  result.last.total_steps = record.schedule.total_steps;
  result.last.checkpoint_step = record.step;
  result.last.loss = json.get_double("loss");
  result.last.gradient_norm = json.get_double("gradient_norm");
  result.last.learning_rate = json.get_double("learning_rate");
  result.last.epoch = json.get_double("epoch");
  result.last.tokens_per_second = json.get_double("tokens_per_second");
  result.planned_bytes = static_cast<uint64_t>(json.get_int("planned_bytes"));
  result.allocated_bytes = static_cast<uint64_t>(json.get_int("allocated_bytes"));
  result.last.allocated_bytes = result.allocated_bytes;
  return result;
}

}  // namespace galley::trainer
