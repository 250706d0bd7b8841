// Who belongs together in a group: the workers that share a stage's slices, those that hold the
// same shard, neighbours in the pipeline. Pure functions on values.
#pragma once

#include <vector>

#include "engine/model/layout.h"
#include "engine/model/lora.h"

namespace galley::model {

/// All group ranks, ascending.
std::vector<int> all_ranks(const ParallelLayout& layout);
/// Of the same stage and replica as the worker, itself among them, ascending.
std::vector<int> tensor_ranks(const WorkerPlace& place);
/// Of the same stage and tensor-parallel rank, one of each replica, ascending.
std::vector<int> replica_ranks(const WorkerPlace& place);
/// The worker with the same tensor-parallel rank and replica that many stages behind (negative:
/// before) this one; there must be one.
int stage_neighbour(const WorkerPlace& place, int stages);
/// The lowest stage with anything to differentiate; their number when there is none. `linears` of
/// the whole model.
int first_trained_stage(const ModelConfig& config, const ParallelLayout& layout,
                        const std::vector<AdaptedLinear>& linears);

}  // namespace galley::model
