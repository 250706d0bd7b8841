#include "engine/model/memory_plan_packing.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/core/device_traits.h"

namespace galley::model {
namespace {

struct Group {
  int first = 0, last = 0;
  uint64_t bytes = 0, offset = 0;
  std::vector<size_t> members;  // indices of tensors, in plan order
};

std::vector<Group> groups_of(const std::vector<PlannedTensor>& tensors, ArenaKind arena,
                             uint32_t alignment_bytes) {
  std::map<std::pair<int, int>, Group> by_lifetime;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const PlannedTensor& tensor = tensors[i];
    if (tensor.arena != arena) continue;
    Group& group = by_lifetime[{tensor.first_moment, tensor.last_moment}];
    group.first = tensor.first_moment;
    group.last = tensor.last_moment;
    group.bytes += round_up(tensor.bytes, alignment_bytes);
    group.members.push_back(i);
  }
  std::vector<Group> groups;
  for (auto& entry : by_lifetime) groups.push_back(std::move(entry.second));
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    return a.bytes > b.bytes;  // ties keep the order by lifetime
  });
  return groups;
}

/// Lowest offset at which `bytes` are free of all placed groups that live with `group`.
uint64_t lowest_free(const std::vector<Group>& placed, const Group& group) {
  std::vector<std::pair<uint64_t, uint64_t>> taken;  // begin, end
  for (const Group& other : placed) {
    if (other.first <= group.last && group.first <= other.last) {
      taken.emplace_back(other.offset, other.offset + other.bytes);
    }
  }
  std::sort(taken.begin(), taken.end());
  uint64_t offset = 0;
  for (const auto& [begin, end] : taken) {
    if (offset + group.bytes <= begin) break;
    offset = std::max(offset, end);
  }
  return offset;
}

}  // namespace

uint64_t pack_arena(std::vector<PlannedTensor>* tensors, ArenaKind arena,
                    uint32_t alignment_bytes) {
  uint64_t arena_bytes = 0;
  std::vector<Group> placed;
  for (Group& group : groups_of(*tensors, arena, alignment_bytes)) {
    group.offset = lowest_free(placed, group);
    uint64_t offset = group.offset;
    for (const size_t member : group.members) {
      (*tensors)[member].offset = offset;
      offset += round_up((*tensors)[member].bytes, alignment_bytes);
    }
    arena_bytes = std::max(arena_bytes, offset);
    placed.push_back(std::move(group));
  }
  return arena_bytes;
}

void fill_moments(MemoryPlan* plan) {
  for (Moment& moment : plan->moments) moment.live_bytes = 0;
  for (const PlannedTensor& tensor : plan->tensors) {
    for (int i = tensor.first_moment; i <= tensor.last_moment; ++i) {
      plan->moments[static_cast<size_t>(i)].live_bytes += tensor.bytes;
    }
  }
  plan->peak_moment = 0;
  for (size_t i = 0; i < plan->moments.size(); ++i) {
    const auto peak = static_cast<size_t>(plan->peak_moment);
    if (plan->moments[i].live_bytes > plan->moments[peak].live_bytes) {
      plan->peak_moment = static_cast<int>(i);
    }
  }
}

}  // namespace galley::model
