// The host device: a CPU with its memory as a compute device, complete and the reference for CUDA.
//
// Owned by one worker thread. Its thread pool computes; results do not depend on timing, and for a
// given number of threads and chosen kernels they are bit-equal from run to run.
// Capacity is a hard limit: it emulates the memory of a GPU type.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "engine/device/ops.h"

namespace galley::device {

/// Rows of the kernel table. kAuto takes the best one that this processor has and that never rounds
/// inputs. kAvx512Bf16 rounds the left operand of products with bf16 weights to bf16, and both
/// operands of attention's products where ProductOperands allows it.
enum class KernelSet { kAuto, kPortable, kAvx2, kAvx512, kAvx512Bf16 };
std::string kernel_set_name(KernelSet kernels);
/// Error(kUsage) for an unknown name.
KernelSet kernel_set_from_name(const std::string& name);
/// True when this processor (and its operating system) can run them.
bool kernel_set_usable(KernelSet kernels);
/// True when products may round their inputs to bf16.
bool kernel_set_rounds(KernelSet kernels);
/// Every row of the table, the narrowest first; without kAuto.
std::vector<KernelSet> all_kernel_sets();
/// Those that this processor can run, in the same order.
std::vector<KernelSet> usable_kernel_sets();
/// Names of all sets of this version, usable here or not, as pins name them; "auto" first.
std::vector<std::string> kernel_set_names();
/// What kAuto means here.
KernelSet best_kernel_set();

/// The processor's own name ("AMD EPYC 9R14"), for records; kernels are never chosen by it.
std::string processor_name();

struct HostDeviceOptions {
  uint64_t capacity_bytes = 0;  // 0: the memory that is free now
  int num_threads = 1;
  std::vector<int> cpus;  // as ThreadPool takes them: thread i is bound to cpus[i]
  KernelSet kernels = KernelSet::kAuto;
};

/// The traits that a host device with these options will have, without making it.
DeviceTraits host_device_traits(const HostDeviceOptions& options);

class HostDevice : public Device {
 public:
  /// Starts the pool. Error(kUsage) for kernels that this processor lacks.
  static std::unique_ptr<HostDevice> create(const HostDeviceOptions& options);
  /// All operations, bound to `stream`.
  virtual OpSet all_ops(Stream& stream) = 0;
  virtual KernelSet kernels() const = 0;
};

}  // namespace galley::device
