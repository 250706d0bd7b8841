#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "trainer/run_job.h"

namespace galley::trainer {
namespace {

Json to_json(const GroupMeeting& meeting) {
  Json nodes = Json::array();
  for (const int node : meeting.nodes) nodes.push(node);
  return Json::object()
      .set("token", meeting.token)
      .set("nodes", std::move(nodes))
      .set("ring_bytes", meeting.ring_bytes);
}

GroupMeeting meeting_from_json(const Json& json) {
  GroupMeeting meeting;
  meeting.token = json.at("token").as_string();
  for (const Json& node : json.at("nodes").as_array()) {
    meeting.nodes.push_back(static_cast<int>(node.as_int()));
  }
  meeting.ring_bytes = static_cast<uint64_t>(json.at("ring_bytes").as_int());
  return meeting;
}

}  // namespace

Json to_json(const TrainAssignment& assignment) {
  Json cpus = Json::array();
  for (const int cpu : assignment.cpus) cpus.push(cpu);
  Json shares = Json::array();
  for (const double share : assignment.replica_shares) shares.push(share);
  Json json = Json::object();
  json.set("spec", model::to_json(assignment.spec))
      .set("job_directory", assignment.job_directory)
      .set("token_file", assignment.token_file)
      .set("micro_batch_tokens", assignment.micro_batch_tokens)
      .set("recompute_blocks", assignment.recompute_blocks)
      .set("weight_dtype", dtype_name(assignment.weight_dtype))
      .set("may_round_inputs", assignment.may_round_inputs)
      .set("precision_note", assignment.precision_note)
      .set("capacity_bytes", assignment.capacity_bytes)
      .set("threads", assignment.threads)
      .set("cpus", std::move(cpus))
      .set("checkpoint_every_s", assignment.checkpoint_every_s)
      .set("keep_checkpoints", assignment.keep_checkpoints)
      .set("planned_bytes", assignment.planned_bytes)
      .set("layout", model::to_json(assignment.layout))
      .set("group_rank", assignment.group_rank)
      .set("meeting", to_json(assignment.meeting))
      .set("replica_shares", std::move(shares))
      .set("slowdown", assignment.slowdown);
  return json;
}

TrainAssignment train_assignment_from_json(const Json& json) {
  TrainAssignment assignment;
  assignment.spec = model::train_spec_from_json(json.at("spec"));
  assignment.job_directory = json.at("job_directory").as_string();
  assignment.token_file = json.at("token_file").as_string();
  assignment.micro_batch_tokens = json.at("micro_batch_tokens").as_int();
  assignment.recompute_blocks = json.at("recompute_blocks").as_bool();
  const auto dtype = dtype_from_name(json.at("weight_dtype").as_string());
  if (!dtype) throw Error(Reason::kInternal, "assignment with an unknown weight dtype");
  assignment.weight_dtype = *dtype;
  assignment.may_round_inputs = json.at("may_round_inputs").as_bool();
  assignment.precision_note = json.at("precision_note").as_string();
  assignment.capacity_bytes = static_cast<uint64_t>(json.at("capacity_bytes").as_int());
  assignment.threads = static_cast<int>(json.at("threads").as_int());
  for (const Json& cpu : json.at("cpus").as_array()) {
    assignment.cpus.push_back(static_cast<int>(cpu.as_int()));
  }
  assignment.checkpoint_every_s = json.at("checkpoint_every_s").as_double();
  assignment.keep_checkpoints = static_cast<int>(json.at("keep_checkpoints").as_int());
  assignment.planned_bytes = static_cast<uint64_t>(json.at("planned_bytes").as_int());
  assignment.layout = model::layout_from_json(json.at("layout"));
  assignment.group_rank = static_cast<int>(json.at("group_rank").as_int());
  assignment.meeting = meeting_from_json(json.at("meeting"));
  for (const Json& share : json.at("replica_shares").as_array()) {
    assignment.replica_shares.push_back(share.as_double());
  }
  assignment.slowdown = json.at("slowdown").as_double();
  return assignment;
}

}  // namespace galley::trainer
