// HostCommunicator: the communicator of host devices, over the byte streams of a GroupTransport.
//
// Every operation is made of streams between pairs and moves all of them at once: while it waits
// for one peer it reads from the others and writes what anybody has sent, so full rings never hold
// each other up. The sum of an element is made by one member, in the order of ranks, straight out
// of the ring's memory, and copied to the others; a few numbers are exchanged whole, and everyone
// adds them in that order. Owned by the worker's thread; abort() by any. Float operations allocate
// nothing once the transport's lists have grown.
//
// Stream: every message is a multiple of four bytes, so that floats never straddle a ring's end.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/device/communicator.h"

namespace galley::device {

class HostCommunicator : public Communicator {
 public:
  HostCommunicator(GroupTransport* transport, std::vector<int> members);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  bool ready() override { return true; }
  void all_reduce(float* data, int64_t count) override;
  void reduce_scatter(float* data, std::span<const int64_t> counts) override;
  void all_gather(float* data, std::span<const int64_t> counts) override;
  void send(int to, const float* data, int64_t count) override;
  void receive(int from, float* data, int64_t count) override;
  void finish_sends() override;
  void all_reduce_host(std::span<double> values) override;
  std::vector<std::string> all_gather_host(const std::string& bytes) override;
  std::string broadcast_host(const std::string& bytes, int root) override;
  void send_host(int to, std::span<const float> data) override;
  void receive_host(int from, std::span<float> data) override;
  double waited_s() const override { return waited_s_; }
  uint64_t sent_bytes() const override { return sent_bytes_; }
  void abort() noexcept override { transport_->abort(); }

 private:
  enum class Phases { kReduce, kGather, kBoth };
  struct Part {
    int64_t begin = 0, count = 0;
    int64_t gathered = 0;  // of it, from its owner
  };
  void set_parts(std::span<const int64_t> counts);
  void set_even_parts(int64_t count);
  void exchange(float* data, Phases phases);
  bool reduce_some(float* data, Phases phases, int64_t* reduced);
  bool gather_some(float* data, bool* all);
  void all_reduce_few(float* data, int64_t count);
  template <typename Number>
  void add_all(std::span<const Number> values, Number* sum, Number* arrived);

  void queue(int to, const void* data, size_t bytes);
  void queue_for_all(const void* data, size_t bytes);
  /// The next bytes of a peer's stream, waited for.
  void read(int from, void* to, size_t bytes);
  void read_text(int from, std::string* text);
  /// Writes what can be written; sleeps if that and the caller moved nothing.
  void go_on(bool moved);
  int peer(int member) const { return members_[static_cast<size_t>(member)]; }

  GroupTransport* transport_;
  std::vector<int> members_;  // ranks of the transport
  int rank_ = 0;
  std::vector<Part> parts_;            // by member
  std::vector<const float*> arrived_;  // by member: pieces that are being added
  std::vector<uint64_t> marks_;        // by member: end of the last send (PendingSends)
  std::vector<float> few_, few_sum_, block_;
  std::vector<double> numbers_, numbers_arrived_;
  double waited_s_ = 0;
  uint64_t sent_bytes_ = 0;
};

}  // namespace galley::device
