#include "engine/device/cuda_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"

namespace galley::device {
namespace {

constexpr const char* kLibrary = "libgalley_cuda.so";

using Inspect = void (*)(CudaReport*);
using Open = Device* (*)(int, uint64_t);

std::string program_directory() {
  char path[4096];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
  return size > 0 ? path_directory(std::string(path, static_cast<size_t>(size))) : ".";
}

/// Beside the program in a build folder, or in ../lib of an installation.
std::string library_path() {
  for (const char* place : {"lib", "../lib", "."}) {
    const std::string path = path_join(path_join(program_directory(), place), kLibrary);
    if (path_exists(path)) return path;
  }
  return "";
}

/// The library stays open until the program ends: the runtime's threads may run in it.
void* open_library(std::string* reason) {
  const std::string path = library_path();
  if (path.empty()) {
    *reason = cat("this build has no CUDA device library (", kLibrary,
                  "); it is built where the CUDA toolkit is");
    return nullptr;
  }
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) *reason = cat("the CUDA device library cannot be loaded: ", ::dlerror());
  return library;
}

}  // namespace

CudaReport inspect_cuda() {
  CudaReport report;
  void* library = open_library(&report.reason);
  if (library == nullptr) return report;
  const auto inspect = reinterpret_cast<Inspect>(::dlsym(library, "galley_cuda_inspect"));
  if (inspect == nullptr) {
    report.reason = cat(kLibrary, " is of another version of galley");
    return report;
  }
  inspect(&report);
  return report;
}

std::unique_ptr<Device> open_cuda_device(int ordinal, uint64_t capacity_bytes) {
  std::string reason;
  void* library = open_library(&reason);
  const auto open =
      library == nullptr ? nullptr : reinterpret_cast<Open>(::dlsym(library, "galley_cuda_open"));
  if (open == nullptr) {
    throw Error(Reason::kNoDevice,
                "no GPU can be used here: " +
                    (reason.empty() ? cat(kLibrary, " is of another version") : reason));
  }
  return std::unique_ptr<Device>(open(ordinal, capacity_bytes));
}

}  // namespace galley::device
