// The command line: flags to options, options to commands. The only home of the flag parser.
#pragma once

#include "engine/core/env.h"
#include "launcher/commands.h"

namespace galley::launcher {

/// Runs `galley ...`; returns the exit code. Errors are printed to streams.err as
/// "galley: message"; an unknown flag or command names the nearest valid one.
int command_line_main(int argc, const char* const* argv, const Environment& environment,
                      Streams streams);

}  // namespace galley::launcher
