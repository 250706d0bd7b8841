#include "launcher/lock.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "launcher/command.h"
#include "launcher/process.h"

namespace galley::launcher {
namespace {

constexpr double kBeatSeconds = 30;
constexpr int kQuestionMs = 15000;

Json own_entry(const Environment& environment) {
  return Json::object()
      .set("host", host_name())
      .set("pid", static_cast<int64_t>(getpid()))
      .set("started", static_cast<int64_t>(process_start_ticks(getpid()).value_or(0)))
      .set("slurm_job", environment.get("SLURM_JOB_ID").value_or(""))
      .set("slurm_restart", environment.get("SLURM_RESTART_COUNT").value_or("0"))
      .set("heartbeat", format_time_utc(wall_clock_now()));
}

std::optional<Json> read_owner(const std::string& path) {
  const std::string file = path_join(path, "owner.json");
  if (!path_exists(file)) return std::nullopt;
  Json owner;
  JsonFault fault;
  if (!parse_json(read_file(file), &owner, &fault)) return std::nullopt;
  return owner;
}

std::string describe(const Json& owner) {
  std::string text = cat("process ", owner.get_int("pid"), " on ", owner.get_string("host"));
  const std::string job = owner.get_string("slurm_job");
  if (!job.empty()) text += cat(" (Slurm job ", job, ")");
  return cat(text, ", last seen ", owner.get_string("heartbeat"));
}

/// True: gone. False: alive. Nothing: cannot be known from here.
std::optional<bool> owner_is_gone(const Json& owner, const Json& self,
                                  const SlurmJobQuestion& question) {
  if (owner.get_string("host") == self.get_string("host")) {
    const auto started = process_start_ticks(static_cast<pid_t>(owner.get_int("pid")));
    return !started || static_cast<int64_t>(*started) != owner.get_int("started");
  }
  const std::string job = owner.get_string("slurm_job");
  if (job.empty()) return std::nullopt;
  if (job == self.get_string("slurm_job")) {
    // An earlier start of this very job is over; the same start on another node is not.
    if (owner.get_string("slurm_restart") != self.get_string("slurm_restart")) return true;
    return std::nullopt;
  }
  const std::optional<bool> runs = question(job);
  return runs ? std::optional<bool>(!*runs) : std::nullopt;
}

void remove_lock(const std::string& path) {
  remove_file_if_exists(path_join(path, "owner.json"));
  rmdir(path.c_str());
}

}  // namespace

std::optional<bool> slurm_job_runs(const std::string& job_id) {
  const auto result = run_command({"squeue", "-h", "-o", "%T", "-j", job_id}, kQuestionMs);
  if (!result) return std::nullopt;
  // An id that Slurm has forgotten is an error of squeue; so is a controller that does not answer.
  if (result->exit_code != 0) {
    const auto answer = run_command({"squeue", "-h", "-o", "%T", "--me"}, kQuestionMs);
    return answer && answer->exit_code == 0 ? std::optional<bool>(false) : std::nullopt;
  }
  const std::string state(trim(result->output));
  return state == "RUNNING" || state == "SUSPENDED" || state == "COMPLETING" || state == "STOPPED";
}

RunLock::RunLock(std::string path, const Environment& environment, const SlurmJobQuestion& question)
    : path_(std::move(path)), owner_(own_entry(environment)) {
  constexpr int kTries = 3;
  for (int i = 0; i < kTries; ++i) {
    if (try_take()) return;
    const std::optional<Json> owner = read_owner(path_);
    if (!owner) continue;  // just released
    const std::optional<bool> gone = owner_is_gone(*owner, owner_, question);
    if (gone != true) {
      throw Error(Reason::kCannotCreate,
                  cat("this run directory is in use by ", describe(*owner),
                      gone ? "; wait for it, or use --run NAME for a second run"
                           : cat("; nothing here can tell whether it still lives: if it does not, "
                                 "remove ",
                                 path_)));
    }
    // Only one of several takers moves a stale lock away.
    const std::string stale = temporary_beside(path_);
    if (rename(path_.c_str(), stale.c_str()) == 0) remove_lock(stale);
  }
  throw Error(Reason::kCannotCreate, cat("cannot take the lock ", path_, "; try again"));
}

bool RunLock::try_take() {
  const std::string prepared = temporary_beside(path_);
  make_directories(prepared);
  write_owner(prepared);
  if (rename(prepared.c_str(), path_.c_str()) == 0) return true;
  const int error = errno;
  remove_lock(prepared);
  if (error == ENOTEMPTY || error == EEXIST) return false;
  throw_errno("create", path_, error, Reason::kCannotCreate);
}

void RunLock::write_owner(const std::string& folder) const {
  write_file_atomically(path_join(folder, "owner.json"), owner_.dump_pretty());
}

void RunLock::beat(double now) {
  if (now - last_beat_ < kBeatSeconds) return;
  last_beat_ = now;
  owner_.set("heartbeat", format_time_utc(wall_clock_now()));
  write_owner(path_);
}

RunLock::~RunLock() {
  try {
    remove_lock(path_);
  } catch (const Error&) {
    // A lock that cannot be removed is stale as soon as this process has ended.
  }
}

}  // namespace galley::launcher
