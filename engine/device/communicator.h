// Communicator: collectives and point-to-point transfers among some workers of a group.
//
// Implementers: the host's over a GroupTransport (host/host_communicator.h) and NCCL's (cuda/). All
// members call the same operations in the same order. Owned by the worker's thread; abort() from
// any. Data is device memory where nothing else is written; on the host calls return when done, on
// CUDA they are ordered on the communicator's stream.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/group_transport.h"
#include "engine/device/ops.h"

namespace galley::device {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Making one does not wait. True once every member is there; to be polled (NCCL: nonblocking
  /// init).
  virtual bool ready() = 0;

  /// data [count] becomes the sum over all members, the same bits on each.
  virtual void all_reduce(float* data, int64_t count) = 0;
  /// `data` holds the parts of all members end to end (counts[r] elements of member r): the own
  /// part becomes the sum over all members, the other parts are left undefined.
  virtual void reduce_scatter(float* data, std::span<const int64_t> counts) = 0;
  /// The own part of `data` is given, all others are filled in.
  virtual void all_gather(float* data, std::span<const int64_t> counts) = 0;

  /// Returns at once. `data` must not change before finish_sends(). Messages of a pair arrive in
  /// order.
  virtual void send(int to, const float* data, int64_t count) = 0;
  virtual void receive(int from, float* data, int64_t count) = 0;
  /// Waits until the data of all sends may be changed.
  virtual void finish_sends() = 0;

  // Host memory, small:
  /// Sums in the order of ranks, the same bits on each.
  virtual void all_reduce_host(std::span<double> values) = 0;
  /// Every member's bytes, by rank.
  virtual std::vector<std::string> all_gather_host(const std::string& bytes) = 0;
  /// The root's bytes.
  virtual std::string broadcast_host(const std::string& bytes, int root) = 0;
  /// Ranges of host floats, as send() and receive() of device memory, but in order with them and
  /// finished when the call returns (for checkpoints and adapters).
  virtual void send_host(int to, std::span<const float> data) = 0;
  virtual void receive_host(int from, std::span<float> data) = 0;

  /// Seconds that this member has waited for others so far, and bytes it has sent.
  virtual double waited_s() const = 0;
  virtual uint64_t sent_bytes() const = 0;
  /// Every operation of this member, now or later, ends with Error(kWorkerDied).
  virtual void abort() noexcept = 0;
};

/// The communicator of `members` (ranks of the transport, ascending, the own one among them) over a
/// transport, for host devices. Several may share a transport; a pair of workers uses its streams
/// in the order of its calls. The transport must outlive it.
std::unique_ptr<Communicator> make_host_communicator(GroupTransport* transport,
                                                     std::vector<int> members);

/// What a worker of a group talks through; null where its group has one member only.
struct WorkerCommunicators {
  Communicator* group = nullptr;     // all workers, by group rank; also between stages
  Communicator* tensor = nullptr;    // same stage and replica
  Communicator* replicas = nullptr;  // same stage and tensor-parallel rank
};

}  // namespace galley::device
