// The MPI headers' version, as constants of the build: includes the header, calls and links
// nothing.
#include <mpi.h>

#include "engine/core/strings.h"
#include "launcher/run.h"

namespace galley::launcher {

std::string mpi_build_version() {
#ifdef OMPI_MAJOR_VERSION
  return cat("Open MPI ", OMPI_MAJOR_VERSION, ".", OMPI_MINOR_VERSION, ".", OMPI_RELEASE_VERSION);
#else
  return cat("MPI ", MPI_VERSION, ".", MPI_SUBVERSION);
#endif
}

}  // namespace galley::launcher
