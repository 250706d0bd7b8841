#include "engine/model/pipeline.h"

#include <algorithm>

#include "engine/core/error.h"

namespace galley::model {
namespace {

/// One stage of the simulation: its list, how far it is and when it is free.
struct StageRun {
  std::vector<PipelineStep> steps;
  size_t next = 0;
  double free_s = 0;
  std::vector<double> input_s, gradient_s;  // when they arrive, by micro batch; < 0: not sent yet
};

struct StageEvent {
  int stage = 0;
  PipelineOp op = PipelineOp::kForward;
  int micro_batch = 0;
  double begin_s = 0, end_s = 0;
};

/// Runs the lists of all stages; forwards and backwards in `events` where it is given.
class Simulation {
 public:
  Simulation(const std::vector<StageTimes>& times, int num_micro_batches, double hand_over_s)
      : times_(times), hand_over_s_(hand_over_s), runs_(times.size()) {
    const int num_stages = static_cast<int>(times.size());
    // A stage without backward has nothing to differentiate.
    int first = 0;
    while (first < num_stages && !(times[static_cast<size_t>(first)].backward_s > 0)) ++first;
    for (int stage = 0; stage < num_stages; ++stage) {
      StageRun& run = runs_[static_cast<size_t>(stage)];
      pipeline_1f1b({num_stages, stage, num_micro_batches, first}, &run.steps);
      run.input_s.assign(static_cast<size_t>(num_micro_batches), -1);
      run.gradient_s.assign(static_cast<size_t>(num_micro_batches), -1);
    }
  }

  double run(std::vector<StageEvent>* events) {
    bool all_done = false;
    while (!all_done) {
      bool moved = false;
      all_done = true;
      for (size_t stage = 0; stage < runs_.size(); ++stage) {
        while (runs_[stage].next < runs_[stage].steps.size() && advance(stage, events)) {
          moved = true;
        }
        all_done = all_done && runs_[stage].next == runs_[stage].steps.size();
      }
      GALLEY_CHECK(moved || all_done);
    }
    double end = 0;
    for (const StageRun& run : runs_) end = std::max(end, run.free_s);
    return end;
  }

 private:
  /// Runs the next step of a stage; false when it waits for a message that is not sent yet.
  bool advance(size_t stage, std::vector<StageEvent>* events) {
    StageRun& run = runs_[stage];
    const PipelineStep& step = run.steps[run.next];
    const auto micro_batch = static_cast<size_t>(step.micro_batch);
    switch (step.op) {
      case PipelineOp::kReceiveInput:
        if (!receive(run.input_s[micro_batch], &run)) return false;
        break;
      case PipelineOp::kReceiveGradient:
        if (!receive(run.gradient_s[micro_batch], &run)) return false;
        break;
      case PipelineOp::kSendOutput:
        runs_[stage + 1].input_s[micro_batch] = run.free_s + hand_over_s_;
        break;
      case PipelineOp::kSendGradient:
        runs_[stage - 1].gradient_s[micro_batch] = run.free_s + hand_over_s_;
        break;
      case PipelineOp::kForward:
      case PipelineOp::kBackward: {
        const double begin = run.free_s;
        const bool forward = step.op == PipelineOp::kForward;
        run.free_s += forward ? times_[stage].forward_s : times_[stage].backward_s;
        if (events != nullptr) {
          events->push_back(
              {static_cast<int>(stage), step.op, step.micro_batch, begin, run.free_s});
        }
        break;
      }
    }
    ++run.next;
    return true;
  }

  static bool receive(double arrival_s, StageRun* run) {
    if (arrival_s < 0) return false;
    run->free_s = std::max(run->free_s, arrival_s);
    return true;
  }

  const std::vector<StageTimes>& times_;
  const double hand_over_s_;
  std::vector<StageRun> runs_;
};

void check_shape(int num_stages, int stage) {
  GALLEY_CHECK(num_stages >= 1 && stage >= 0 && stage < num_stages);
}

}  // namespace

std::string_view pipeline_op_name(PipelineOp op) {
  switch (op) {
    case PipelineOp::kReceiveInput:
      return "receive input";
    case PipelineOp::kForward:
      return "forward";
    case PipelineOp::kSendOutput:
      return "send output";
    case PipelineOp::kReceiveGradient:
      return "receive gradient";
    case PipelineOp::kBackward:
      return "backward";
    case PipelineOp::kSendGradient:
      return "send gradient";
  }
  return "?";
}

int pipeline_slots(int num_stages, int stage) {
  check_shape(num_stages, stage);
  return num_stages - stage;
}

void pipeline_1f1b(const PipelineShape& shape, std::vector<PipelineStep>* steps) {
  check_shape(shape.num_stages, shape.stage);
  GALLEY_CHECK(shape.num_micro_batches >= 0);
  const bool last = shape.stage == shape.num_stages - 1;
  const bool trained = shape.stage >= shape.first_trained_stage;
  const int slots = pipeline_slots(shape.num_stages, shape.stage);
  steps->clear();
  const auto add = [&](PipelineOp op, int micro_batch) {
    steps->push_back({op, micro_batch, micro_batch % slots});
  };
  const auto forward = [&](int micro_batch) {
    if (shape.stage > 0) add(PipelineOp::kReceiveInput, micro_batch);
    add(PipelineOp::kForward, micro_batch);
    if (!last) add(PipelineOp::kSendOutput, micro_batch);
  };
  const auto backward = [&](int micro_batch) {
    if (!trained && !last) return;
    if (!last) add(PipelineOp::kReceiveGradient, micro_batch);
    add(PipelineOp::kBackward, micro_batch);
    if (shape.stage > shape.first_trained_stage) add(PipelineOp::kSendGradient, micro_batch);
  };
  const int ahead = std::min(slots - 1, shape.num_micro_batches);
  for (int i = 0; i < ahead; ++i) forward(i);
  for (int i = ahead; i < shape.num_micro_batches; ++i) {
    forward(i);
    backward(i - ahead);
  }
  for (int i = shape.num_micro_batches - ahead; i < shape.num_micro_batches; ++i) backward(i);
}

std::string pipeline_text(int num_stages, int num_micro_batches) {
  const std::vector<StageTimes> times(static_cast<size_t>(num_stages), StageTimes{1, 1});
  std::vector<StageEvent> events;
  const double end = Simulation(times, num_micro_batches, 0).run(&events);
  const size_t width = std::to_string(std::max(num_micro_batches - 1, 0)).size() + 1;
  std::vector<std::vector<std::string>> cells(
      static_cast<size_t>(num_stages), std::vector<std::string>(static_cast<size_t>(end), "."));
  for (const StageEvent& event : events) {
    cells[static_cast<size_t>(event.stage)][static_cast<size_t>(event.begin_s)] =
        (event.op == PipelineOp::kForward ? "F" : "B") + std::to_string(event.micro_batch);
  }
  std::string text;
  for (const auto& row : cells) {
    std::string line;
    for (const std::string& cell : row) {
      if (!line.empty()) line += ' ';
      line += cell + std::string(width - cell.size(), ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

double pipeline_seconds(const std::vector<StageTimes>& stages, int num_micro_batches,
                        double hand_over_s) {
  return Simulation(stages, num_micro_batches, hand_over_s).run(nullptr);
}

}  // namespace galley::model
