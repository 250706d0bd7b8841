#include "engine/core/error.h"

#include <cerrno>
#include <cstring>
#include <iterator>

namespace galley {
namespace {

struct Row {
  Reason reason;
  ReasonTraits traits;
};

constexpr Row kTable[] = {
    {Reason::kOk, {"ok", 0, Retry::kNo, Fault::kNobody}},
    {Reason::kInternal, {"internal", 1, Retry::kNo, Fault::kGalley}},
    {Reason::kUsage, {"usage", 2, Retry::kNo, Fault::kJob}},
    {Reason::kJobFailed, {"job_failed", 3, Retry::kNo, Fault::kJob}},
    {Reason::kBadModel, {"bad_model", 65, Retry::kNo, Fault::kData}},
    {Reason::kBadTokenizer, {"bad_tokenizer", 65, Retry::kNo, Fault::kData}},
    {Reason::kBadTemplate, {"bad_template", 65, Retry::kNo, Fault::kData}},
    {Reason::kBadData, {"bad_data", 65, Retry::kNo, Fault::kData}},
    {Reason::kBadCheckpoint, {"bad_checkpoint", 65, Retry::kNo, Fault::kData}},
    {Reason::kUnsupported, {"unsupported", 65, Retry::kNo, Fault::kData}},
    {Reason::kMissingPath, {"missing_path", 66, Retry::kNo, Fault::kJob}},
    {Reason::kDoesNotFit, {"does_not_fit", 69, Retry::kNo, Fault::kJob}},
    {Reason::kNoDevice, {"no_device", 69, Retry::kNo, Fault::kNode}},
    {Reason::kCannotCreate, {"cannot_create", 73, Retry::kNo, Fault::kSite}},
    {Reason::kIo, {"io", 74, Retry::kYes, Fault::kSite}},
    {Reason::kDiskFull, {"disk_full", 74, Retry::kNo, Fault::kSite}},
    {Reason::kStopped, {"stopped", 75, Retry::kYes, Fault::kNobody}},
    {Reason::kPermission, {"permission", 77, Retry::kNo, Fault::kSite}},
    {Reason::kBadConfig, {"bad_config", 78, Retry::kNo, Fault::kJob}},
    {Reason::kNotAvailable, {"not_available", 78, Retry::kNo, Fault::kJob}},
    {Reason::kOutOfMemory, {"out_of_memory", 3, Retry::kNo, Fault::kGpu}},
    {Reason::kNumerics, {"numerics", 3, Retry::kNo, Fault::kJob}},
    {Reason::kWorkerDied, {"worker_died", 3, Retry::kYes, Fault::kNode}},
    {Reason::kWorkerHung, {"worker_hung", 3, Retry::kYes, Fault::kNode}},
    {Reason::kDeviceError, {"device_error", 3, Retry::kYes, Fault::kGpu}},
    {Reason::kAgentLost, {"agent_lost", 75, Retry::kYes, Fault::kNode}},
};

}  // namespace

const ReasonTraits& reason_traits(Reason reason) {
  for (const Row& row : kTable) {
    if (row.reason == reason) return row.traits;
  }
  return kTable[1].traits;
}

Reason reason_from_name(std::string_view name) {
  for (const Row& row : kTable) {
    if (row.traits.name == name) return row.reason;
  }
  return Reason::kInternal;
}

Reason reason_from_errno(int error_number, Reason otherwise) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      return Reason::kMissingPath;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Reason::kDiskFull;
    case EACCES:
    case EPERM:
      return Reason::kPermission;
    default:
      return otherwise;
  }
}

void throw_errno(const std::string& action, const std::string& path, int error_number,
                 Reason otherwise) {
  throw Error(reason_from_errno(error_number, otherwise),
              "cannot " + action + " " + path + ": " + std::strerror(error_number));
}

namespace internal {
void check_failed(const char* file, int line, const char* expression) {
  throw Error(Reason::kInternal, std::string("internal error at ") + file + ":" +
                                     std::to_string(line) + ": " + expression +
                                     " does not hold; please report this with the log");
}
}  // namespace internal

}  // namespace galley
