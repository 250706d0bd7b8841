// Channel: host bytes between numbered peers, without waiting. One of galley's two waists.
//
// Two implementations: ThreadChannels (threads of one process, for tests and local runs) and the
// MPI world (launcher/mpi_world). A channel is used by the one thread that owns it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace galley {

struct ChannelMessage {
  int from = 0;
  std::string bytes;
};

class Channel {
 public:
  virtual ~Channel() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Queues bytes for a peer (also for itself) and returns at once. Messages of one sender arrive
  /// in order. A peer that is gone takes nothing: that is no error, its silence tells.
  virtual void send(int to, std::string bytes) = 0;
  /// The next message that has arrived, or nothing.
  virtual std::optional<ChannelMessage> try_receive() = 0;
  /// Moves queued sends on; true when none is left.
  virtual bool flush() = 0;
};

/// A world of `size` channels inside this process; each may be used by another thread.
std::vector<std::unique_ptr<Channel>> make_thread_channels(int size);

}  // namespace galley
