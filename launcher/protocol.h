// The messages between coordinator, agents and workers, as one table. PROTOCOL.md explains them.
//
// A message is a Json object with "kind"; unknown kinds and missing fields are errors. Pure values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/core/json.h"
#include "trainer/run_job.h"

namespace galley::launcher {

/// Version of the protocol; ranks with another one are refused at start.
constexpr int kProtocolVersion = 2;

enum class Direction { kToCoordinator, kToAgent, kToWorker, kFromWorker };

/// One row of the table: who gets it, and the fields it must have.
struct MessageRow {
  std::string_view kind;
  Direction direction;
  std::vector<std::string_view> fields;
};
const std::vector<MessageRow>& message_table();

/// An object with its kind first; add fields with set().
Json make_message(std::string_view kind);
/// Parses and checks one message. Error(kInternal) for an unknown kind, a missing field, or a kind
/// that does not travel in one of these directions.
Json parse_message(std::string_view bytes, const std::vector<Direction>& allowed);
Direction message_direction(const Json& message);
const std::string& message_kind(const Json& message);

Json to_json(const trainer::JobProgress& progress);
trainer::JobProgress progress_from_json(const Json& json);

}  // namespace galley::launcher
