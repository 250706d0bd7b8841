// status: a run as its directory tells it, from any node.
#include <chrono>
#include <ostream>
#include <thread>

#include "engine/core/error.h"
#include "launcher/commands.h"
#include "launcher/process.h"
#include "launcher/status.h"

namespace galley::launcher {
namespace {

Json json_of(const FoundStatus& found) {
  Json out = Json::object();
  if (found.status) out.set("status", to_json(*found.status));
  if (found.record) {
    out.set("ended", Json::object()
                         .set("code", found.record->code)
                         .set("reason", std::string(reason_traits(found.record->reason).name))
                         .set("text", found.record->text));
  }
  return out;
}

}  // namespace

int command_status(const StatusOptions& options, Streams streams) {
  while (true) {
    const FoundStatus found = read_status(options.run_directory);
    if (options.form == OutputForm::kJson) {
      streams.out << json_of(found).dump() << "\n";
    } else {
      streams.out << status_text(options.run_directory, found, wall_clock_now());
    }
    streams.out.flush();
    if (!options.watch || found.record || !streams.out) return 0;
    std::this_thread::sleep_for(std::chrono::duration<double>(kStatusSeconds));
    if (options.form == OutputForm::kTable) streams.out << "\n";
  }
}

}  // namespace galley::launcher
