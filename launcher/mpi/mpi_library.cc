#include "launcher/mpi/mpi_library.h"

#include <mpi.h>

#include <cstdio>
#include <list>
#include <string>

namespace {

constexpr int kTag = 1;

struct Sending {
  MPI_Request request = MPI_REQUEST_NULL;
  std::string bytes;  // MPI reads from here until the request is done
};

}  // namespace

struct GalleyMpiWorld {
  int rank = 0;
  int size = 1;
  std::string version;
  std::list<Sending> sending;  // a list: addresses stay valid
};

namespace {

GalleyMpiWorld* open_world(char* error, size_t error_bytes) {
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
    std::snprintf(error, error_bytes, "MPI_Init_thread failed");
    return nullptr;
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  auto* world = new GalleyMpiWorld;
  MPI_Comm_rank(MPI_COMM_WORLD, &world->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world->size);
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  world->version.assign(text, static_cast<size_t>(length));
  return world;
}

int world_rank(const GalleyMpiWorld* world) { return world->rank; }
int world_size(const GalleyMpiWorld* world) { return world->size; }
const char* library_version(const GalleyMpiWorld* world) { return world->version.c_str(); }

int start_send(GalleyMpiWorld* world, int to, const char* bytes, size_t num_bytes) {
  Sending& sending = world->sending.emplace_back();
  sending.bytes.assign(bytes, num_bytes);
  const int code = MPI_Isend(sending.bytes.data(), static_cast<int>(num_bytes), MPI_BYTE, to, kTag,
                             MPI_COMM_WORLD, &sending.request);
  if (code != MPI_SUCCESS) world->sending.pop_back();
  return code == MPI_SUCCESS ? 0 : 1;
}

// Tests every send, not only the oldest: a dead receiver must not hold up the others.
size_t pending_sends(GalleyMpiWorld* world) {
  for (auto sending = world->sending.begin(); sending != world->sending.end();) {
    int done = 0;
    MPI_Test(&sending->request, &done, MPI_STATUS_IGNORE);
    sending = done != 0 ? world->sending.erase(sending) : std::next(sending);
  }
  return world->sending.size();
}

int probe(GalleyMpiWorld*, int* from, size_t* num_bytes) {
  int found = 0;
  MPI_Status status;
  if (MPI_Iprobe(MPI_ANY_SOURCE, kTag, MPI_COMM_WORLD, &found, &status) != MPI_SUCCESS) return 0;
  if (found == 0) return 0;
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  *from = status.MPI_SOURCE;
  *num_bytes = static_cast<size_t>(count);
  return 1;
}

int receive(GalleyMpiWorld*, int from, char* bytes, size_t num_bytes) {
  const int code = MPI_Recv(bytes, static_cast<int>(num_bytes), MPI_BYTE, from, kTag,
                            MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  return code == MPI_SUCCESS ? 0 : 1;
}

void finalize(GalleyMpiWorld* world) {
  MPI_Finalize();
  delete world;
}

constexpr GalleyMpiFunctions kFunctions = {
    kGalleyMpiInterface, open_world,    world_rank, world_size, library_version,
    start_send,          pending_sends, probe,      receive,    finalize,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const GalleyMpiFunctions* galley_mpi_functions() {
  return &kFunctions;
}
