#include "launcher/protocol.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::launcher {
namespace {

// A message begins with '{'.
constexpr char kBulkMark = '\x02';
constexpr size_t kBulkHeaderBytes = 1 + 8 + 4 + 4;

void put_number(uint64_t number, size_t bytes, std::string* out) {
  for (size_t i = 0; i < bytes; ++i) {
    out->push_back(static_cast<char>((number >> (8 * i)) & 0xFFu));
  }
}

uint64_t get_number(std::string_view bytes) {
  uint64_t number = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    number |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return number;
}

const MessageRow& row_of(std::string_view kind) {
  for (const MessageRow& row : message_table()) {
    if (row.kind == kind) return row;
  }
  throw Error(Reason::kInternal, cat("message of an unknown kind \"", kind, "\""));
}

}  // namespace

const std::vector<MessageRow>& message_table() {
  static const std::vector<MessageRow> table = {
      {"hello",
       Direction::kToCoordinator,
       {"protocol", "build", "host", "cpus", "node_cpus", "cpu_quota"}},
      {"agent-beat", Direction::kToCoordinator, {}},
      {"signalled", Direction::kToCoordinator, {"signal"}},
      {"job-started",
       Direction::kToCoordinator,
       {"job", "attempt", "worker", "step", "total_steps"}},
      {"job-progress",
       Direction::kToCoordinator,
       {"job", "attempt", "worker", "progress", "new_tokens"}},
      {"job-checkpointed",
       Direction::kToCoordinator,
       {"job", "attempt", "worker", "step", "seconds"}},
      {"job-warning", Direction::kToCoordinator, {"job", "attempt", "worker", "text"}},
      {"job-memory", Direction::kToCoordinator, {"job", "attempt", "worker", "peak_bytes"}},
      {"job-alive", Direction::kToCoordinator, {"job", "attempt", "worker", "what"}},
      {"job-waiting",
       Direction::kToCoordinator,
       {"job", "attempt", "worker", "waiting", "seconds"}},
      {"job-ended",
       Direction::kToCoordinator,
       {"job", "attempt", "worker", "outcome", "peak_bytes"}},
      {"goodbye", Direction::kToCoordinator, {}},
      {"welcome", Direction::kToAgent, {}},
      {"run", Direction::kToAgent, {"logs"}},
      {"coordinator-beat", Direction::kToAgent, {}},
      {"assign",
       Direction::kToAgent,
       {"job", "attempt", "worker", "workers", "group", "start_s", "silent_s", "deadline_s",
        "assignment"}},
      {"job-command", Direction::kToAgent, {"job", "attempt", "worker", "command"}},
      {"job-end", Direction::kToAgent, {"job", "attempt", "worker"}},
      {"quit", Direction::kToAgent, {"code", "finalize"}},
      {"start", Direction::kToWorker, {"assignment"}},
      {"command", Direction::kToWorker, {"command"}},
      {"beat", Direction::kFromWorker, {}},
      {"alive", Direction::kFromWorker, {"what"}},
      {"waiting", Direction::kFromWorker, {}},
      {"started", Direction::kFromWorker, {"step", "total_steps"}},
      {"progress", Direction::kFromWorker, {"progress", "new_tokens"}},
      {"checkpointed", Direction::kFromWorker, {"step", "seconds"}},
      {"warning", Direction::kFromWorker, {"text"}},
      {"ended", Direction::kFromWorker, {"outcome"}},
  };
  return table;
}

Json make_message(std::string_view kind) {
  row_of(kind);
  return Json::object().set("kind", Json(kind));
}

Json parse_message(std::string_view bytes, const std::vector<Direction>& allowed) {
  Json message = parse_json_or_throw(bytes, "message", Reason::kInternal);
  const MessageRow& row = row_of(message.get_string("kind"));
  if (std::find(allowed.begin(), allowed.end(), row.direction) == allowed.end()) {
    throw Error(Reason::kInternal, cat("message \"", row.kind, "\" came the wrong way"));
  }
  for (const std::string_view field : row.fields) {
    if (!message.contains(field)) {
      throw Error(Reason::kInternal, cat("message \"", row.kind, "\" lacks \"", field, "\""));
    }
  }
  return message;
}

Direction message_direction(const Json& message) { return row_of(message_kind(message)).direction; }

const std::string& message_kind(const Json& message) { return message.at("kind").as_string(); }

std::string encode_bulk(const BulkPiece& piece) {
  std::string bytes;
  bytes.reserve(kBulkHeaderBytes + piece.payload.size());
  bytes.push_back(kBulkMark);
  put_number(static_cast<uint64_t>(piece.group), 8, &bytes);
  put_number(static_cast<uint64_t>(piece.to), 4, &bytes);
  put_number(static_cast<uint64_t>(piece.from), 4, &bytes);
  return bytes.append(piece.payload);
}

bool is_bulk(std::string_view bytes) { return !bytes.empty() && bytes.front() == kBulkMark; }

BulkPiece decode_bulk(std::string_view bytes) {
  if (!is_bulk(bytes) || bytes.size() < kBulkHeaderBytes) {
    throw Error(Reason::kInternal, cat("a bulk piece of ", bytes.size(), " bytes"));
  }
  BulkPiece piece;
  piece.group = static_cast<int64_t>(get_number(bytes.substr(1, 8)));
  piece.to = static_cast<int>(get_number(bytes.substr(9, 4)));
  piece.from = static_cast<int>(get_number(bytes.substr(13, 4)));
  piece.payload = bytes.substr(kBulkHeaderBytes);
  return piece;
}

Json to_json(const trainer::JobProgress& progress) {
  return Json::object()
      .set("step", progress.step)
      .set("total_steps", progress.total_steps)
      .set("epoch", progress.epoch)
      .set("loss", progress.loss)
      .set("gradient_norm", progress.gradient_norm)
      .set("learning_rate", progress.learning_rate)
      .set("step_tokens", progress.step_tokens)
      .set("step_targets", progress.step_targets)
      .set("tokens_per_second", progress.tokens_per_second)
      .set("allocated_bytes", Json(progress.allocated_bytes))
      .set("checkpoint_step", progress.checkpoint_step);
}

trainer::JobProgress progress_from_json(const Json& json) {
  trainer::JobProgress progress;
  progress.step = json.get_int("step");
  progress.total_steps = json.get_int("total_steps");
  progress.epoch = json.get_double("epoch");
  progress.loss = json.get_double("loss");
  progress.gradient_norm = json.get_double("gradient_norm");
  progress.learning_rate = json.get_double("learning_rate");
  progress.step_tokens = json.get_int("step_tokens");
  progress.step_targets = json.get_int("step_targets");
  progress.tokens_per_second = json.get_double("tokens_per_second");
  progress.allocated_bytes = static_cast<uint64_t>(json.get_int("allocated_bytes"));
  progress.checkpoint_step = json.get_int("checkpoint_step");
  return progress;
}

}  // namespace galley::launcher
