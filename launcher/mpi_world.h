// MpiWorld: the Channel between ranks, over libgalley_mpi.so, which is opened here at run time.
//
// Owned by the main thread of a rank; only that thread calls it. Opened by `galley run` alone.
#pragma once

#include <memory>
#include <string>

#include "engine/core/channel.h"
#include "engine/core/env.h"

namespace galley::launcher {

class MpiWorld : public Channel {
 public:
  /// Opens the library (engine/core/shared_library.h) and initialises MPI under an alarm of 60 s.
  /// Error(kInternal) when the library is missing or MPI cannot start.
  static std::unique_ptr<MpiWorld> open();
  /// The library and its version ("Open MPI v4.1.4, ...").
  virtual std::string version() const = 0;
  /// Ends the alarm of open(): every rank has been heard.
  virtual void started() = 0;
  /// MPI_Finalize; only when every rank is alive and nothing is pending. The channel is unusable
  /// then.
  virtual void finalize() = 0;
};

/// Refuses a start that cannot work, before MPI is touched: Error(kUsage) that says how to start.
void check_started_by_mpirun(const Environment& environment);

}  // namespace galley::launcher
