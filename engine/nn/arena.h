// Arena: one device buffer cut by a memory plan; finds tensors by name. Made once, before any step.
#pragma once

#include <string>
#include <unordered_map>

#include "engine/device/device.h"
#include "engine/model/memory_plan.h"

namespace galley::nn {

class Arena {
 public:
  /// Allocates the arena of `kind` with the size of the plan; error as Device::allocate.
  Arena(device::Device& device, const model::MemoryPlan& plan, model::ArenaKind kind,
        const std::string& label);
  /// Pointer to a tensor of the plan, or null when the plan has none of this name here.
  template <typename T = float>
  T* find(const std::string& name) const {
    const auto it = offsets_.find(name);
    return it == offsets_.end() ? nullptr : buffer_.at<T>(it->second);
  }

 private:
  device::Buffer buffer_;
  std::unordered_map<std::string, uint64_t> offsets_;
};

}  // namespace galley::nn
