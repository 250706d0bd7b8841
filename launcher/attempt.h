// Attempt: one start of a job on a group of workers, from the first assignment to the last reaping.
//
// Knows who runs and who has ended how, when the rest has to be ended, whose failure it was, and
// what became of the job. A worker alone is a group of one. Pure; owned by the coordinator.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/json.h"
#include "placement/cluster.h"

namespace galley::launcher {

/// Who is to blame for a worker's end.
enum class Blame {
  kWorker,  // it died, hung or failed by itself
  kPeer,    // it only found that another one of its group is gone
  kOrder,   // the coordinator had it ended
};
std::string_view blame_name(Blame blame);
/// kWorker for an unknown name.
Blame blame_from_name(std::string_view name);

/// One worker of a group.
struct Member {
  int rank = -1;  // its agent
  placement::GpuIndex gpu = 0;
  std::string host;
  std::vector<int> cpus;
  bool ended = false;          // reaped, or gone with its agent
  double waiting_since = -1;   // for its peers; -1: it works
  std::string what;            // its last sign of progress, as far as told
  uint64_t peak_bytes = 0;     // measured
  uint64_t planned_bytes = 0;  // as the worker said at its end
  uint64_t allocated_bytes = 0;
};

class Attempt {
 public:
  enum class Outcome { kFinished, kStopped, kFailed };
  struct Failure {
    int worker = -1;  // -1: no single one
    Reason reason = Reason::kInternal;
    std::string text;
    Blame blame = Blame::kWorker;
  };

  Attempt() = default;
  /// `id`: of this start among all of the run, ascending.
  Attempt(int64_t id, std::vector<Member> members, double now)
      : id_(id), members_(std::move(members)), started_at_(now) {}

  int64_t id() const { return id_; }
  double started_at() const { return started_at_; }
  const std::vector<Member>& members() const { return members_; }
  int size() const { return static_cast<int>(members_.size()); }
  Member& member(int worker) { return members_.at(static_cast<size_t>(worker)); }
  /// A worker has been reaped; `last_word` is its "job-ended" message.
  void end(int worker, const Json& last_word, double now);
  /// Workers under this agent are gone with it. False when it had none that ran.
  bool lose_agent(int rank, double now);
  /// Ends the group as a whole, for no worker's fault.
  void fail(Reason reason, const std::string& text, double now);

  /// Somebody has failed, so that the rest has to be ended: at once when it is known who, else
  /// after a second in which the one to blame may still be heard.
  bool must_end_rest(double now) const;
  void rest_is_told() { rest_told_ = true; }
  /// Every worker that runs waits for another one; since when. Nobody works then.
  std::optional<double> all_wait_since() const;
  /// A worker that others have waited for since `before` while it works itself; -1: none.
  int late_worker(double before) const;

  bool all_ended() const;
  /// The leader's word counts; without one the job has failed. Only when all have ended.
  Outcome outcome() const;
  const Json& leader_word() const { return leader_word_; }
  /// The first failure of a worker's own; else the first that was noticed.
  const Failure& failure() const { return *failure_; }

 private:
  void note_failure(Failure failure, double now);

  int64_t id_ = 0;
  std::vector<Member> members_;
  double started_at_ = 0;
  Json leader_word_;  // finished or stopped
  std::optional<Failure> failure_;
  double failed_at_ = 0;
  bool rest_told_ = false;
};

}  // namespace galley::launcher
