#include "engine/nn/arena.h"

namespace galley::nn {

Arena::Arena(device::Device& device, const model::MemoryPlan& plan, model::ArenaKind kind,
             const std::string& label) {
  uint64_t bytes = plan.activations_bytes;
  if (kind == model::ArenaKind::kWeights) bytes = plan.weights_bytes;
  if (kind == model::ArenaKind::kTrainable) bytes = plan.trainable_bytes;
  if (bytes > 0) buffer_ = device.allocate(bytes, label);
  for (const model::PlannedTensor& tensor : plan.tensors) {
    if (tensor.arena == kind) offsets_.emplace(tensor.name, tensor.offset);
  }
}

}  // namespace galley::nn
