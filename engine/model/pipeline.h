// Pipeline schedule: what a stage does in one optimizer step, as a list.
//
// 1F1B: a stage runs as many forwards ahead as there are stages behind it, then one backward for
// each forward, then the rest of the backwards; so stage i of p holds at most p - i micro batches.
// Pure; the same list drives the trainer, the memory plan and the speed prediction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace galley::model {

enum class PipelineOp : uint8_t {
  kReceiveInput,  // the residual stream from the stage before
  kForward,
  kSendOutput,       // to the stage behind; does not wait for it
  kReceiveGradient,  // of the output, from the stage behind
  kBackward,         // the last stage: loss first
  kSendGradient,     // of the input, to the stage before
};
std::string_view pipeline_op_name(PipelineOp op);

struct PipelineStep {
  PipelineOp op = PipelineOp::kForward;
  int micro_batch = 0;
  int slot = 0;  // of the activations kept for backward: micro_batch % pipeline_slots()
  bool operator==(const PipelineStep&) const = default;
};

struct PipelineShape {
  int num_stages = 1, stage = 0, num_micro_batches = 1;
  /// The lowest stage with anything to differentiate: those before it only run forward, and nothing
  /// is sent down to them. num_stages: nothing is differentiated anywhere.
  int first_trained_stage = 0;
};

/// Slots of kept activations that a stage needs, whatever the number of micro batches.
int pipeline_slots(int num_stages, int stage);
/// The list of one stage, into `steps` (its storage is used again). For the last stage kBackward
/// stands for loss and backward, and is there even when nothing is differentiated.
void pipeline_1f1b(const PipelineShape& shape, std::vector<PipelineStep>* steps);
/// One line per stage, one column per unit of time: "F0 F1 . B0 F2 B1 ...".
std::string pipeline_text(int num_stages, int num_micro_batches);

/// Seconds of one step of a pipeline: stages with their times per micro batch, and the time that a
/// hand-over takes. Follows the lists event by event.
struct StageTimes {
  double forward_s = 0, backward_s = 0;
};
double pipeline_seconds(const std::vector<StageTimes>& stages, int num_micro_batches,
                        double hand_over_s);

}  // namespace galley::model
