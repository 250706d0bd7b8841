// Reasons and errors: one enumeration of everything that can end a job, a request or the program.
//
// Every failure that leaves a module is a galley::Error with a Reason. A Reason knows its exit
// code, whether trying again can help, and whose fault it is; nothing else in galley maps failures
// to exit codes. Values only; safe from any thread.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace galley {

/// What happened. The table in error.cc holds name, exit code, retry and fault of each.
enum class Reason {
  kOk,
  kInternal,       // our mistake
  kUsage,          // wrong flag or argument
  kJobFailed,      // some jobs failed or were skipped
  kBadModel,       // a model folder or weight file exists but is broken
  kBadTokenizer,   // a tokenizer file exists but is broken
  kBadTemplate,    // a chat template exists but cannot be parsed or rendered
  kBadData,        // a data set exists but rows are broken
  kBadCheckpoint,  // a checkpoint or adapter exists but is broken
  kUnsupported,    // valid, but this version cannot do it (names what)
  kMissingPath,    // a named path does not exist
  kDoesNotFit,     // no GPU here can hold the job
  kNoDevice,       // the asked device cannot be used here
  kCannotCreate,   // output cannot be created
  kIo,             // input or output error
  kDiskFull,       // no space or quota left
  kStopped,        // stopped early on request or by loss of an agent: submit again
  kPermission,     // not allowed to read or write
  kBadConfig,      // job or cluster file: syntax, unknown key, bad value
  kNotAvailable,   // a known key of a job file that this version does not offer yet
  kOutOfMemory,    // a device allocation beyond its capacity
  kNumerics,       // non-finite loss, gradient or adapter
  kWorkerDied,     // a worker ended by a signal or unexpected exit
  kWorkerHung,     // a worker made no progress within its deadline
  kDeviceError,    // a device reported a sticky error
  kAgentLost,      // an agent (or its node) is gone
};

enum class Retry { kNo, kYes };
enum class Fault { kNobody, kJob, kData, kGpu, kNode, kSite, kGalley };

struct ReasonTraits {
  std::string_view name;  // stable, snake case; written to journals
  int exit_code;          // as documented in --help
  Retry retry;            // may the same work succeed if started again?
  Fault fault;
};

const ReasonTraits& reason_traits(Reason reason);
/// Inverse of reason_traits().name; kInternal for a name that is unknown.
Reason reason_from_name(std::string_view name);

/// The one exception type. what() is a full sentence for the person who reads it at 2 a.m.: what is
/// wrong, where (file:line, job, key), what to do.
class Error : public std::runtime_error {
 public:
  Error(Reason reason, const std::string& message) : std::runtime_error(message), reason_(reason) {}
  Reason reason() const { return reason_; }
  int exit_code() const { return reason_traits(reason_).exit_code; }

 private:
  Reason reason_;
};

/// Maps errno to a Reason (ENOENT -> kMissingPath, ENOSPC/EDQUOT/EFBIG -> kDiskFull, EACCES/EPERM
/// -> kPermission, else `otherwise`).
Reason reason_from_errno(int error_number, Reason otherwise = Reason::kIo);
/// Throws Error for a failed system call: "cannot ACTION PATH: strerror".
[[noreturn]] void throw_errno(const std::string& action, const std::string& path, int error_number,
                              Reason otherwise = Reason::kIo);

namespace internal {
[[noreturn]] void check_failed(const char* file, int line, const char* expression);
}

}  // namespace galley

/// For our own mistakes only; user input must never reach one. Throws Error(kInternal).
#define GALLEY_CHECK(condition) \
  ((condition) ? (void)0 : ::galley::internal::check_failed(__FILE__, __LINE__, #condition))
