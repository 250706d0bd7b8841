#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/core/clock.h"
#include "engine/core/error.h"
#include "engine/core/group_transport.h"
#include "engine/core/hash.h"
#include "engine/core/meeting_socket.h"
#include "engine/core/ring_transport.h"
#include "engine/core/strings.h"

namespace galley {

bool GroupMeeting::spans_nodes() const {
  return std::any_of(nodes.begin(), nodes.end(), [&](int node) { return node != nodes.front(); });
}

std::vector<int> GroupMeeting::local_ranks(int rank) const {
  std::vector<int> ranks;
  for (int i = 0; i < size(); ++i) {
    if (nodes[static_cast<size_t>(i)] == nodes.at(static_cast<size_t>(rank))) ranks.push_back(i);
  }
  return ranks;
}

namespace {

constexpr int kPollMs = 20;
constexpr size_t kMaxConnections = 256;  // strangers of the same user among them

/// What has been met for: the rings, and where the doorbells of this node's workers are.
struct Met {
  std::shared_ptr<GroupMemory> memory;
  std::vector<RelayRings> neighbours;
};

/// One member's part in a meeting.
class Join {
 public:
  Join(const GroupMeeting& meeting, int rank, const RelayRings* relay,
       const std::function<void()>& check, double seconds)
      : meeting_(meeting),
        rank_(rank),
        locals_(meeting.local_ranks(rank)),
        relay_(relay),
        check_(check),
        seconds_(seconds),
        deadline_s_(seconds_of(CLOCK_MONOTONIC) + seconds) {
    // The name can be seen by everybody on the machine, so the token itself is not in it.
    const int node = meeting.nodes[static_cast<size_t>(rank)];
    name_ = cat("galley-group-", hash128_hex(cat(meeting.token, " ", node)));
    head_ = cat("galley group 1\n", meeting.token, "\n", meeting.size(), " ", meeting.ring_bytes,
                " ", node, "\n");
  }

  Met meet() { return rank_ == locals_.front() ? receive_others() : visit_first(); }

 private:
  struct Guest {
    MeetingSocket socket;
    int rank = -1;  // not told yet
    FileDescriptor relay;
  };

  Met receive_others();
  void admit(MeetingSocket* door);
  bool hear(Guest* guest);
  bool all_have_come() const;
  Met hand_out();
  Met visit_first();
  std::optional<Met> ask(MeetingSocket* socket);

  /// Sleeps until one of them has something to read, or a little while.
  void pause(std::vector<pollfd> watched);
  std::string missing() const;

  const GroupMeeting& meeting_;
  const int rank_;
  const std::vector<int> locals_;
  const RelayRings* relay_;
  const std::function<void()>& check_;
  const double seconds_, deadline_s_;
  std::string name_, head_;
  std::vector<Guest> guests_;
};

void Join::pause(std::vector<pollfd> watched) {
  if (check_) check_();
  if (seconds_of(CLOCK_MONOTONIC) > deadline_s_) {
    throw Error(Reason::kWorkerDied,
                cat("worker ", rank_, " of a group has waited ", format_duration(seconds_), " for ",
                    missing(), " on its node; see whether they have been started"));
  }
  ::poll(watched.data(), watched.size(), kPollMs);
}

std::string Join::missing() const {
  if (rank_ != locals_.front()) return cat("worker ", locals_.front());
  std::vector<std::string> names;
  for (int local : locals_) {
    const bool here = std::any_of(guests_.begin(), guests_.end(),
                                  [&](const Guest& guest) { return guest.rank == local; });
    if (local != rank_ && !here) names.push_back(cat(local));
  }
  return cat(names.size() == 1 ? "worker " : "workers ", join(names, ", "));
}

Met Join::receive_others() {
  MeetingSocket door = MeetingSocket::listen(name_);
  while (!door.valid()) {
    pause({});
    door = MeetingSocket::listen(name_);
  }
  while (true) {
    admit(&door);
    std::erase_if(guests_, [&](Guest& guest) { return !hear(&guest); });
    if (all_have_come()) return hand_out();
    std::vector<pollfd> watched = {{door.fd(), POLLIN, 0}};
    for (const Guest& guest : guests_) watched.push_back({guest.socket.fd(), POLLIN, 0});
    pause(std::move(watched));
  }
}

void Join::admit(MeetingSocket* door) {
  for (MeetingSocket socket = door->accept(); socket.valid(); socket = door->accept()) {
    // The eldest of those who have said nothing makes room.
    const auto silent = std::find_if(guests_.begin(), guests_.end(),
                                     [](const Guest& guest) { return guest.rank < 0; });
    if (guests_.size() >= kMaxConnections && silent != guests_.end()) guests_.erase(silent);
    guests_.push_back({std::move(socket), -1, {}});
  }
}

/// False when a guest has gone or does not belong here.
bool Join::hear(Guest* guest) {
  MeetingPacket packet;
  switch (guest->socket.receive(&packet)) {
    case MeetingSocket::Received::kNothingYet:
      return true;
    case MeetingSocket::Received::kClosed:
      return false;
    case MeetingSocket::Received::kPacket:
      break;
  }
  const std::string_view text = packet.bytes;
  if (guest->rank >= 0 || !text.starts_with(head_)) return false;
  const std::optional<int64_t> rank = parse_int(text.substr(head_.size()));
  const size_t num_descriptors = relay_ != nullptr ? 1 : 0;
  if (!rank || packet.descriptors.size() != num_descriptors || *rank == rank_ ||
      std::find(locals_.begin(), locals_.end(), *rank) == locals_.end()) {
    return false;
  }
  // Who comes again has lost its first connection.
  for (Guest& other : guests_) {
    if (other.rank == *rank) other.rank = -1;
  }
  guest->rank = static_cast<int>(*rank);
  if (relay_ != nullptr) guest->relay = std::move(packet.descriptors.front());
  return true;
}

bool Join::all_have_come() const {
  const auto come = std::count_if(guests_.begin(), guests_.end(),
                                  [](const Guest& guest) { return guest.rank >= 0; });
  return static_cast<size_t>(come) + 1 == locals_.size();
}

Met Join::hand_out() {
  Met met;
  met.memory = std::make_shared<GroupMemory>(static_cast<int>(locals_.size()), meeting_.ring_bytes);
  std::sort(guests_.begin(), guests_.end(),
            [](const Guest& a, const Guest& b) { return a.rank < b.rank; });
  std::erase_if(guests_, [](const Guest& guest) { return guest.rank < 0; });
  std::vector<int> descriptors = {met.memory->fd()};
  if (relay_ != nullptr) {
    descriptors.push_back(relay_->fd());  // the own one: the lowest rank
    for (const Guest& guest : guests_) descriptors.push_back(guest.relay.get());
  }
  // Who is gone already will be missed by its agent.
  for (Guest& guest : guests_) guest.socket.send(head_, descriptors);
  if (relay_ != nullptr) {
    met.neighbours.push_back(RelayRings::open_doorbell(FileDescriptor(::dup(relay_->fd()))));
    for (Guest& guest : guests_) {
      met.neighbours.push_back(RelayRings::open_doorbell(std::move(guest.relay)));
    }
  }
  return met;
}

Met Join::visit_first() {
  MeetingSocket socket;
  while (true) {
    if (!socket.valid()) {
      socket = MeetingSocket::connect(name_);
      const std::string hello = cat(head_, rank_);
      std::vector<int> descriptors;
      if (relay_ != nullptr) descriptors.push_back(relay_->fd());
      if (socket.valid() && !socket.send(hello, descriptors)) socket = {};
    }
    if (socket.valid()) {
      if (std::optional<Met> met = ask(&socket)) return std::move(*met);
    }
    std::vector<pollfd> watched;
    if (socket.valid()) watched.push_back({socket.fd(), POLLIN, 0});
    pause(std::move(watched));
  }
}

/// What the first one hands out; nothing when it has not yet. Closes a socket that is of no use.
std::optional<Met> Join::ask(MeetingSocket* socket) {
  MeetingPacket packet;
  const MeetingSocket::Received received = socket->receive(&packet);
  if (received == MeetingSocket::Received::kNothingYet) return std::nullopt;
  const size_t wanted = 1 + (relay_ != nullptr ? locals_.size() : 0);
  if (received == MeetingSocket::Received::kClosed || packet.bytes != head_ ||
      packet.descriptors.size() != wanted) {
    *socket = {};
    return std::nullopt;
  }
  Met met;
  met.memory = std::make_shared<GroupMemory>(std::move(packet.descriptors.front()),
                                             static_cast<int>(locals_.size()), meeting_.ring_bytes);
  for (size_t i = 1; i < wanted; ++i) {
    met.neighbours.push_back(RelayRings::open_doorbell(std::move(packet.descriptors[i])));
  }
  return met;
}

}  // namespace

std::unique_ptr<GroupTransport> join_group(const GroupMeeting& meeting, int rank,
                                           FileDescriptor relay, const std::function<void()>& check,
                                           double seconds) {
  GALLEY_CHECK(rank >= 0 && rank < meeting.size());
  RingTransport::Parts parts;
  parts.rank = rank;
  const std::vector<int> locals = meeting.local_ranks(rank);
  parts.local_index.assign(static_cast<size_t>(meeting.size()), -1);
  for (size_t i = 0; i < locals.size(); ++i) {
    parts.local_index[static_cast<size_t>(locals[i])] = static_cast<int>(i);
  }
  if (meeting.spans_nodes()) {
    if (!relay.valid()) {
      throw Error(Reason::kInternal,
                  cat("worker ", rank, " of a group over several nodes was given no relay"));
    }
    parts.relay = std::make_unique<RelayRings>(RelayRings::open(std::move(relay)));
  }
  if (locals.size() > 1) {
    Met met = Join(meeting, rank, parts.relay.get(), check, seconds).meet();
    met.memory->close_descriptor();
    for (RelayRings& neighbour : met.neighbours) neighbour.close_descriptor();
    parts.memory = std::move(met.memory);
    parts.neighbours = std::move(met.neighbours);
  }
  if (parts.relay) parts.relay->close_descriptor();
  auto transport = std::make_unique<RingTransport>(std::move(parts));
  if (check) transport->set_wait_check(check);
  return transport;
}

}  // namespace galley
