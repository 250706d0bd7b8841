#include "launcher/run.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "launcher/binding.h"
#include "launcher/mpi_world.h"
#include "launcher/process.h"
#include "launcher/rank.h"
#include "launcher/run_parts.h"

namespace galley::launcher {
namespace {

constexpr unsigned long kTimerSlackNs = 1000;  // or short sleeps get 50 us longer

int run_rank(const RunOptions& options, const Environment& environment, RunParts parts) {
  // Before MPI starts: a signal that comes early is read later, and kills nobody.
  SignalInbox signals({SIGUSR1, SIGUSR2, SIGTERM, SIGINT, SIGHUP, SIGCONT});
  ignore_broken_pipes();
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);
  const std::unique_ptr<MpiWorld> world = MpiWorld::open();
  parts.all_heard = [&world] { world->started(); };
  parts.start_worker = process_starter(own_executable(), environment);
  const RankEnd end = world->rank() == 0 ? coordinate(*world, options, environment, parts, &signals)
                                         : serve_as_agent(*world, environment, parts, &signals);
  std::fflush(nullptr);
  if (!end.may_finalize) _exit(end.code);  // MPI_Finalize may hang after a loss
  world->finalize();
  return end.code;
}

}  // namespace

int run_main_with(const RunOptions& options, const Environment& environment,
                  const RunParts& parts) {
  umask(077);
  try {
    check_started_by_mpirun(environment);
    undo_default_binding(environment);
    return run_rank(options, environment, parts);
  } catch (const Error& error) {
    std::fprintf(stderr, "galley: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "galley: internal error: %s\n", error.what());
    return reason_traits(Reason::kInternal).exit_code;
  }
}

int run_main(const RunOptions& options, const Environment& environment) {
  return run_main_with(options, environment, RunParts{});
}

}  // namespace galley::launcher
