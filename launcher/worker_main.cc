#include "launcher/run.h"
#include "launcher/worker.h"
#include "trainer/run_job.h"

namespace galley::launcher {

int worker_main(int argc, char** argv) { return worker_process_main(argc, argv, trainer::run_job); }

}  // namespace galley::launcher
