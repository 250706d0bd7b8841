// WorkerGroup: the other workers of a job, as one of them sees them: its place, and what it talks
// to them through. A worker alone has one, too, with nobody in it.
//
// Owned by the worker's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/group_transport.h"
#include "engine/device/communicator.h"
#include "engine/model/adapter_shards.h"
#include "engine/model/layout.h"

namespace galley::trainer {

class WorkerGroup {
 public:
  /// `transport`: null for a layout of one worker; must outlive the group.
  WorkerGroup(const model::ParallelLayout& layout, int group_rank, GroupTransport* transport);
  bool alone() const { return group_ == nullptr; }
  /// Writes files, decides when to stop.
  bool leads() const { return rank_ == 0; }
  int rank() const { return rank_; }
  const model::WorkerPlace& place() const { return place_; }
  const model::WorkerPosition& position() const { return place_.position; }
  device::WorkerCommunicators communicators() const;
  /// All workers; null when alone.
  device::Communicator* all() const { return group_.get(); }
  /// Group rank of the worker that many stages behind this one (before it: negative).
  int neighbour(int stages) const;

  /// What the leader has; itself when alone.
  std::string from_leader(const std::string& bytes) const;
  /// Every worker's, by group rank.
  std::vector<std::string> from_all(const std::string& bytes) const;
  /// Brings one vector of the adapter together: the leader gets the whole (`num_whole` values of
  /// the shards), the others nothing. Every worker calls it with its own part.
  std::vector<float> gather(const model::AdapterShards& own, std::span<const float> flat,
                            const std::vector<model::AdapterShards>& all_shards) const;
  /// Shards of the workers of the first replica, by group rank; for gather().
  std::vector<model::AdapterShards> first_replica_shards(
      const model::ModelConfig& config, const std::vector<model::AdaptedLinear>& linears) const;
  double waited_s() const;
  /// Moves on what is on its way to others; true while some of it is left.
  bool move_sends() const;

 private:
  int num_in_replica() const { return place_.layout.tp_size * place_.layout.pp_size; }

  const int rank_;
  const model::WorkerPlace place_;
  GroupTransport* const transport_;
  std::unique_ptr<device::Communicator> group_, tensor_, replicas_;
};

}  // namespace galley::trainer
