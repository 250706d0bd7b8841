#include "launcher/requeue.h"

#include <signal.h>

#include "engine/core/file.h"
#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "launcher/command.h"

namespace galley::launcher {
namespace {

constexpr int kRequeueMs = 30000;

struct RequeueCount {
  int64_t steps = -1;  // saved when it was last requeued
  int in_a_row = 0;    // without a step more than that
};

RequeueCount read_count(const std::string& path) {
  RequeueCount count;
  Json json;
  JsonFault fault;
  if (!path_exists(path) || !parse_json(read_file(path), &json, &fault)) return count;
  count.steps = json.get_int("steps", -1);
  count.in_a_row = static_cast<int>(json.get_int("in_a_row"));
  return count;
}

}  // namespace

std::optional<bool> scontrol_requeue(const std::string& job_id) {
  const auto result = run_command({"scontrol", "requeue", job_id}, kRequeueMs);
  if (!result) return std::nullopt;
  // Slurm ends the job's processes as soon as it is requeued, scontrol among them.
  return result->exit_code == 0 || result->exit_code == 128 + SIGTERM ||
         result->exit_code == 128 + SIGKILL;
}

RequeueResult requeue_run(const RunDirectory& directory, const Environment& environment,
                          int max_in_a_row, const RequeueCommand& command) {
  const auto job = environment.get("SLURM_JOB_ID");
  if (!job) return {false, "not requeued: this is no Slurm job; start the same command again"};
  RequeueCount count = read_count(directory.requeues());
  const int64_t steps = saved_steps(directory);
  if (steps > count.steps) count.in_a_row = 0;
  if (count.in_a_row >= max_in_a_row) {
    return {false, cat("not requeued: ", count.in_a_row,
                       " starts in a row saved no new step; look at ", directory.logs())};
  }
  ++count.in_a_row;
  write_file_atomically(
      directory.requeues(),
      Json::object().set("steps", steps).set("in_a_row", count.in_a_row).dump_pretty());
  const std::optional<bool> done = command(*job);
  if (!done)
    return {false, "not requeued: there is no scontrol here; submit the same script again"};
  if (!*done) {
    return {false, cat("not requeued: scontrol requeue ", *job,
                       " failed (was the job submitted with --requeue?)")};
  }
  return {true, cat("requeued as Slurm job ", *job)};
}

}  // namespace galley::launcher
