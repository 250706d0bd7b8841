// Runs a short command of the system (squeue, scontrol) and takes what it prints.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace galley::launcher {

struct CommandResult {
  int exit_code = 0;
  std::string output;  // stdout
};
/// Nothing when the program is not there or took longer than `timeout_ms` (it is killed then).
std::optional<CommandResult> run_command(const std::vector<std::string>& words, int timeout_ms);

}  // namespace galley::launcher
