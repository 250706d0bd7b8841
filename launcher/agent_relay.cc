#include "launcher/agent_relay.h"

#include <algorithm>

#include "launcher/protocol.h"

namespace galley::launcher {
namespace {

// Relayed bytes cost several times as long when the agents sleep between looks, and agents that
// look all the time cost the workers' cores: eager while bytes flow, calmer step by step.
constexpr double kFlowingSeconds = 10e-3, kFlowingSleep = 30e-6;
constexpr double kRecentSeconds = 2, kRecentSleep = 200e-6;
constexpr double kQuietSleep = 1e-3;
constexpr uint64_t kBytesPerRound = uint64_t{8} << 20;  // of one worker, so that others get theirs

}  // namespace

int AgentRelay::open(int64_t group, int worker, std::vector<int> peers, uint64_t ring_bytes) {
  const Key key(group, worker);
  newest_ = std::max(newest_, key);
  auto port = std::make_unique<RelayPort>(static_cast<size_t>(ring_bytes));
  const int fd = port->fd();
  ports_.insert_or_assign(key, Port{std::move(port), std::move(peers)});
  std::erase_if(early_, [&](const auto& pieces) { return pieces.first.first < group; });
  if (auto early = early_.extract(key)) {
    for (const std::string& bytes : early.mapped()) take(bytes, 0);
  }
  return fd;
}

void AgentRelay::close(int64_t group, int worker) {
  const auto entry = ports_.find(Key(group, worker));
  if (entry == ports_.end()) return;
  // A worker's last words may still lie in its ring, and others may be waiting for them.
  while (std::optional<RelayPort::Frame> frame = entry->second.port->pop()) {
    send(entry->first, entry->second, std::move(*frame));
  }
  ports_.erase(entry);
}

void AgentRelay::take(const std::string& bytes, double now) {
  const BulkPiece piece = decode_bulk(bytes);
  const Key key(piece.group, piece.to);
  last_moved_ = std::max(last_moved_, now);
  if (!ports_.contains(key) && key > newest_) {
    early_[key].push_back(bytes);
    return;
  }
  hand_over(piece.group, piece.to, piece.from, std::string(piece.payload));
}

void AgentRelay::hand_over(int64_t group, int to, int from, std::string payload) {
  const auto entry = ports_.find(Key(group, to));
  if (entry != ports_.end()) entry->second.port->push(from, std::move(payload));
}

void AgentRelay::send(const Key& from, const Port& port, RelayPort::Frame frame) {
  const int agent = port.peers.at(static_cast<size_t>(frame.peer));
  if (agent == channel_->rank()) {
    take(encode_bulk({from.first, frame.peer, from.second, frame.bytes}), last_moved_);
    return;
  }
  const std::string_view bytes = frame.bytes;
  for (size_t begin = 0; begin < bytes.size(); begin += kMaxBulkBytes) {
    channel_->send(agent, encode_bulk({from.first, frame.peer, from.second,
                                       bytes.substr(begin, kMaxBulkBytes)}));
  }
}

bool AgentRelay::step(double now) {
  bool moved = false;
  for (auto& [key, port] : ports_) {
    moved = port.port->flush() || moved;
    for (uint64_t bytes = 0; bytes < kBytesPerRound;) {
      std::optional<RelayPort::Frame> frame = port.port->pop();
      if (!frame) break;
      bytes += frame->bytes.size() + 1;
      moved = true;
      last_moved_ = now;
      send(key, port, std::move(*frame));
    }
  }
  if (moved) last_moved_ = now;
  return moved;
}

double AgentRelay::longest_sleep_s(double now) const {
  if (last_moved_ < 0) return kQuietSleep;
  if (now - last_moved_ < kFlowingSeconds) return kFlowingSleep;
  return now - last_moved_ < kRecentSeconds ? kRecentSleep : kQuietSleep;
}

}  // namespace galley::launcher
