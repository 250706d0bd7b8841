// GroupTransport: byte streams between the workers of one group. Never MPI, never a port.
//
// One stream for each ordered pair of workers, in order, without frames. Three makers: threads of
// one process (tests, local runs); processes of one node through rings in one anonymous shared
// memory; and, for workers on other nodes, a relay through the agents (RelayPort is their end).
// Owned by the worker's thread; abort() may be called by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/file.h"
#include "engine/core/pending_sends.h"

namespace galley {

class GroupTransport {
 public:
  virtual ~GroupTransport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Takes as many of the bytes as there is room for now; returns how many.
  virtual size_t try_write(int to, const void* data, size_t bytes) = 0;
  /// The bytes that have arrived from a peer and lie in one piece, in place; empty when none. Valid
  /// until consume(), or until the next call for a peer of whom nothing had arrived.
  virtual std::span<const std::byte> readable(int from) = 0;
  virtual void consume(int from, size_t bytes) = 0;
  /// Sleeps until a peer has written to or read from a ring of this worker, or a short time has
  /// passed; spins a little before. Calls the wait check. Error(kWorkerDied) after abort().
  virtual void wait() = 0;
  /// Every wait of this worker, now or later, ends with Error(kWorkerDied).
  virtual void abort() noexcept = 0;
  /// Called in waits, at least four times a second; may throw to end the wait. Replaces the one
  /// before.
  virtual void set_wait_check(std::function<void()> check) = 0;
  /// Bytes of shared memory that this worker maps, rings of all peers of its node included.
  virtual uint64_t shared_bytes() const = 0;

  /// What has been sent and does not lie in the rings yet, of all who send over this transport.
  PendingSends& sends() { return sends_; }

 private:
  PendingSends sends_;
};

/// A group of `size` threads of this process. abort() of one ends the waits of all.
std::vector<std::unique_ptr<GroupTransport>> make_thread_transports(int size, size_t ring_bytes);

/// Bytes of a ring for messages of `message_bytes`: large enough for one whole message, so that a
/// send need not wait for its receiver, within limits.
size_t group_ring_bytes(uint64_t message_bytes);
/// Bytes of the shared memory of `workers_on_node` workers of one group on one node (0 for one) ...
uint64_t group_memory_bytes(int workers_on_node, size_t ring_bytes);
/// ... and of a worker's two relay rings.
uint64_t relay_memory_bytes(size_t ring_bytes);

/// How the processes of a group find each other. A value; sent to every member.
struct GroupMeeting {
  std::string token;       // random, of this attempt only; not told to anybody else
  std::vector<int> nodes;  // by group rank: index of its node; two emulated nodes differ
  uint64_t ring_bytes = 0;
  int size() const { return static_cast<int>(nodes.size()); }
  bool spans_nodes() const;
  /// Ranks on the node of `rank`, in order.
  std::vector<int> local_ranks(int rank) const;
};

/// Meets the members of this node: the lowest of them makes the shared memory and hands it out over
/// an abstract unix socket named by the token (same user only), the others come for it. `relay`:
/// the memory of a RelayPort, needed when the group spans nodes. `check` as in set_wait_check().
/// Error(kWorkerDied) when they have not met within `seconds`.
std::unique_ptr<GroupTransport> join_group(const GroupMeeting& meeting, int rank,
                                           FileDescriptor relay, const std::function<void()>& check,
                                           double seconds);

/// The agent's end of a worker's relay: frames from the worker to peers on other nodes, and back.
/// One thread.
class RelayPort {
 public:
  struct Frame {
    int peer = 0;  // group rank: to (from the worker), from (to the worker)
    std::string bytes;
  };
  /// Makes the shared memory.
  explicit RelayPort(size_t ring_bytes);
  ~RelayPort();
  RelayPort(const RelayPort&) = delete;
  RelayPort& operator=(const RelayPort&) = delete;
  /// Descriptor for the worker to inherit; stays owned by the port.
  int fd() const;
  /// The next frame of the worker, or nothing.
  std::optional<Frame> pop();
  /// Queues bytes of a peer for the worker and hands over what its ring takes now.
  void push(int from, std::string bytes);
  /// Hands over more; true when something moved.
  bool flush();
  /// Bytes queued here because the worker's ring was full.
  uint64_t queued_bytes() const;

 private:
  struct Rings;
  std::unique_ptr<Rings> rings_;
};

}  // namespace galley
