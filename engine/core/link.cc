#include "engine/core/link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "engine/core/error.h"

namespace galley {
namespace {

constexpr size_t kHeaderBytes = 4;

}  // namespace

Link::Link(FileDescriptor socket) : socket_(std::move(socket)) {
  const int flags = fcntl(socket_.get(), F_GETFL);
  if (flags < 0 || fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK) < 0) {
    throw_errno("prepare", "the link's socket", errno, Reason::kInternal);
  }
}

std::pair<FileDescriptor, FileDescriptor> Link::make_sockets() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    throw_errno("create", "a socket pair", errno, Reason::kInternal);
  }
  return {FileDescriptor(fds[0]), FileDescriptor(fds[1])};
}

void Link::send(std::string_view message) {
  if (closed_) return;
  GALLEY_CHECK(message.size() <= kMaxFrameBytes);
  const auto size = static_cast<uint32_t>(message.size());
  for (size_t i = 0; i < kHeaderBytes; ++i) {
    outgoing_.push_back(static_cast<char>((size >> (8 * i)) & 0xFFu));
  }
  outgoing_.append(message);
  flush();
}

bool Link::flush() {
  size_t written = 0;
  while (written < outgoing_.size()) {
    const ssize_t count =
        ::send(socket_.get(), outgoing_.data() + written, outgoing_.size() - written, MSG_NOSIGNAL);
    if (count > 0) {
      written += static_cast<size_t>(count);
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else if (count < 0 && errno != EAGAIN) {
      written = outgoing_.size();  // the peer is gone; reading tells
    } else {
      break;
    }
  }
  outgoing_.erase(0, written);
  return outgoing_.empty();
}

bool Link::drain(int timeout_ms) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!flush()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd entry{socket_.get(), POLLOUT, 0};
    poll(&entry, 1, static_cast<int>(left.count()));
  }
  return true;
}

void Link::read_available() {
  char buffer[65536];
  while (!end_of_file_) {
    const ssize_t count = recv(socket_.get(), buffer, sizeof buffer, 0);
    if (count > 0) {
      incoming_.append(buffer, static_cast<size_t>(count));
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else if (count < 0 && errno == EAGAIN) {
      return;
    } else {
      end_of_file_ = true;
    }
  }
}

std::optional<std::string> Link::take_frame() {
  const size_t available = incoming_.size() - consumed_;
  if (available < kHeaderBytes) return std::nullopt;
  uint32_t size = 0;
  for (size_t i = 0; i < kHeaderBytes; ++i) {
    size |= static_cast<uint32_t>(static_cast<unsigned char>(incoming_[consumed_ + i])) << (8 * i);
  }
  if (size > kMaxFrameBytes) {
    end_of_file_ = true;
    incoming_.clear();
    consumed_ = 0;
    return std::nullopt;
  }
  if (available < kHeaderBytes + size) return std::nullopt;
  std::string message = incoming_.substr(consumed_ + kHeaderBytes, size);
  consumed_ += kHeaderBytes + size;
  if (consumed_ == incoming_.size()) {
    incoming_.clear();
    consumed_ = 0;
  }
  return message;
}

std::optional<std::string> Link::try_receive() {
  if (std::optional<std::string> message = take_frame()) return message;
  read_available();
  std::optional<std::string> message = take_frame();
  if (!message && end_of_file_) closed_ = true;
  return message;
}

bool Link::wait(int timeout_ms) {
  if (closed_ || end_of_file_) return true;
  pollfd entry{socket_.get(), POLLIN, 0};
  return poll(&entry, 1, timeout_ms) > 0;
}

}  // namespace galley
