#include "trainer/worker_group.h"

#include <functional>

#include "engine/core/error.h"

namespace galley::trainer {
namespace {

using model::WorkerPosition;

std::vector<int> members(const model::ParallelLayout& layout,
                         const std::function<bool(const WorkerPosition&)>& belongs) {
  std::vector<int> ranks;
  for (int rank = 0; rank < layout.num_workers(); ++rank) {
    if (belongs(model::worker_position(layout, rank))) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

WorkerGroup::WorkerGroup(const model::ParallelLayout& layout, int group_rank,
                         GroupTransport* transport)
    : rank_(group_rank), place_(model::WorkerPlace::of(layout, group_rank)), transport_(transport) {
  GALLEY_CHECK((transport == nullptr) == (layout.num_workers() == 1));
  if (transport == nullptr) return;
  GALLEY_CHECK(transport->rank() == group_rank && transport->size() == layout.num_workers());
  const WorkerPosition own = place_.position;
  group_ = device::make_host_communicator(
      transport, members(layout, [](const WorkerPosition&) { return true; }));
  if (layout.tp_size > 1) {
    tensor_ = device::make_host_communicator(
        transport, members(layout, [&](const WorkerPosition& other) {
          return other.pp_rank == own.pp_rank && other.dp_rank == own.dp_rank;
        }));
  }
  if (layout.dp_size > 1) {
    replicas_ = device::make_host_communicator(
        transport, members(layout, [&](const WorkerPosition& other) {
          return other.pp_rank == own.pp_rank && other.tp_rank == own.tp_rank;
        }));
  }
}

device::WorkerCommunicators WorkerGroup::communicators() const {
  return {.group = group_.get(), .tensor = tensor_.get(), .replicas = replicas_.get()};
}

int WorkerGroup::neighbour(int stages) const {
  WorkerPosition position = place_.position;
  position.pp_rank += stages;
  GALLEY_CHECK(position.pp_rank >= 0 && position.pp_rank < place_.layout.pp_size);
  return model::group_rank(place_.layout, position);
}

std::string WorkerGroup::from_leader(const std::string& bytes) const {
  return alone() ? bytes : group_->broadcast_host(bytes, 0);
}

std::vector<std::string> WorkerGroup::from_all(const std::string& bytes) const {
  return alone() ? std::vector<std::string>{bytes} : group_->all_gather_host(bytes);
}

std::vector<model::AdapterShards> WorkerGroup::first_replica_shards(
    const model::ModelConfig& config, const std::vector<model::AdaptedLinear>& linears) const {
  std::vector<model::AdapterShards> shards;
  for (int rank = 0; rank < num_in_replica(); ++rank) {
    shards.push_back(
        model::adapter_shards(config, linears, model::WorkerPlace::of(place_.layout, rank)));
  }
  return shards;
}

std::vector<float> WorkerGroup::gather(const model::AdapterShards& own, std::span<const float> flat,
                                       const std::vector<model::AdapterShards>& all_shards) const {
  std::vector<float> whole;
  if (leads()) {
    whole.resize(own.num_whole);
    model::put_shard(own, flat, whole);
  }
  if (alone() || position().dp_rank > 0) return whole;
  if (!leads()) {
    group_->send_host(0, flat);
    return whole;
  }
  std::vector<float> part;
  for (int rank = 1; rank < num_in_replica(); ++rank) {
    const model::AdapterShards& shards = all_shards[static_cast<size_t>(rank)];
    part.resize(shards.num_elements);
    group_->receive_host(rank, part);
    model::put_shard(shards, part, whole);
  }
  return whole;
}

bool WorkerGroup::move_sends() const {
  if (transport_ == nullptr || transport_->sends().empty()) return false;
  transport_->sends().progress(*transport_);
  return !transport_->sends().empty();
}

double WorkerGroup::waited_s() const {
  double seconds = 0;
  for (const auto* communicator : {group_.get(), tensor_.get(), replicas_.get()}) {
    if (communicator != nullptr) seconds += communicator->waited_s();
  }
  return seconds;
}

}  // namespace galley::trainer
