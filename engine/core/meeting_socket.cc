#include "engine/core/meeting_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace galley {
namespace {

constexpr size_t kMaxPacketBytes = 4096;
constexpr size_t kMaxDescriptors = 250;  // the kernel's limit is 253
constexpr int kBacklog = 64;

struct Address {
  sockaddr_un name{};
  socklen_t bytes = 0;
};

/// A zero byte before the name: no file.
Address abstract_address(const std::string& name) {
  Address address;
  address.name.sun_family = AF_UNIX;
  GALLEY_CHECK(name.size() + 1 < sizeof address.name.sun_path);
  std::memcpy(address.name.sun_path + 1, name.data(), name.size());
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

FileDescriptor new_socket() {
  FileDescriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) throw_errno("make", "the socket on which a group's workers meet", errno);
  return fd;
}

bool is_of_this_user(int fd) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == ::geteuid();
}

}  // namespace

MeetingSocket MeetingSocket::listen(const std::string& name) {
  FileDescriptor fd = new_socket();
  const Address address = abstract_address(name);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.name), address.bytes) != 0) {
    if (errno == EADDRINUSE) return {};
    throw_errno("name", "the socket on which a group's workers meet", errno);
  }
  if (::listen(fd.get(), kBacklog) != 0) {
    throw_errno("listen on", "the socket on which a group's workers meet", errno);
  }
  return MeetingSocket(std::move(fd));
}

MeetingSocket MeetingSocket::connect(const std::string& name) {
  FileDescriptor fd = new_socket();
  const Address address = abstract_address(name);
  const int status =
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.name), address.bytes);
  if (status != 0 || !is_of_this_user(fd.get())) return {};
  return MeetingSocket(std::move(fd));
}

MeetingSocket MeetingSocket::accept() {
  while (true) {
    FileDescriptor fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) return {};
    if (is_of_this_user(fd.get())) return MeetingSocket(std::move(fd));
  }
}

bool MeetingSocket::send(std::string_view bytes, std::span<const int> descriptors) {
  GALLEY_CHECK(bytes.size() <= kMaxPacketBytes && descriptors.size() <= kMaxDescriptors);
  iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(head), descriptors.data(), descriptors.size_bytes());
  }
  // One small packet into an empty buffer: it never waits.
  return ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

MeetingSocket::Received MeetingSocket::receive(MeetingPacket* packet) {
  packet->bytes.resize(kMaxPacketBytes);
  packet->descriptors.clear();
  iovec piece{packet->bytes.data(), packet->bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t bytes = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
  if (bytes < 0) {
    const bool later = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    return later ? Received::kNothingYet : Received::kClosed;
  }
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof fd);
      packet->descriptors.emplace_back(fd);
    }
  }
  packet->bytes.resize(static_cast<size_t>(bytes));
  return bytes == 0 ? Received::kClosed : Received::kPacket;
}

}  // namespace galley
