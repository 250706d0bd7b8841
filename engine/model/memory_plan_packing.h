// Packing of planned tensors into arenas by their lifetimes. Pure and deterministic.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/memory_plan.h"

namespace galley::model {

/// Gives every tensor of `arena` an offset (a multiple of `alignment_bytes`) such that no two
/// tensors that are alive at the same moment overlap; returns the bytes of the arena. Tensors of
/// equal lifetime are laid end to end as one group; groups go by size, largest first, to the lowest
/// place that is free during their life.
uint64_t pack_arena(std::vector<PlannedTensor>* tensors, ArenaKind arena, uint32_t alignment_bytes);

/// Fills live bytes of every moment, arena sizes must be set; picks the peak.
void fill_moments(MemoryPlan* plan);

}  // namespace galley::model
