#include <iterator>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/device/host/host_device.h"
#include "engine/device/host/host_ops.h"

namespace galley::device {
namespace {

constexpr KernelSet kAllSets[] = {KernelSet::kPortable, KernelSet::kAvx2, KernelSet::kAvx512,
                                  KernelSet::kAvx512Bf16};

}  // namespace

std::string kernel_set_name(KernelSet kernels) {
  switch (kernels) {
    case KernelSet::kAuto:
      return "auto";
    case KernelSet::kPortable:
      return "portable";
    case KernelSet::kAvx2:
      return "avx2";
    case KernelSet::kAvx512:
      return "avx512";
    case KernelSet::kAvx512Bf16:
      return "avx512-bf16";
  }
  return "unknown";
}

KernelSet kernel_set_from_name(const std::string& name) {
  if (name == kernel_set_name(KernelSet::kAuto)) return KernelSet::kAuto;
  for (const KernelSet kernels : kAllSets) {
    if (kernel_set_name(kernels) == name) return kernels;
  }
  const std::vector<std::string> names = kernel_set_names();
  throw Error(Reason::kUsage, "there are no kernels named \"" + name + "\" (known: " +
                                  join(names, ", ") + ")" + did_you_mean(name, names));
}

std::vector<std::string> kernel_set_names() {
  std::vector<std::string> names = {kernel_set_name(KernelSet::kAuto)};
  for (const KernelSet kernels : kAllSets) names.push_back(kernel_set_name(kernels));
  return names;
}

bool kernel_set_usable(KernelSet kernels) {
  // The compiler's run-time checks ask the operating system too (XGETBV).
  switch (kernels) {
    case KernelSet::kAuto:
    case KernelSet::kPortable:
      return true;
    case KernelSet::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case KernelSet::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("fma");
    case KernelSet::kAvx512Bf16:
      return kernel_set_usable(KernelSet::kAvx512) && __builtin_cpu_supports("avx512bf16");
  }
  return false;
}

bool kernel_set_rounds(KernelSet kernels) { return kernels == KernelSet::kAvx512Bf16; }

std::vector<KernelSet> all_kernel_sets() { return {std::begin(kAllSets), std::end(kAllSets)}; }

std::vector<KernelSet> usable_kernel_sets() {
  std::vector<KernelSet> usable;
  for (const KernelSet kernels : kAllSets) {
    if (kernel_set_usable(kernels)) usable.push_back(kernels);
  }
  return usable;
}

KernelSet best_kernel_set() {
  for (const KernelSet kernels : {KernelSet::kAvx512, KernelSet::kAvx2}) {
    if (kernel_set_usable(kernels)) return kernels;
  }
  return KernelSet::kPortable;
}

const KernelTable& kernel_table(KernelSet kernels) {
  switch (kernels) {
    case KernelSet::kAuto:
      return kernel_table(best_kernel_set());
    case KernelSet::kPortable:
      return kKernelsPortable;
    case KernelSet::kAvx2:
      return kKernelsAvx2;
    case KernelSet::kAvx512:
      return kKernelsAvx512;
    case KernelSet::kAvx512Bf16:
      return kKernelsAvx512Bf16;
  }
  return kKernelsPortable;
}

}  // namespace galley::device
