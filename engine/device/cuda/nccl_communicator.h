// NcclCommunicator: the communicator of CUDA devices. Data goes between the cards by NCCL, host
// values over the group's streams like a HostCommunicator's.
//
// Owned by the worker's thread; abort() by any. Operations on device memory are ordered on the
// stream it was given. Made without waiting: the first member's key travels as bytes in the group's
// streams, and ready() carries the start on; until it has returned true nothing else of this worker
// may read from those streams, so communicators that share members become ready one after another.
// What was ordered on the stream must be done (Device::synchronize) before it is destroyed.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/device/communicator.h"
#include "engine/device/cuda/cuda_device.h"
#include "engine/device/host/host_communicator.h"

namespace galley::device {

class NcclCommunicator : public Communicator {
 public:
  /// `stream` and `transport` must outlive it; members as in make_host_communicator().
  NcclCommunicator(CudaStream* stream, GroupTransport* transport, std::vector<int> members);
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  bool ready() override;
  void all_reduce(float* data, int64_t count) override;
  void reduce_scatter(float* data, std::span<const int64_t> counts) override;
  void all_gather(float* data, std::span<const int64_t> counts) override;
  void send(int to, const float* data, int64_t count) override;
  void receive(int from, float* data, int64_t count) override;
  void finish_sends() override;
  void all_reduce_host(std::span<double> values) override { host_.all_reduce_host(values); }
  std::vector<std::string> all_gather_host(const std::string& bytes) override {
    return host_.all_gather_host(bytes);
  }
  std::string broadcast_host(const std::string& bytes, int root) override {
    return host_.broadcast_host(bytes, root);
  }
  void send_host(int to, std::span<const float> data) override { host_.send_host(to, data); }
  void receive_host(int from, std::span<float> data) override { host_.receive_host(from, data); }
  /// Of host values, and while NCCL was taking orders; waits of the card are not seen here.
  double waited_s() const override { return waited_s_ + host_.waited_s(); }
  uint64_t sent_bytes() const override { return sent_bytes_ + host_.sent_bytes(); }
  void abort() noexcept override;

 private:
  // A card waits in a send until it is received, and NCCL runs what one of its communicators does
  // in order. So sends to higher ranks, sends to lower ranks and sums have one each: neighbours
  // that send to each other at the same time would otherwise wait for ever.
  enum Lane { kSums, kUp, kDown, kNumLanes };
  struct Keys {
    uint64_t members = 0;  // fingerprint: who polls in another order than others is told
    std::array<ncclUniqueId, kNumLanes> ids{};
  };
  bool exchange_keys();
  bool keys_have_left();
  void start(Lane lane);
  Lane lane_to(int to) const { return to > rank() ? kUp : kDown; }
  Lane lane_from(int from) const { return from < rank() ? kUp : kDown; }
  /// Runs calls of NCCL and waits until it has taken them.
  template <typename Calls>
  void order(Lane lane, const char* what, const Calls& calls);
  bool settled(Lane lane, const char* what);
  void check_usable() const;

  CudaStream* stream_;
  GroupTransport* transport_;
  const std::vector<int> members_;
  HostCommunicator host_;
  int ordinal_ = 0;  // of the card that was current when it was made
  Keys keys_;
  size_t key_bytes_ = 0;             // that have come from the first member
  std::vector<uint64_t> key_marks_;  // of the first member: ends of its keys (PendingSends)
  int num_started_ = 0;              // lanes
  bool ready_ = false;
  std::array<std::unique_ptr<CudaStream>, kNumLanes> send_streams_;  // of kUp and kDown
  CudaEvent before_, after_;
  double waited_s_ = 0;
  uint64_t sent_bytes_ = 0;

  mutable std::mutex mutex_;  // of the two below: abort() may come from any thread
  std::array<ncclComm_t, kNumLanes> lanes_{};
  bool aborted_ = false;
};

}  // namespace galley::device
