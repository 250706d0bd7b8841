#include "engine/device/host/host_communicator.h"

#include <algorithm>
#include <cstring>

#include "engine/core/clock.h"
#include "engine/core/error.h"

namespace galley::device {
namespace {

// So many floats are exchanged whole: one message each instead of two.
constexpr int64_t kFew = 512;
// Floats that are added at a time: they stay in the first cache, and so does where they go.
constexpr int64_t kBlock = 2048;
// Floats that are added before what waits to be written is looked at again.
constexpr int64_t kChunk = 16384;
constexpr int64_t kPartMultiple = 16;  // a cache line

void add(float* sum, const float* a, const float* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

}  // namespace

std::unique_ptr<Communicator> make_host_communicator(GroupTransport* transport,
                                                     std::vector<int> members) {
  return std::make_unique<HostCommunicator>(transport, std::move(members));
}

HostCommunicator::HostCommunicator(GroupTransport* transport, std::vector<int> members)
    : transport_(transport), members_(std::move(members)) {
  GALLEY_CHECK(std::is_sorted(members_.begin(), members_.end()));
  const auto own = std::find(members_.begin(), members_.end(), transport_->rank());
  GALLEY_CHECK(own != members_.end() && members_.front() >= 0 &&
               members_.back() < transport_->size());
  rank_ = static_cast<int>(own - members_.begin());
  parts_.resize(members_.size());
  arrived_.resize(members_.size());
  marks_.resize(members_.size());
  few_.resize(kFew);
  few_sum_.resize(kFew);
  block_.resize(kBlock);
}

void HostCommunicator::queue(int to, const void* data, size_t bytes) {
  GALLEY_CHECK(to >= 0 && to < size() && to != rank_);
  marks_[static_cast<size_t>(to)] = transport_->sends().add(*transport_, peer(to), data, bytes);
  sent_bytes_ += bytes;
}

void HostCommunicator::queue_for_all(const void* data, size_t bytes) {
  // Everybody begins with the next member, so that not all write to the first one.
  for (int i = 1; i < size(); ++i) queue((rank_ + i) % size(), data, bytes);
}

void HostCommunicator::go_on(bool moved) {
  if (transport_->sends().progress(*transport_) || moved) return;
  const double begin_s = seconds_of(CLOCK_MONOTONIC);
  try {
    transport_->wait();
  } catch (...) {
    transport_->sends().drop();
    throw;
  }
  waited_s_ += seconds_of(CLOCK_MONOTONIC) - begin_s;
}

void HostCommunicator::finish_sends() {
  for (int to = 0; to < size(); ++to) {
    if (to == rank_) continue;
    while (transport_->sends().sent(peer(to)) < marks_[static_cast<size_t>(to)]) go_on(false);
  }
}

void HostCommunicator::read(int from, void* to, size_t bytes) {
  GALLEY_CHECK(from >= 0 && from < size() && from != rank_);
  auto* out = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const std::span<const std::byte> in = transport_->readable(peer(from));
    const size_t taken = std::min(in.size(), bytes);
    if (taken > 0) {
      std::memcpy(out, in.data(), taken);
      transport_->consume(peer(from), taken);
      out += taken;
      bytes -= taken;
    }
    if (bytes > 0) go_on(taken > 0);
  }
}

void HostCommunicator::set_parts(std::span<const int64_t> counts) {
  GALLEY_CHECK(counts.size() == members_.size());
  int64_t begin = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    GALLEY_CHECK(counts[i] >= 0);
    parts_[i] = {begin, counts[i], 0};
    begin += counts[i];
  }
}

void HostCommunicator::set_even_parts(int64_t count) {
  const int64_t lines = (count + kPartMultiple - 1) / kPartMultiple;
  int64_t begin = 0;
  for (int i = 0; i < size(); ++i) {
    const int64_t end = std::min(count, lines * (i + 1) / size() * kPartMultiple);
    parts_[static_cast<size_t>(i)] = {begin, end - begin, 0};
    begin = end;
  }
}

void HostCommunicator::all_reduce(float* data, int64_t count) {
  GALLEY_CHECK(count >= 0);
  if (size() == 1 || count == 0) return;
  if (count <= kFew) return all_reduce_few(data, count);
  set_even_parts(count);
  exchange(data, Phases::kBoth);
}

void HostCommunicator::reduce_scatter(float* data, std::span<const int64_t> counts) {
  set_parts(counts);
  exchange(data, Phases::kReduce);
}

void HostCommunicator::all_gather(float* data, std::span<const int64_t> counts) {
  set_parts(counts);
  exchange(data, Phases::kGather);
}

// A member's stream to another carries what it has for the other's part, then the sum of its own
// part, which goes out while later elements are still being added. The sum of an element arrives
// only after its owner has read what was sent for it, so it may be written over that.
void HostCommunicator::exchange(float* data, Phases phases) {
  const Part& own = parts_[static_cast<size_t>(rank_)];
  for (int i = 1; i < size() && phases != Phases::kGather; ++i) {
    const int to = (rank_ + i) % size();
    const Part& part = parts_[static_cast<size_t>(to)];
    queue(to, data + part.begin, static_cast<size_t>(part.count) * sizeof(float));
  }
  int64_t reduced = 0;
  if (phases == Phases::kGather) {
    reduced = own.count;
    queue_for_all(data + own.begin, static_cast<size_t>(own.count) * sizeof(float));
  }
  while (true) {
    bool moved = false;
    if (reduced < own.count && size() > 1) moved = reduce_some(data, phases, &reduced);
    bool done = reduced == own.count || size() == 1;
    if (done && phases != Phases::kReduce) moved |= gather_some(data, &done);
    if (done) break;
    go_on(moved);
  }
  finish_sends();
}

bool HostCommunicator::reduce_some(float* data, Phases phases, int64_t* reduced) {
  const Part& own = parts_[static_cast<size_t>(rank_)];
  int64_t count = std::min(own.count - *reduced, kChunk);
  // Asking for all once makes sure that asking again moves nothing.
  for (int from = 0; from < size(); ++from) {
    if (from == rank_) continue;
    const size_t bytes = transport_->readable(peer(from)).size();
    count = std::min(count, static_cast<int64_t>(bytes / sizeof(float)));
    if (count == 0) return false;
  }
  float* sum = data + own.begin + *reduced;
  for (int from = 0; from < size(); ++from) {
    const void* bytes =
        from == rank_ ? sum : static_cast<const void*>(transport_->readable(peer(from)).data());
    GALLEY_CHECK(reinterpret_cast<uintptr_t>(bytes) % alignof(float) == 0);
    arrived_[static_cast<size_t>(from)] = static_cast<const float*>(bytes);
  }
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t n = std::min(kBlock, count - i);
    float* block = size() == 2 ? sum + i : block_.data();
    add(block, arrived_[0] + i, arrived_[1] + i, n);
    for (size_t from = 2; from + 1 < members_.size(); ++from) {
      add(block, block, arrived_[from] + i, n);
    }
    if (size() > 2) add(sum + i, block, arrived_.back() + i, n);
  }
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  for (int from = 0; from < size(); ++from) {
    if (from != rank_) transport_->consume(peer(from), bytes);
  }
  *reduced += count;
  if (phases == Phases::kBoth) queue_for_all(sum, bytes);
  return true;
}

bool HostCommunicator::gather_some(float* data, bool* all) {
  bool moved = false;
  for (int from = 0; from < size(); ++from) {
    Part& part = parts_[static_cast<size_t>(from)];
    if (from == rank_ || part.gathered == part.count) continue;
    const std::span<const std::byte> in = transport_->readable(peer(from));
    const int64_t count =
        std::min(static_cast<int64_t>(in.size() / sizeof(float)), part.count - part.gathered);
    if (count > 0) {
      const size_t bytes = static_cast<size_t>(count) * sizeof(float);
      std::memcpy(data + part.begin + part.gathered, in.data(), bytes);
      transport_->consume(peer(from), bytes);
      part.gathered += count;
      moved = true;
    }
    *all = *all && part.gathered == part.count;
  }
  return moved;
}

/// Everybody sends its values and adds all, in the order of ranks. `sum` and `arrived` hold as
/// many.
template <typename Number>
void HostCommunicator::add_all(std::span<const Number> values, Number* sum, Number* arrived) {
  queue_for_all(values.data(), values.size_bytes());
  for (int from = 0; from < size(); ++from) {
    const Number* term = values.data();
    if (from != rank_) {
      read(from, arrived, values.size_bytes());
      term = arrived;
    }
    for (size_t i = 0; i < values.size(); ++i) sum[i] = from == 0 ? term[i] : sum[i] + term[i];
  }
  finish_sends();
}

void HostCommunicator::all_reduce_few(float* data, int64_t count) {
  std::copy_n(data, count, few_.data());
  const std::span<const float> values(few_.data(), static_cast<size_t>(count));
  add_all(values, few_sum_.data(), block_.data());
  std::copy_n(few_sum_.data(), count, data);
}

void HostCommunicator::send(int to, const float* data, int64_t count) {
  GALLEY_CHECK(count >= 0);
  queue(to, data, static_cast<size_t>(count) * sizeof(float));
}

void HostCommunicator::receive(int from, float* data, int64_t count) {
  GALLEY_CHECK(count >= 0);
  read(from, data, static_cast<size_t>(count) * sizeof(float));
}

void HostCommunicator::all_reduce_host(std::span<double> values) {
  if (size() == 1) return;
  numbers_.assign(values.begin(), values.end());
  numbers_arrived_.resize(values.size());
  add_all(std::span<const double>(numbers_), values.data(), numbers_arrived_.data());
}

namespace {

/// A text as it goes over a stream: its length, its bytes, zeros up to a multiple of four.
std::string text_message(const std::string& text) {
  const uint64_t bytes = text.size();
  std::string message(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  message += text;
  message.resize((message.size() + 3) / 4 * 4, '\0');
  return message;
}

}  // namespace

void HostCommunicator::read_text(int from, std::string* text) {
  uint64_t bytes = 0;
  read(from, &bytes, sizeof bytes);
  text->resize((bytes + 3) / 4 * 4);
  read(from, text->data(), text->size());
  text->resize(bytes);
}

std::vector<std::string> HostCommunicator::all_gather_host(const std::string& bytes) {
  const std::string message = text_message(bytes);
  queue_for_all(message.data(), message.size());
  std::vector<std::string> texts(members_.size());
  for (int from = 0; from < size(); ++from) {
    std::string& text = texts[static_cast<size_t>(from)];
    if (from == rank_) {
      text = bytes;
    } else {
      read_text(from, &text);
    }
  }
  finish_sends();
  return texts;
}

std::string HostCommunicator::broadcast_host(const std::string& bytes, int root) {
  GALLEY_CHECK(root >= 0 && root < size());
  std::string text;
  if (root != rank_) {
    read_text(root, &text);
    return text;
  }
  const std::string message = text_message(bytes);
  queue_for_all(message.data(), message.size());
  finish_sends();
  return bytes;
}

void HostCommunicator::send_host(int to, std::span<const float> data) {
  queue(to, data.data(), data.size_bytes());
  finish_sends();
}

void HostCommunicator::receive_host(int from, std::span<float> data) {
  read(from, data.data(), data.size_bytes());
}

}  // namespace galley::device
