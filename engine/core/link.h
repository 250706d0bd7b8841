// Link: framed messages over one end of a stream socket, between an agent and its worker.
//
// A frame is a 4-byte little-endian length and that many bytes. Reading never waits. Writing queues
// what the peer does not take at once. The peer's death shows as closed(). Used by one thread; a
// worker's threads share one Link under a lock of theirs.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/file.h"

namespace galley {

class Link {
 public:
  /// Longest frame; a longer length means a broken peer and closes the link.
  static constexpr size_t kMaxFrameBytes = size_t{64} << 20;

  explicit Link(FileDescriptor socket);
  /// Two connected sockets, both closed on exec.
  static std::pair<FileDescriptor, FileDescriptor> make_sockets();

  /// Queues a message and writes as much as the peer takes now. Nothing happens when closed.
  void send(std::string_view message);
  /// Writes what is queued; true when nothing is left (or the peer is gone).
  bool flush();
  /// flush() until done or until `timeout_ms` have passed; true when done.
  bool drain(int timeout_ms);
  /// The next whole message, or nothing.
  std::optional<std::string> try_receive();
  /// Waits up to `timeout_ms` for something to read; true when there may be.
  bool wait(int timeout_ms);
  /// The peer is gone and everything it sent has been received.
  bool closed() const { return closed_; }
  int fd() const { return socket_.get(); }

 private:
  void read_available();
  std::optional<std::string> take_frame();

  FileDescriptor socket_;
  std::string incoming_;
  size_t consumed_ = 0;  // of incoming_
  std::string outgoing_;
  bool end_of_file_ = false;
  bool closed_ = false;
};

}  // namespace galley
