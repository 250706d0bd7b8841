#include "launcher/attempt.h"

#include <algorithm>
#include <utility>

namespace galley::launcher {
namespace {

constexpr double kGraceSeconds = 1;  // for the one to blame to be heard after its peers

}  // namespace

std::string_view blame_name(Blame blame) {
  switch (blame) {
    case Blame::kPeer:
      return "peer";
    case Blame::kOrder:
      return "order";
    case Blame::kWorker:
      break;
  }
  return "worker";
}

Blame blame_from_name(std::string_view name) {
  for (const Blame blame : {Blame::kPeer, Blame::kOrder}) {
    if (blame_name(blame) == name) return blame;
  }
  return Blame::kWorker;
}

void Attempt::end(int worker, const Json& last_word, double now) {
  Member& ended = member(worker);
  ended.ended = true;
  ended.waiting_since = -1;
  ended.planned_bytes = static_cast<uint64_t>(last_word.get_int("planned_bytes"));
  ended.allocated_bytes = static_cast<uint64_t>(last_word.get_int("allocated_bytes"));
  if (last_word.get_string("outcome") == "failed") {
    note_failure({worker, reason_from_name(last_word.get_string("reason", "internal")),
                  last_word.get_string("text"), blame_from_name(last_word.get_string("blame"))},
                 now);
  } else if (worker == 0) {
    leader_word_ = last_word;
  }
}

bool Attempt::lose_agent(int rank, double now) {
  bool found = false;
  for (int worker = 0; worker < size(); ++worker) {
    if (member(worker).ended || member(worker).rank != rank) continue;
    found = true;
    member(worker).ended = true;
    note_failure({worker, Reason::kAgentLost, "is gone with its agent", Blame::kWorker}, now);
  }
  return found;
}

void Attempt::fail(Reason reason, const std::string& text, double now) {
  note_failure({-1, reason, text, Blame::kPeer}, now);
}

void Attempt::note_failure(Failure failure, double now) {
  if (!failure_) failed_at_ = now;
  // What follows from a failure (peers that give up, the order to end) does not hide it.
  if (!failure_ || failure.blame < failure_->blame) failure_ = std::move(failure);
}

bool Attempt::must_end_rest(double now) const {
  if (rest_told_ || !failure_ || all_ended()) return false;
  return failure_->blame == Blame::kWorker || failure_->worker < 0 ||
         now - failed_at_ >= kGraceSeconds;
}

std::optional<double> Attempt::all_wait_since() const {
  std::optional<double> since;
  for (const Member& member : members_) {
    if (member.ended) continue;
    if (member.waiting_since < 0) return std::nullopt;
    since = std::max(since.value_or(0), member.waiting_since);
  }
  return since;
}

int Attempt::late_worker(double before) const {
  int late = -1;
  bool waits = false;
  for (int worker = 0; worker < size(); ++worker) {
    const Member& member = members_[static_cast<size_t>(worker)];
    if (member.ended) continue;
    if (member.waiting_since < 0) {
      late = late < 0 ? worker : late;
    } else {
      waits = waits || member.waiting_since <= before;
    }
  }
  return waits ? late : -1;
}

bool Attempt::all_ended() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.ended; });
}

Attempt::Outcome Attempt::outcome() const {
  if (leader_word_.is_null()) return Outcome::kFailed;
  return leader_word_.get_string("outcome") == "finished" ? Outcome::kFinished : Outcome::kStopped;
}

}  // namespace galley::launcher
