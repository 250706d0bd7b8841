#include "placement/group_search.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "placement/describe.h"
#include "placement/pins.h"

namespace galley::placement {
namespace {

// Workers predicted for one call of best(); the best so far counts when they are used up.
constexpr int kMostPredictedWorkers = 3000;
// Choices of GPU types for one layout.
constexpr size_t kMostChoices = 48;
// GPUs of one job that nobody pinned.
constexpr int kMostGpus = 64;
// A group must be faster by more than this to be taken before an equal one.
constexpr double kFaster = 1 + 1e-9;

std::string kind_text(const Gpu& gpu) {
  return cat(gpu.type.name, "|", gpu.type.memory_bytes, "|", gpu.type.slowdown, "|",
             gpu.type.relative_speed, "|", gpu.type.link_bytes_per_s, "|",
             gpu.type.network_bytes_per_s, "|", gpu.threads);
}

/// Large memory first, then speed, then place.
bool goes_before(const Gpu& a, const Gpu& b) {
  const auto speed = [](const Gpu& gpu) {
    return gpu.type.peak_f32_flops * gpu.threads / gpu.type.slowdown;
  };
  if (a.type.memory_bytes != b.type.memory_bytes) return a.type.memory_bytes > b.type.memory_bytes;
  if (speed(a) != speed(b)) return speed(a) > speed(b);
  if (a.type.name != b.type.name) return a.type.name < b.type.name;
  return false;
}

int pinned_or_one(int64_t pin) { return static_cast<int>(std::max<int64_t>(1, pin)); }

bool possible(const model::ModelConfig& config, const model::ParallelLayout& layout) {
  try {
    model::require_layout(config, layout);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

GroupSearch::GroupSearch(const Cluster& cluster, const QueuedJob& job)
    : cluster_(cluster), job_(job) {
  std::map<int, int64_t> on_node;
  int64_t most = 0;
  for (const Gpu& gpu : cluster.gpus) most = std::max(most, ++on_node[gpu.node]);
  spans_nodes_ = job.spec.tp > most;
}

std::vector<model::ParallelLayout> GroupSearch::layouts(const std::vector<bool>& may_use) const {
  std::map<int, int> on_node;
  int total = 0, most_on_node = 0;
  for (size_t i = 0; i < may_use.size(); ++i) {
    if (!may_use[i]) continue;
    ++total;
    most_on_node = std::max(most_on_node, ++on_node[cluster_.gpus[i].node]);
  }
  const model::TrainSpec& spec = job_.spec;
  model::ParallelLayout layout = pinned_layout(spec);
  const bool pinned = spec.tp > 0 && spec.pp > 0;
  const int most = pinned ? total : std::min(total, std::max(kMostGpus, layout.dp_size));
  std::vector<model::ParallelLayout> all;
  if (spans_nodes_) most_on_node = total;
  for (int tp = pinned_or_one(spec.tp); tp <= std::min(most_on_node, most); ++tp) {
    for (int pp = pinned_or_one(spec.pp); tp * pp * layout.dp_size <= most; ++pp) {
      layout.tp_size = tp;
      layout.pp_size = pp;
      layout.sequence_parallel = spec.sequence_parallel && tp > 1 ? model::SequenceParallel::kYes
                                                                  : model::SequenceParallel::kNo;
      if (layout.num_workers() > 1 && possible(job_.config, layout)) all.push_back(layout);
      if (spec.pp > 0 || pp >= job_.config.num_layers) break;
    }
    if (spec.tp > 0) break;
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.num_workers() < b.num_workers(); });
  return all;
}

int GroupSearch::kind_of(const std::vector<GpuIndex>& gpus) {
  std::vector<std::string> kind;
  for (const GpuIndex gpu : gpus)
    kind.push_back(kind_text(cluster_.gpus[static_cast<size_t>(gpu)]));
  const auto found = std::find(kinds_.begin(), kinds_.end(), kind);
  if (found != kinds_.end()) return static_cast<int>(found - kinds_.begin());
  kinds_.push_back(std::move(kind));
  return static_cast<int>(kinds_.size()) - 1;
}

/// Blocks of these GPUs, of like ones where they reach.
void GroupSearch::add_blocks(int tp_size, std::vector<GpuIndex> gpus, int node, Blocks* blocks) {
  const auto size = static_cast<size_t>(tp_size);
  const auto cut = [&](std::vector<GpuIndex>* from) {
    while (from->size() >= size) {
      std::vector<GpuIndex> block(from->begin(), from->begin() + tp_size);
      from->erase(from->begin(), from->begin() + tp_size);
      const int kind = kind_of(block);
      blocks->push_back({std::move(block), node, kind});
    }
  };
  std::map<std::string, std::vector<GpuIndex>> like;
  for (const GpuIndex gpu : gpus) {
    like[kind_text(cluster_.gpus[static_cast<size_t>(gpu)])].push_back(gpu);
  }
  std::vector<GpuIndex> left;
  for (auto& [kind, alike] : like) {
    cut(&alike);
    left.insert(left.end(), alike.begin(), alike.end());
  }
  std::stable_sort(left.begin(), left.end(), [&](GpuIndex a, GpuIndex b) {
    return goes_before(cluster_.gpus[static_cast<size_t>(a)],
                       cluster_.gpus[static_cast<size_t>(b)]);
  });
  cut(&left);
}

/// As many blocks as there are; sorted by goes_before() of their first GPU, equal ones by node.
GroupSearch::Blocks GroupSearch::make_blocks(int tp_size, const std::vector<bool>& may_use) {
  std::map<int, std::vector<GpuIndex>> on_node;
  for (size_t i = 0; i < may_use.size(); ++i) {
    if (may_use[i]) {
      on_node[spans_nodes_ ? 0 : cluster_.gpus[i].node].push_back(static_cast<GpuIndex>(i));
    }
  }
  Blocks blocks;
  for (auto& [node, gpus] : on_node) {
    // Neighbours on a node first, whatever the order of the cluster's list.
    std::stable_sort(gpus.begin(), gpus.end(), [&](GpuIndex a, GpuIndex b) {
      return cluster_.gpus[static_cast<size_t>(a)].node <
             cluster_.gpus[static_cast<size_t>(b)].node;
    });
    add_blocks(tp_size, gpus, node, &blocks);
  }
  std::stable_sort(blocks.begin(), blocks.end(), [&](const Block& a, const Block& b) {
    return goes_before(cluster_.gpus[static_cast<size_t>(a.gpus.back())],
                       cluster_.gpus[static_cast<size_t>(b.gpus.back())]);
  });
  return blocks;
}

/// How many blocks of each kind to take: all ways, those with most of the largest first.
std::vector<std::vector<int>> GroupSearch::kind_counts(const Blocks& blocks, int wanted) const {
  std::vector<int> order, there(kinds_.size(), 0);
  for (const Block& block : blocks) {
    if (there[static_cast<size_t>(block.kind)]++ == 0) order.push_back(block.kind);
  }
  std::vector<std::vector<int>> all;
  std::vector<int> counts(kinds_.size(), 0);
  const std::function<void(size_t, int)> take = [&](size_t at, int left) {
    if (all.size() >= kMostChoices) return;
    if (left == 0) {
      all.push_back(counts);
      return;
    }
    if (at == order.size()) return;
    const auto kind = static_cast<size_t>(order[at]);
    for (int count = std::min(left, there[kind]); count >= 0; --count) {
      counts[kind] = count;
      take(at + 1, left - count);
    }
    counts[kind] = 0;
  };
  take(0, wanted);
  // Of one kind alone: always worth a look, wherever the budget ended.
  for (const int kind : order) {
    if (there[static_cast<size_t>(kind)] < wanted) continue;
    std::vector<int> alone(kinds_.size(), 0);
    alone[static_cast<size_t>(kind)] = wanted;
    if (std::find(all.begin(), all.end(), alone) == all.end()) all.push_back(alone);
  }
  return all;
}

/// Blocks of these kinds, from nodes that have many of them, by group rank: a stage has alike GPUs
/// in all replicas as far as they go.
std::vector<GpuIndex> GroupSearch::choose(const Blocks& blocks, const std::vector<int>& counts,
                                          const model::ParallelLayout& layout) const {
  std::vector<int> wanted_on(cluster_.nodes.size(), 0);
  for (const Block& block : blocks) {
    if (counts[static_cast<size_t>(block.kind)] > 0) ++wanted_on[static_cast<size_t>(block.node)];
  }
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return wanted_on[static_cast<size_t>(blocks[a].node)] >
           wanted_on[static_cast<size_t>(blocks[b].node)];
  });
  std::vector<int> left = counts;
  std::vector<size_t> chosen;
  for (const size_t index : order) {
    if (left[static_cast<size_t>(blocks[index].kind)]-- > 0) chosen.push_back(index);
  }
  std::sort(chosen.begin(), chosen.end());  // blocks are sorted
  // Stages of a replica close together when all GPUs are alike.
  const bool alike = std::count_if(counts.begin(), counts.end(), [](int n) { return n > 0; }) == 1;
  std::vector<GpuIndex> gpus(static_cast<size_t>(layout.num_workers()));
  for (size_t i = 0; i < chosen.size(); ++i) {
    const int index = static_cast<int>(i);
    const int stage = alike ? index % layout.pp_size : index / layout.dp_size;
    const int replica = alike ? index / layout.pp_size : index % layout.dp_size;
    for (int tp_rank = 0; tp_rank < layout.tp_size; ++tp_rank) {
      const int rank = model::group_rank(layout, {tp_rank, stage, replica});
      gpus[static_cast<size_t>(rank)] = blocks[chosen[i]].gpus[static_cast<size_t>(tp_rank)];
    }
  }
  return gpus;
}

std::vector<predictor::GroupGpu> GroupSearch::group_gpus(const std::vector<GpuIndex>& gpus) const {
  std::vector<predictor::GroupGpu> out;
  for (const GpuIndex index : gpus) {
    const Gpu& gpu = cluster_.gpus[static_cast<size_t>(index)];
    out.push_back({gpu.type, std::max(1, gpu.threads), gpu.node});
  }
  return out;
}

/// Less memory than the weights alone take.
bool GroupSearch::too_small(const std::vector<GpuIndex>& gpus) const {
  const bool narrow =
      job_.config.stored_dtype == DType::kBf16 || job_.spec.precision == model::Precision::kBf16;
  const uint64_t weights = job_.config.num_parameters() * (narrow ? 2 : 4);
  uint64_t memory = 0;
  for (const GpuIndex index : gpus) {
    const predictor::GpuType& type = cluster_.gpus[static_cast<size_t>(index)].type;
    const uint64_t own =
        predictor::runs_on_host(type) ? 0 : type.context_bytes + type.communicator_bytes;
    memory += type.memory_bytes - std::min(own, type.memory_bytes);
  }
  return memory < weights * static_cast<uint64_t>(pinned_or_one(job_.spec.dp));
}

const predictor::Candidate& GroupSearch::predicted(const model::ParallelLayout& layout,
                                                   const std::vector<GpuIndex>& gpus) {
  // Equal GPUs at equal distances do equally well.
  std::string key = to_text(layout);
  std::vector<int> nodes;
  for (const GpuIndex index : gpus) {
    const Gpu& gpu = cluster_.gpus[static_cast<size_t>(index)];
    auto node = std::find(nodes.begin(), nodes.end(), gpu.node);
    if (node == nodes.end()) node = nodes.insert(nodes.end(), gpu.node);
    key += cat(";", kind_text(gpu), "@", node - nodes.begin());
  }
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  budget_ -= layout.num_workers();
  const std::vector<predictor::GroupGpu> group = group_gpus(gpus);
  return known_
      .emplace(key, predictor::group_candidate(job_.config, job_.spec, job_.data, layout, group))
      .first->second;
}

std::optional<FoundGroup> GroupSearch::best(const std::vector<bool>& may_use) {
  budget_ = kMostPredictedWorkers;
  std::optional<FoundGroup> best;
  int considered = 0, size = 0;
  const auto lacks = [](const predictor::Prediction& prediction) {
    return static_cast<double>(prediction.high_bytes) /
           static_cast<double>(std::max<uint64_t>(1, prediction.usable_bytes));
  };
  const std::vector<model::ParallelLayout> all = layouts(may_use);
  for (const model::ParallelLayout& layout : all) {
    if (layout.num_workers() != size) {
      if (best) break;
      size = layout.num_workers();
      considered = 0;
    }
    const Blocks blocks = make_blocks(layout.tp_size, may_use);
    const int wanted = layout.pp_size * layout.dp_size;
    if (static_cast<int>(blocks.size()) < wanted) continue;
    const bool last = size == all.back().num_workers();
    const std::vector<std::vector<int>> choices = kind_counts(blocks, wanted);
    for (const std::vector<int>& counts : choices) {
      if (budget_ <= 0) return best;
      const std::vector<GpuIndex> gpus = choose(blocks, counts, layout);
      // What cannot fit is looked at only for the refusal.
      if (too_small(gpus) && (smallest_ || !last)) continue;
      const predictor::Candidate& candidate = predicted(layout, gpus);
      ++considered;
      if (candidate.prediction.fits) {
        if (!best || candidate.prediction.tokens_per_second >
                         kFaster * best->candidate.prediction.tokens_per_second) {
          best = FoundGroup{gpus, candidate, 0};
        }
        best->considered = considered;
        continue;
      }
      if (!smallest_ || lacks(candidate.prediction) < lacks(smallest_->candidate.prediction)) {
        smallest_ = FoundGroup{gpus, candidate, 0};
      }
      // The choice with the largest GPUs comes first: what it cannot hold, no other choice can.
      if (&counts == &choices.front()) break;
    }
  }
  return best;
}

/// The longest rows that would fit on the GPUs of the smallest plan.
std::string GroupSearch::remedy(const FoundGroup& smallest) const {
  const std::vector<predictor::GroupGpu> gpus = group_gpus(smallest.gpus);
  int64_t longest = job_.spec.sequence;
  if (job_.data.longest_tokens > 0) longest = std::min(longest, job_.data.longest_tokens);
  for (int64_t sequence = longest / 2; sequence >= 64; sequence /= 2) {
    model::TrainSpec changed = job_.spec;
    changed.sequence = sequence;
    const predictor::Prediction prediction =
        predictor::group_candidate(job_.config, changed, job_.data, smallest.candidate.shape.layout,
                                   gpus)
            .prediction;
    if (prediction.fits) {
      return cat("what would fit there: batch.sequence = ", sequence, " (",
                 format_bytes(static_cast<double>(prediction.high_bytes)), ")");
    }
  }
  return "it needs more GPUs, or larger ones";
}

std::string GroupSearch::refusal(const std::vector<bool>& may_use) {
  const model::TrainSpec& spec = job_.spec;
  const model::ParallelLayout asked = pinned_layout(spec);
  try {
    model::require_layout(job_.config, asked);
  } catch (const Error& error) {
    return error.what();
  }
  if (smallest_) {
    const predictor::Prediction& prediction = smallest_->candidate.prediction;
    const std::string types = types_text(cluster_, smallest_->gpus);
    const bool alike = types.find(" + ") == std::string::npos;
    return cat("in a group, the smallest plan needs ",
               format_bytes(static_cast<double>(prediction.high_bytes)),
               alike ? " on each of " : " on the fullest of ", types, " (",
               shape_text(smallest_->candidate.shape), "), and there are ",
               format_bytes(static_cast<double>(prediction.usable_bytes)), "; ",
               remedy(*smallest_));
  }
  const auto total = std::count(may_use.begin(), may_use.end(), true);
  if (asks_for_group(spec)) {
    const int needs = asked.num_workers();
    if (needs > total) {
      return cat(to_text(asked), " needs ", needs, " GPUs, the allocation has ", total,
                 " that it may use; ask for more GPUs, or for smaller parallel sizes (to try it "
                 "on this machine, describe emulated GPUs and give them with --cluster)");
    }
    const int stages = asked.pp_size * asked.dp_size;
    return cat(to_text(asked), " needs ", asked.tp_size, " GPUs on one node",
               stages > 1 ? cat(" for each of ", stages, " stages") : "",
               ", which the nodes of the allocation do not have; set a smaller plan.tp");
  }
  if (total == 0) return "";  // what it is pinned to is not there at all
  return total < 2 ? std::string("there is no second GPU to share it with")
                   : std::string("the model cannot be divided over the GPUs there are");
}

}  // namespace galley::placement
