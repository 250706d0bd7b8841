#include "engine/core/channel.h"

#include <deque>
#include <mutex>
#include <utility>

#include "engine/core/error.h"

namespace galley {
namespace {

struct Mailbox {
  std::mutex mutex;
  std::deque<ChannelMessage> messages;  // guarded by mutex
};

// Shared by all channels of one world: the last channel that dies frees the mailboxes.
using Mailboxes = std::shared_ptr<std::vector<Mailbox>>;

class ThreadChannel : public Channel {
 public:
  ThreadChannel(int rank, Mailboxes mailboxes) : rank_(rank), mailboxes_(std::move(mailboxes)) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(mailboxes_->size()); }

  void send(int to, std::string bytes) override {
    GALLEY_CHECK(to >= 0 && to < size());
    Mailbox& mailbox = (*mailboxes_)[static_cast<size_t>(to)];
    const std::lock_guard lock(mailbox.mutex);
    mailbox.messages.push_back({rank_, std::move(bytes)});
  }

  std::optional<ChannelMessage> try_receive() override {
    Mailbox& mailbox = (*mailboxes_)[static_cast<size_t>(rank_)];
    const std::lock_guard lock(mailbox.mutex);
    if (mailbox.messages.empty()) return std::nullopt;
    ChannelMessage message = std::move(mailbox.messages.front());
    mailbox.messages.pop_front();
    return message;
  }

  bool flush() override { return true; }

 private:
  int rank_;
  Mailboxes mailboxes_;
};

}  // namespace

std::vector<std::unique_ptr<Channel>> make_thread_channels(int size) {
  const auto mailboxes = std::make_shared<std::vector<Mailbox>>(static_cast<size_t>(size));
  std::vector<std::unique_ptr<Channel>> channels;
  for (int rank = 0; rank < size; ++rank) {
    channels.push_back(std::make_unique<ThreadChannel>(rank, mailboxes));
  }
  return channels;
}

}  // namespace galley
