// The messages between coordinator, agents and workers, as one table. PROTOCOL.md explains them.
//
// A message is a Json object with "kind"; unknown kinds and missing fields are errors. Beside them
// agents send each other bulk pieces: bytes of a worker for a worker on another node. Pure values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/core/json.h"
#include "trainer/run_job.h"

namespace galley::launcher {

/// Version of the protocol; ranks with another one are refused at start.
constexpr int kProtocolVersion = 3;

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

/// Bytes from one worker of a group to another, as they travel between agents.
struct BulkPiece {
  int64_t group = 0;     // the start that they belong to, see "assign"
  int to = 0, from = 0;  // group ranks
  std::string_view payload;
};
/// Most bytes of one piece: small enough that nothing waits long behind it.
constexpr size_t kMaxBulkBytes = size_t{256} << 10;
std::string encode_bulk(const BulkPiece& piece);
/// True for a bulk piece, false for a message.
bool is_bulk(std::string_view bytes);
/// The payload stays in `bytes`. Error(kInternal) when it is too short.
BulkPiece decode_bulk(std::string_view bytes);

Json to_json(const trainer::JobProgress& progress);
trainer::JobProgress progress_from_json(const Json& json);

}  // namespace galley::launcher
