#include "launcher/mpi/mpi_library.h"

#include <mpi.h>

#include <cstdio>
#include <list>
#include <set>
#include <string>

namespace {

constexpr int kTag = 1;
constexpr int kMostStarted = 16;       // receives at once
constexpr size_t kMostPending = 1024;  // and at all: more would only be memory

struct Sending {
  MPI_Request request = MPI_REQUEST_NULL;
  std::string bytes;  // MPI reads from here until the request is done
};

struct Receiving {
  MPI_Request request = MPI_REQUEST_NULL;
  int from = 0;
  std::string bytes;  // MPI writes here until the request is done
};

}  // namespace

struct GalleyMpiWorld {
  int rank = 0;
  int size = 1;
  std::string version;
  std::list<Sending> sending;  // lists: addresses stay valid
  std::list<Receiving> receiving;
  std::string received;  // handed out last
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

// A matched receive: what is announced is received by nobody else, also when it takes a while.
bool start_receive(GalleyMpiWorld* world) {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  if (MPI_Improbe(MPI_ANY_SOURCE, kTag, MPI_COMM_WORLD, &found, &message, &status) != MPI_SUCCESS ||
      found == 0) {
    return false;
  }
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  Receiving& receiving = world->receiving.emplace_back();
  receiving.from = status.MPI_SOURCE;
  receiving.bytes.resize(static_cast<size_t>(count));
  const int code =
      MPI_Imrecv(receiving.bytes.data(), count, MPI_BYTE, &message, &receiving.request);
  if (code != MPI_SUCCESS) world->receiving.pop_back();
  return code == MPI_SUCCESS;
}

int receive(GalleyMpiWorld* world, int* from, const char** bytes, size_t* num_bytes) {
  for (int i = 0; i < kMostStarted && world->receiving.size() < kMostPending; ++i) {
    if (!start_receive(world)) break;
  }
  std::set<int> waited_for;  // senders with an older message that is not complete
  for (auto entry = world->receiving.begin(); entry != world->receiving.end(); ++entry) {
    if (waited_for.contains(entry->from)) continue;
    int done = 0;
    MPI_Test(&entry->request, &done, MPI_STATUS_IGNORE);
    if (done == 0) {
      waited_for.insert(entry->from);
      continue;
    }
    *from = entry->from;
    world->received = std::move(entry->bytes);
    *bytes = world->received.data();
    *num_bytes = world->received.size();
    world->receiving.erase(entry);
    return 1;
  }
  return 0;
}

void finalize(GalleyMpiWorld* world) {
  MPI_Finalize();
  delete world;
}

constexpr GalleyMpiFunctions kFunctions = {
    kGalleyMpiInterface, open_world,    world_rank, world_size, library_version,
    start_send,          pending_sends, receive,    finalize,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const GalleyMpiFunctions* galley_mpi_functions() {
  return &kFunctions;
}
