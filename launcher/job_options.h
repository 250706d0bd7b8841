// The table of a training job's options: key, default, reader and printer of each. Internal to
// job_file; everything that knows a key of [[train]] knows it from here.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/toml.h"
#include "engine/model/train_spec.h"

namespace galley::launcher {

/// What a reader may need beside the value.
struct OptionContext {
  std::string base_directory;  // relative paths start here
};

/// A reader throws this for a value it cannot take; the caller adds file, line and key.
struct OptionFault {
  std::string message;
  Reason reason = Reason::kBadConfig;
};

struct TrainOption {
  std::string_view key;   // dotted path inside [[train]]
  std::string_view help;  // one line
  std::function<void(const ConfigValue&, const OptionContext&, model::TrainSpec*)> read;
  std::function<std::string(const model::TrainSpec&)> print;  // TOML text of the current value
};

/// All options, in the order in which they are printed.
const std::vector<TrainOption>& train_options();
/// Keys that are known but not offered by this version, with what to do instead.
struct UnavailableKey {
  std::string_view key;
  std::string_view remedy;
};
const std::vector<UnavailableKey>& unavailable_train_keys();
/// Keys that are groups of options ("adapter", "optimizer", ...).
std::vector<std::string> option_groups();

}  // namespace galley::launcher
