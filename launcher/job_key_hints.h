// Where a key belongs that [[train]] does not have: other tools call many options differently, or
// have them flat where the job file has groups. Internal to job_file.
//
// Pure function; any thread.
#pragma once

#include <string>

namespace galley::launcher {

/// What to say after `unknown key "K" in SECTION` for the dotted key `written` ("epochs",
/// "optimizer.lr"): "; write length = { epochs = ... }", a nearest name, or nothing.
std::string unknown_key_hint(const std::string& written);

}  // namespace galley::launcher
