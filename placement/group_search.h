// GroupSearch: the GPUs of a job that needs several, and the layout on them.
//
// The smallest number of GPUs that fits, and the fastest predicted layout among those of that
// number: tensor-parallel workers of a stage on one node, stages by descending memory, the same tp
// in all stages. Pins are kept. Deterministic, with a budget of predictions. Internal to placement;
// pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "placement/planner.h"

namespace galley::placement {

struct FoundGroup {
  std::vector<GpuIndex> gpus;  // by group rank
  predictor::Candidate candidate;
  int considered = 0;  // layouts on chosen GPUs that were predicted with that many GPUs
};

/// Of one job on one cluster; both must outlive it.
class GroupSearch {
 public:
  GroupSearch(const Cluster& cluster, const QueuedJob& job);

  /// The best group of the GPUs that `may_use` allows (by GpuIndex), or nothing.
  std::optional<FoundGroup> best(const std::vector<bool>& may_use);
  /// Why best() found nothing on those GPUs, with the smallest need and what would fit.
  std::string refusal(const std::vector<bool>& may_use);
  /// Tensor-parallel workers of one stage have to be on several nodes.
  bool spans_nodes() const { return spans_nodes_; }

 private:
  /// GPUs of one stage of one replica: tp of them, on one node (but see spans_nodes_).
  struct Block {
    std::vector<GpuIndex> gpus;
    int node = 0, kind = 0;
  };
  using Blocks = std::vector<Block>;

  void add_blocks(int tp_size, std::vector<GpuIndex> gpus, int node, Blocks* blocks);
  std::vector<model::ParallelLayout> layouts(const std::vector<bool>& may_use) const;
  Blocks make_blocks(int tp_size, const std::vector<bool>& may_use);
  std::vector<std::vector<int>> kind_counts(const Blocks& blocks, int wanted) const;
  std::vector<GpuIndex> choose(const Blocks& blocks, const std::vector<int>& counts,
                               const model::ParallelLayout& layout) const;
  const predictor::Candidate& predicted(const model::ParallelLayout& layout,
                                        const std::vector<GpuIndex>& gpus);
  std::vector<predictor::GroupGpu> group_gpus(const std::vector<GpuIndex>& gpus) const;
  bool too_small(const std::vector<GpuIndex>& gpus) const;
  int kind_of(const std::vector<GpuIndex>& gpus);
  std::string remedy(const FoundGroup& smallest) const;

  const Cluster& cluster_;
  const QueuedJob& job_;
  // tp is pinned to more GPUs than any node of the cluster has: then, and only then, its workers
  // may be on several nodes.
  bool spans_nodes_ = false;
  std::vector<std::vector<std::string>> kinds_;  // by kind: what its GPUs are, each
  std::map<std::string, predictor::Candidate> known_;
  std::optional<FoundGroup> smallest_;  // of those that did not fit
  int budget_ = 0;
};

}  // namespace galley::placement
