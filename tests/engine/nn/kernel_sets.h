// Tests over the kernel table: one instance per row, named after it, so that a failure names the
// kernels. A row that this processor lacks is a skipped test with its name, never silent.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/device/host/host_device.h"

namespace galley::testing {

/// "avx512-bf16" as a name of a test's instance.
inline std::string kernel_set_instance(const ::testing::TestParamInfo<device::KernelSet>& info) {
  std::string name = device::kernel_set_name(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace galley::testing

/// Skips the rest of a test whose kernels this processor cannot run.
#define GALLEY_NEED_KERNELS(kernels)                                                               \
  if (!::galley::device::kernel_set_usable(kernels)) {                                             \
    GTEST_SKIP() << "this processor cannot run the " << ::galley::device::kernel_set_name(kernels) \
                 << " kernels";                                                                    \
  }

/// Runs every TEST_P of `suite` (a fixture with KernelSet parameters) with each row of the table.
#define GALLEY_FOR_KERNEL_SETS(suite)                                                \
  INSTANTIATE_TEST_SUITE_P(Kernels, suite,                                           \
                           ::testing::ValuesIn(::galley::device::all_kernel_sets()), \
                           ::galley::testing::kernel_set_instance)
