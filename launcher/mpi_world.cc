#include "launcher/mpi_world.h"

#include <unistd.h>

#include <cstdlib>

#include "engine/core/error.h"
#include "engine/core/shared_library.h"
#include "engine/core/strings.h"
#include "launcher/mpi/mpi_library.h"

namespace galley::launcher {
namespace {

constexpr unsigned kInitSeconds =
    60;  // a rank that dies inside MPI_Init may leave the others there

const GalleyMpiFunctions* open_library() {
  // Global: the MPI library's own plugins look for its symbols in the program.
  const SharedLibrary library = SharedLibrary::open("libgalley_mpi.so", LibrarySymbols::kGlobal);
  using Entry = const GalleyMpiFunctions* (*)();
  const GalleyMpiFunctions* functions = library.function<Entry>("galley_mpi_functions")();
  if (functions->interface_version != kGalleyMpiInterface) {
    throw Error(Reason::kInternal, cat(library.path(), " belongs to another version of galley"));
  }
  return functions;
}

/// Open MPI moves long messages by reading the other process's memory, which containers forbid
/// (seccomp, ptrace rules): "Read -1, expected N, errno = 1". galley's messages are as fast through
/// shared memory. What the user sets stays.
void avoid_single_copies() {
  setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);  // Open MPI 4
  setenv("OMPI_MCA_smsc", "^cma", 0);                             // Open MPI 5
}

class OpenWorld : public MpiWorld {
 public:
  OpenWorld() : functions_(open_library()) {
    avoid_single_copies();
    alarm(kInitSeconds);
    char error[256] = "";
    world_ = functions_->open(error, sizeof error);
    if (world_ == nullptr) throw Error(Reason::kInternal, cat("MPI does not start: ", error));
  }

  int rank() const override { return functions_->rank(world_); }
  int size() const override { return functions_->size(world_); }
  std::string version() const override { return functions_->version(world_); }
  void started() override { alarm(0); }

  void send(int to, std::string bytes) override {
    functions_->send(world_, to, bytes.data(), bytes.size());
  }

  std::optional<ChannelMessage> try_receive() override {
    functions_->pending(world_);
    ChannelMessage message;
    const char* bytes = nullptr;
    size_t num_bytes = 0;
    if (functions_->receive(world_, &message.from, &bytes, &num_bytes) == 0) return std::nullopt;
    message.bytes.assign(bytes, num_bytes);
    return message;
  }

  bool flush() override { return functions_->pending(world_) == 0; }

  void finalize() override {
    functions_->finalize(world_);
    world_ = nullptr;
  }

 private:
  const GalleyMpiFunctions* functions_;
  GalleyMpiWorld* world_ = nullptr;  // not finalized by the destructor: that may hang
};

}  // namespace

std::unique_ptr<MpiWorld> MpiWorld::open() { return std::make_unique<OpenWorld>(); }

void check_started_by_mpirun(const Environment& environment) {
  if (environment.has("OMPI_COMM_WORLD_RANK") || environment.has("PMIX_RANK")) return;
  if (environment.has("SLURM_STEP_ID")) {
    throw Error(Reason::kUsage,
                "srun started galley without PMIx, so that MPI cannot start; say "
                "srun --mpi=pmix galley run ..., or mpirun galley run ... in a batch script");
  }
  if (environment.has("PMI_RANK")) {
    throw Error(Reason::kUsage,
                "this mpirun is not Open MPI's (it sets PMI_RANK only); galley needs the mpirun of "
                "Open MPI 4.1 or 5");
  }
  throw Error(Reason::kUsage,
              "galley run was started alone; start it as mpirun -n 2 galley run JOBS.toml, or use "
              "galley launch JOBS.toml");
}

}  // namespace galley::launcher
