// AgentRelay: bytes between workers of a group on different nodes, through their agents.
//
// A worker writes frames into shared memory that its agent made (RelayPort); the agent sends them
// as bulk pieces to the agent of the worker that they are for, which hands them over. Nothing here
// waits. Owned by an agent, used by its thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/channel.h"
#include "engine/core/group_transport.h"

namespace galley::launcher {

class AgentRelay {
 public:
  /// `channel` must outlive the relay.
  explicit AgentRelay(Channel* channel) : channel_(channel) {}

  /// A worker of a group that spans nodes is about to start; `peers`: the agents' ranks by group
  /// rank. Returns the descriptor that it has to inherit; stays owned here.
  int open(int64_t group, int worker, std::vector<int> peers, uint64_t ring_bytes);
  /// The worker has been reaped: what it had written goes out, what comes for it is dropped.
  void close(int64_t group, int worker);
  /// A bulk piece has arrived. For a worker that is still to be assigned it is kept, for one that
  /// has ended it is dropped.
  void take(const std::string& bytes, double now);
  /// Moves what is there; true when something was.
  bool step(double now);
  /// No worker needs it.
  bool empty() const { return ports_.empty(); }
  /// Longest sleep that does not hold bytes up: short while they flow.
  double longest_sleep_s(double now) const;

 private:
  using Key = std::pair<int64_t, int>;  // group, worker
  struct Port {
    std::unique_ptr<RelayPort> port;
    std::vector<int> peers;
  };
  void send(const Key& from, const Port& port, RelayPort::Frame frame);
  void hand_over(int64_t group, int to, int from, std::string payload);

  Channel* channel_;
  std::map<Key, Port> ports_;
  std::map<Key, std::vector<std::string>> early_;  // pieces for workers of coming assignments
  Key newest_ = {-1, -1};                          // assigned so far; both numbers ascend
  double last_moved_ = -1;
};

}  // namespace galley::launcher
