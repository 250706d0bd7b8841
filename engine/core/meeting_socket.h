// MeetingSocket: an abstract unix socket through which the members of a group on one node find each
// other and pass descriptors. Packets, never waiting; closed with the object; nothing on disk.
//
// The name is made from the meeting's token and node. Only processes of the same user are talked
// to, on either side. Used by one thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/file.h"

namespace galley {

/// Bytes and descriptors that came together.
struct MeetingPacket {
  std::string bytes;
  std::vector<FileDescriptor> descriptors;
};

class MeetingSocket {
 public:
  enum class Received { kNothingYet, kPacket, kClosed };

  /// The one that others come to; not valid() while somebody else has the name.
  static MeetingSocket listen(const std::string& name);
  /// A connection to it; not valid() while nobody of this user listens.
  static MeetingSocket connect(const std::string& name);
  MeetingSocket() = default;

  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  /// The next connection of this user; not valid() when there is none now. Others are closed.
  MeetingSocket accept();
  /// False when the peer is gone.
  bool send(std::string_view bytes, std::span<const int> descriptors);
  Received receive(MeetingPacket* packet);

 private:
  explicit MeetingSocket(FileDescriptor fd) : fd_(std::move(fd)) {}

  FileDescriptor fd_;
};

}  // namespace galley
