// galley with made-up jobs, for tests under a real mpirun: run, launch, worker and exit-code take
// the product's way; only the training itself is fake.
#include <string>
#include <string_view>

#include "engine/core/strings.h"
#include "launcher/run.h"
#include "launcher/run_parts.h"
#include "tests/launcher/fake_run.h"

int main(int argc, char** argv) {
  using namespace galley::launcher;
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "worker") return worker_process_main(argc, argv, testing::fake_job);
  if (command == "exit-code") return read_exit_code(argv[2]);
  const galley::Environment environment = galley::Environment::current();
  LaunchOptions launch;
  RunOptions& run = launch.run;
  for (int i = 2; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--events-for-launch") {
      run.events = EventOutput::kForLaunch;
    } else if (word == "--") {
      launch.mpirun_options.assign(argv + i + 1, argv + argc);
      break;
    } else if (word == "--cluster") {
      run.cluster_file = argv[++i];
    } else if (word == "--run") {
      run.run_name = argv[++i];
    } else if (word == "--wall-time") {
      run.wall_time_s = galley::parse_duration(argv[++i]);
    } else if (word == "--deadline" || word == "--worker-timeout") {
      run.worker_timeout_s = galley::parse_duration(argv[++i]);
    } else if (word == "--requeue") {
      launch.requeue = true;
    } else if (word == "-n") {
      launch.num_ranks = static_cast<int>(galley::parse_int(argv[++i]).value_or(0));
    } else {
      run.job_file = word;
    }
  }
  if (command == "launch") return launch_main(launch, environment);
  RunParts parts = testing::fake_parts("runs");
  return run_main_with(run, environment, parts);
}
