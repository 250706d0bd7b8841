#include "engine/model/group_ranks.h"

#include "engine/core/error.h"
#include "engine/model/block.h"

namespace galley::model {
namespace {

template <typename Belongs>
std::vector<int> ranks_where(const ParallelLayout& layout, Belongs belongs) {
  std::vector<int> ranks;
  for (int rank = 0; rank < layout.num_workers(); ++rank) {
    if (belongs(worker_position(layout, rank))) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

std::vector<int> all_ranks(const ParallelLayout& layout) {
  return ranks_where(layout, [](const WorkerPosition&) { return true; });
}

std::vector<int> tensor_ranks(const WorkerPlace& place) {
  return ranks_where(place.layout, [&](const WorkerPosition& other) {
    return other.pp_rank == place.position.pp_rank && other.dp_rank == place.position.dp_rank;
  });
}

std::vector<int> replica_ranks(const WorkerPlace& place) {
  return ranks_where(place.layout, [&](const WorkerPosition& other) {
    return other.pp_rank == place.position.pp_rank && other.tp_rank == place.position.tp_rank;
  });
}

int stage_neighbour(const WorkerPlace& place, int stages) {
  WorkerPosition position = place.position;
  position.pp_rank += stages;
  GALLEY_CHECK(position.pp_rank >= 0 && position.pp_rank < place.layout.pp_size);
  return group_rank(place.layout, position);
}

int first_trained_stage(const ModelConfig& config, const ParallelLayout& layout,
                        const std::vector<AdaptedLinear>& linears) {
  const int first = first_adapted_layer(linears);
  if (first < 0) return layout.pp_size;
  int stage = 0, end = 0;
  for (const int layers : stage_layers(config, layout)) {
    end += layers;
    if (first < end) break;
    ++stage;
  }
  return stage;
}

}  // namespace galley::model
