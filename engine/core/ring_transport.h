// RingTransport: the one GroupTransport. Peers of this node are reached through rings in shared
// memory (of threads or of processes), all others through the rings of a relay.
//
// Owned by the worker's thread; abort() by any.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "engine/core/group_memory.h"
#include "engine/core/group_transport.h"
#include "engine/core/relay_rings.h"

namespace galley {

class RingTransport : public GroupTransport {
 public:
  struct Parts {
    int rank = 0;
    std::vector<int> local_index;  // by group rank: among the workers of this node; -1: elsewhere
    std::shared_ptr<GroupMemory> memory;  // of all threads of one process, or null: alone here
    std::unique_ptr<RelayRings> relay;    // or null: nobody is elsewhere
    std::vector<RelayRings> neighbours;   // by local index: where doorbells are, if in relays
  };
  explicit RingTransport(Parts parts);

  int rank() const override { return parts_.rank; }
  int size() const override { return static_cast<int>(peers_.size()); }
  size_t try_write(int to, const void* data, size_t bytes) override;
  std::span<const std::byte> readable(int from) override;
  void consume(int from, size_t bytes) override;
  void wait() override;
  void abort() noexcept override;
  void set_wait_check(std::function<void()> check) override;
  uint64_t shared_bytes() const override;

 private:
  struct Peer {
    bool local = false;
    ByteRing out, in;              // local
    Doorbell* bell = nullptr;      // local
    std::vector<std::byte> queue;  // elsewhere: has arrived, is not consumed ...
    size_t queue_begin = 0;        // ... from here
  };
  Peer& peer(int rank);
  Doorbell* bell_of(int rank);
  void take_frames();
  void throw_if_aborted() const;
  void check_now_and_then();

  Parts parts_;
  Doorbell own_bell_{};  // where neither shared memory nor a relay has one
  std::vector<Peer> peers_;
  Doorbell* bell_ = nullptr;
  uint32_t seen_ = 0;  // count of the doorbell when the last wait ended
  int spins_ = 0;
  std::function<void()> check_;
  double checked_at_s_ = 0;
  std::atomic<bool> aborted_{false};
};

}  // namespace galley
