#include "engine/core/strings.h"
#include "galley_versions.h"
#include "launcher/commands.h"

namespace galley::launcher {

std::string version_text() {
  std::string out = cat("galley ", GALLEY_VERSION, "\n");
  const auto line = [&](const char* name, const char* version) {
    out += format("  %-9s %s\n", name, version);
  };
  line("Open MPI", GALLEY_BUILT_MPI);
  line("HDF5", GALLEY_BUILT_HDF5);
  line("CUDA", GALLEY_BUILT_CUDA);
  line("NCCL", GALLEY_BUILT_NCCL);
  line("cuDNN", GALLEY_BUILT_CUDNN);
  line("CLI11", GALLEY_BUILT_CLI11);
  line("spdlog", GALLEY_BUILT_SPDLOG);
  line("compiler", GALLEY_BUILD_COMPILER);
  line("build", GALLEY_BUILD_TYPE);
  line("flags", GALLEY_BUILD_FLAGS);
  if (*GALLEY_BUILD_SANITIZE != '\0') line("sanitize", GALLEY_BUILD_SANITIZE);
  return out;
}

}  // namespace galley::launcher
