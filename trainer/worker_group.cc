#include "trainer/worker_group.h"

#include "engine/core/error.h"
#include "engine/model/group_ranks.h"

namespace galley::trainer {
WorkerGroup::WorkerGroup(const model::ParallelLayout& layout, int group_rank,
                         GroupTransport* transport)
    : rank_(group_rank), place_(model::WorkerPlace::of(layout, group_rank)), transport_(transport) {
  GALLEY_CHECK((transport == nullptr) == (layout.num_workers() == 1));
  if (transport == nullptr) return;
  GALLEY_CHECK(transport->rank() == group_rank && transport->size() == layout.num_workers());
  group_ = device::make_host_communicator(transport, model::all_ranks(layout));
  if (layout.tp_size > 1) {
    tensor_ = device::make_host_communicator(transport, model::tensor_ranks(place_));
  }
  if (layout.dp_size > 1) {
    replicas_ = device::make_host_communicator(transport, model::replica_ranks(place_));
  }
}

device::WorkerCommunicators WorkerGroup::communicators() const {
  return {.group = group_.get(), .tensor = tensor_.get(), .replicas = replicas_.get()};
}

int WorkerGroup::neighbour(int stages) const { return model::stage_neighbour(place_, stages); }

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
