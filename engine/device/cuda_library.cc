#include "engine/device/cuda_library.h"

#include <optional>

#include "engine/core/error.h"
#include "engine/core/shared_library.h"
#include "engine/core/strings.h"

namespace galley::device {
namespace {

constexpr const char* kLibrary = "libgalley_cuda.so";

using Inspect = void (*)(CudaReport*);
using Open = Device* (*)(int, uint64_t);
using MakeCommunicator = Communicator* (*)(Stream*, GroupTransport*, const int*, int);

std::optional<SharedLibrary> open_library(std::string* reason) {
  if (SharedLibrary::find(kLibrary).empty()) {
    *reason = cat("this build has no CUDA device library (", kLibrary,
                  "); it is built where the CUDA toolkit is");
    return std::nullopt;
  }
  try {
    return SharedLibrary::open(kLibrary, LibrarySymbols::kLocal);
  } catch (const Error& error) {
    *reason = error.what();
    return std::nullopt;
  }
}

}  // namespace

CudaReport inspect_cuda() {
  CudaReport report;
  const std::optional<SharedLibrary> library = open_library(&report.reason);
  if (!library) return report;
  library->function<Inspect>("galley_cuda_inspect")(&report);
  return report;
}

std::unique_ptr<Device> open_cuda_device(int ordinal, uint64_t capacity_bytes) {
  std::string reason;
  const std::optional<SharedLibrary> library = open_library(&reason);
  if (!library) throw Error(Reason::kNoDevice, cat("no GPU can be used here: ", reason));
  const auto open = library->function<Open>("galley_cuda_open");
  return std::unique_ptr<Device>(open(ordinal, capacity_bytes));
}

std::unique_ptr<Communicator> make_cuda_communicator(Stream& stream, GroupTransport* transport,
                                                     const std::vector<int>& members) {
  std::string reason;
  const std::optional<SharedLibrary> library = open_library(&reason);
  if (!library) throw Error(Reason::kNoDevice, cat("no GPU can be used here: ", reason));
  const auto make = library->function<MakeCommunicator>("galley_cuda_communicator");
  return std::unique_ptr<Communicator>(
      make(&stream, transport, members.data(), static_cast<int>(members.size())));
}

}  // namespace galley::device
