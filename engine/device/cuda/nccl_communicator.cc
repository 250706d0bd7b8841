#include "engine/device/cuda/nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "engine/core/clock.h"
#include "engine/core/error.h"
#include "engine/core/hash.h"
#include "engine/core/strings.h"
#include "engine/device/cuda/cuda_check.h"
#include "engine/device/cuda/cuda_entry.h"

namespace galley::device {
namespace {

// NCCL takes an order within microseconds. When it does not, a peer is late or gone: then the
// group's own wait is entered now and then, which asks the agent.
constexpr double kPatience_s = 0.25;
constexpr std::chrono::microseconds kPollEvery{20};

void nccl_check(ncclResult_t status, const char* call) {
  if (status == ncclSuccess || status == ncclInProgress) return;
  throw Error(Reason::kDeviceError, cat("NCCL: ", call, " failed: ", ncclGetErrorString(status),
                                        "; NCCL_DEBUG=INFO in the environment says more"));
}

uint64_t fingerprint(const std::vector<int>& members) {
  return hash64(members.data(), members.size() * sizeof(int));
}

bool all_equal(std::span<const int64_t> counts) {
  return std::all_of(counts.begin(), counts.end(), [&](int64_t c) { return c == counts.front(); });
}

}  // namespace

NcclCommunicator::NcclCommunicator(CudaStream* stream, GroupTransport* transport,
                                   std::vector<int> members)
    : stream_(stream),
      transport_(transport),
      members_(std::move(members)),
      host_(transport, members_) {
  GALLEY_CUDA(cudaGetDevice(&ordinal_));
  send_streams_[kUp] = std::make_unique<CudaStream>();
  send_streams_[kDown] = std::make_unique<CudaStream>();
  keys_.members = fingerprint(members_);
  if (rank() != 0) return;
  for (ncclUniqueId& id : keys_.ids) nccl_check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  for (int member : members_) {
    const bool own = member == members_.front();
    key_marks_.push_back(own ? 0
                             : transport_->sends().add(*transport_, member, &keys_, sizeof keys_));
  }
  key_bytes_ = sizeof keys_;
}

NcclCommunicator::~NcclCommunicator() {
  const std::lock_guard lock(mutex_);
  for (ncclComm_t lane : lanes_) {
    // Not ncclCommDestroy, which may wait for members that have gone.
    if (lane != nullptr && !aborted_) ncclCommAbort(lane);
  }
}

/// True when the first member's keys are here.
bool NcclCommunicator::exchange_keys() {
  static_assert(sizeof(Keys) % 4 == 0);  // floats in the streams stay aligned
  transport_->sends().progress(*transport_);
  while (key_bytes_ < sizeof keys_) {
    const std::span<const std::byte> in = transport_->readable(members_.front());
    const size_t taken = std::min(in.size(), sizeof keys_ - key_bytes_);
    if (taken == 0) return false;
    std::memcpy(reinterpret_cast<std::byte*>(&keys_) + key_bytes_, in.data(), taken);
    transport_->consume(members_.front(), taken);
    key_bytes_ += taken;
  }
  GALLEY_CHECK(keys_.members == fingerprint(members_));
  return true;
}

/// True when nothing is borrowed from keys_ any more.
bool NcclCommunicator::keys_have_left() {
  for (size_t i = 0; i < key_marks_.size(); ++i) {
    if (key_marks_[i] > 0 && transport_->sends().sent(members_[i]) < key_marks_[i]) return false;
  }
  return true;
}

void NcclCommunicator::start(Lane lane) {
  GALLEY_CUDA(cudaSetDevice(ordinal_));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const std::lock_guard lock(mutex_);
  check_usable();
  nccl_check(ncclCommInitRankConfig(&lanes_[lane], size(), keys_.ids[lane], rank(), &config),
             "ncclCommInitRankConfig");
}

bool NcclCommunicator::ready() {
  if (ready_) return true;
  if (!exchange_keys() || !keys_have_left()) return false;
  // One after another, the same on all members: two starts at once compete for the card.
  const int wanted = size() > 1 ? kNumLanes : 1;  // alone there is nobody to send to
  while (num_started_ == 0 ||
         settled(static_cast<Lane>(num_started_ - 1), "ncclCommInitRankConfig")) {
    if (num_started_ == wanted) return ready_ = true;
    start(static_cast<Lane>(num_started_++));
  }
  return false;
}

/// True when NCCL has done what it was told last; throws when it could not.
bool NcclCommunicator::settled(Lane lane, const char* what) {
  const std::lock_guard lock(mutex_);
  check_usable();
  if (lanes_[lane] == nullptr) return true;
  ncclResult_t state = ncclSuccess;
  nccl_check(ncclCommGetAsyncError(lanes_[lane], &state), "ncclCommGetAsyncError");
  nccl_check(state, what);
  return state != ncclInProgress;
}

void NcclCommunicator::check_usable() const {
  if (aborted_) {
    throw Error(Reason::kWorkerDied, "a worker of this group has ended before its work was done");
  }
}

template <typename Calls>
void NcclCommunicator::order(Lane lane, const char* what, const Calls& calls) {
  GALLEY_CHECK(ready_);
  {
    const std::lock_guard lock(mutex_);
    check_usable();
    nccl_check(ncclGroupStart(), "ncclGroupStart");
    ncclResult_t status = ncclSuccess;
    calls(lanes_[lane], [&](ncclResult_t result) {
      if (result != ncclSuccess && result != ncclInProgress) status = result;
    });
    const ncclResult_t end = ncclGroupEnd();  // also after an error: the group must not stay open
    nccl_check(status, what);
    nccl_check(end, what);
  }
  const double begin_s = seconds_of(CLOCK_MONOTONIC);
  while (!settled(lane, what)) {
    const bool late = seconds_of(CLOCK_MONOTONIC) - begin_s > kPatience_s;
    if (late) transport_->wait();
    std::this_thread::sleep_for(kPollEvery);
  }
  waited_s_ += seconds_of(CLOCK_MONOTONIC) - begin_s;
}

// NCCL makes each sum along one path and copies it, so all members have the same bits.
void NcclCommunicator::all_reduce(float* data, int64_t count) {
  if (count == 0) return;
  const auto elements = static_cast<size_t>(count);
  order(kSums, "ncclAllReduce", [&](ncclComm_t comm, const auto& call) {
    call(ncclAllReduce(data, data, elements, ncclFloat, ncclSum, comm, stream_->get()));
  });
  sent_bytes_ +=
      2 * elements * sizeof(float) * static_cast<size_t>(size() - 1) / static_cast<size_t>(size());
}

void NcclCommunicator::reduce_scatter(float* data, std::span<const int64_t> counts) {
  GALLEY_CHECK(counts.size() == members_.size());
  const auto own = static_cast<size_t>(rank());
  order(kSums, "ncclReduceScatter", [&](ncclComm_t comm, const auto& call) {
    if (all_equal(counts)) {
      const auto each = static_cast<size_t>(counts[0]);
      call(ncclReduceScatter(data, data + own * each, each, ncclFloat, ncclSum, comm,
                             stream_->get()));
      return;
    }
    float* part = data;
    for (size_t root = 0; root < counts.size(); part += counts[root++]) {
      if (counts[root] == 0) continue;
      call(ncclReduce(part, part, static_cast<size_t>(counts[root]), ncclFloat, ncclSum,
                      static_cast<int>(root), comm, stream_->get()));
    }
  });
  for (size_t i = 0; i < counts.size(); ++i) {
    if (i != own) sent_bytes_ += static_cast<size_t>(counts[i]) * sizeof(float);
  }
}

void NcclCommunicator::all_gather(float* data, std::span<const int64_t> counts) {
  GALLEY_CHECK(counts.size() == members_.size());
  const auto own = static_cast<size_t>(rank());
  order(kSums, "ncclAllGather", [&](ncclComm_t comm, const auto& call) {
    if (all_equal(counts)) {
      const auto each = static_cast<size_t>(counts[0]);
      call(ncclAllGather(data + own * each, data, each, ncclFloat, comm, stream_->get()));
      return;
    }
    float* part = data;
    for (size_t root = 0; root < counts.size(); part += counts[root++]) {
      if (counts[root] == 0) continue;
      call(ncclBroadcast(part, part, static_cast<size_t>(counts[root]), ncclFloat,
                         static_cast<int>(root), comm, stream_->get()));
    }
  });
  sent_bytes_ += static_cast<size_t>(counts[own]) * sizeof(float) * static_cast<size_t>(size() - 1);
}

void NcclCommunicator::send(int to, const float* data, int64_t count) {
  GALLEY_CHECK(to >= 0 && to < size() && to != rank());
  const Lane lane = lane_to(to);
  const cudaStream_t own = send_streams_[lane]->get();
  GALLEY_CUDA(cudaEventRecord(before_.get(), stream_->get()));
  GALLEY_CUDA(cudaStreamWaitEvent(own, before_.get(), 0));
  order(lane, "ncclSend", [&](ncclComm_t comm, const auto& call) {
    call(ncclSend(data, static_cast<size_t>(count), ncclFloat, to, comm, own));
  });
  sent_bytes_ += static_cast<size_t>(count) * sizeof(float);
}

void NcclCommunicator::receive(int from, float* data, int64_t count) {
  GALLEY_CHECK(from >= 0 && from < size() && from != rank());
  order(lane_from(from), "ncclRecv", [&](ncclComm_t comm, const auto& call) {
    call(ncclRecv(data, static_cast<size_t>(count), ncclFloat, from, comm, stream_->get()));
  });
}

void NcclCommunicator::finish_sends() {
  for (Lane lane : {kUp, kDown}) {
    GALLEY_CUDA(cudaEventRecord(after_.get(), send_streams_[lane]->get()));
    GALLEY_CUDA(cudaStreamWaitEvent(stream_->get(), after_.get(), 0));
  }
}

void NcclCommunicator::abort() noexcept {
  host_.abort();
  const std::lock_guard lock(mutex_);
  if (aborted_) return;
  aborted_ = true;
  for (ncclComm_t& lane : lanes_) {
    if (lane != nullptr) ncclCommAbort(lane);
    lane = nullptr;
  }
}

}  // namespace galley::device

__attribute__((visibility("default"))) galley::device::Communicator* galley_cuda_communicator(
    galley::device::Stream* stream, galley::GroupTransport* transport, const int* members,
    int num_members) {
  return new galley::device::NcclCommunicator(static_cast<galley::device::CudaStream*>(stream),
                                              transport, {members, members + num_members});
}
