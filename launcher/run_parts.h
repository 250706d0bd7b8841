// run_main with other parts than the product's, for programs that put in their own jobs.
#pragma once

#include "launcher/rank.h"

namespace galley::launcher {

/// As run_main(); workers are started as `own executable worker --parent PID`.
int run_main_with(const RunOptions& options, const Environment& environment, const RunParts& parts);

}  // namespace galley::launcher
