// The C interface of libgalley_mpi.so, the only code of galley that calls MPI.
//
// The program opens this library at run time (launcher/mpi_world), so that workers, login-node
// commands and --version never load MPI. Point-to-point only; no communicator is made after start;
// one thread calls (FUNNELED).
#pragma once

#include <cstddef>

extern "C" {

/// Version of this interface; the caller refuses another one.
constexpr int kGalleyMpiInterface = 2;

struct GalleyMpiWorld;  // owned by the library

struct GalleyMpiFunctions {
  int interface_version;
  /// MPI_Init_thread; nullptr and a text in `error` on failure.
  GalleyMpiWorld* (*open)(char* error, size_t error_bytes);
  int (*rank)(const GalleyMpiWorld* world);
  int (*size)(const GalleyMpiWorld* world);
  /// "Open MPI v4.1.4, ..."; valid as long as the world.
  const char* (*version)(const GalleyMpiWorld* world);
  /// Copies the bytes and starts a nonblocking send. 0 when started.
  int (*send)(GalleyMpiWorld* world, int to, const char* bytes, size_t num_bytes);
  /// Moves sends on; how many are still pending.
  size_t (*pending)(GalleyMpiWorld* world);
  /// Starts to receive what has been announced, and moves it on. 1 when a message is complete: its
  /// sender, its bytes (valid until the next call) and their number; else 0. Messages of one sender
  /// come in order; a long one of a sender that has stopped holds nobody else up.
  int (*receive)(GalleyMpiWorld* world, int* from, const char** bytes, size_t* num_bytes);
  /// MPI_Finalize and release. Only when every rank is alive.
  void (*finalize)(GalleyMpiWorld* world);
};

/// The one exported symbol.
const GalleyMpiFunctions* galley_mpi_functions();
}
