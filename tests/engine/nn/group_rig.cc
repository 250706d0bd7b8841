#include "tests/engine/nn/group_rig.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "engine/core/error.h"
#include "engine/model/group_ranks.h"
#include "tests/support/worker_threads.h"

namespace galley::testing {
namespace {

constexpr size_t kRingBytes = 1 << 16;

}  // namespace

GroupWorker::GroupWorker(const GroupSettings& settings, GroupTransport* transport)
    : settings_(settings),
      rank_(transport->rank()),
      place_(model::WorkerPlace::of(settings.layout, rank_)),
      rig_(1, settings.kernels) {
  weights_ = nn::BaseWeights::load(*rig_.device, *rig_.stream, *rig_.ops.linear, settings.config,
                                   settings.weights, settings.weight_dtype, place_);
  group_ = device::make_host_communicator(transport, model::all_ranks(settings.layout));
  tensor_ = device::make_host_communicator(transport, model::tensor_ranks(place_));
  replicas_ = device::make_host_communicator(transport, model::replica_ranks(place_));
  const nn::GroupSetup group{
      .place = place_,
      .communicators = {.group = settings.layout.num_workers() > 1 ? group_.get() : nullptr,
                        .tensor = settings.layout.tp_size > 1 ? tensor_.get() : nullptr,
                        .replicas = settings.layout.dp_size > 1 ? replicas_.get() : nullptr}};
  network_ =
      nn::TrainNetwork::create(*rig_.device, *rig_.stream, rig_.ops, settings.config, *weights_,
                               settings.memory, settings.dropout, settings.dropout_seed, group);
}

int GroupWorker::neighbour(int stages) const { return model::stage_neighbour(place_, stages); }

void GroupWorker::set_parameters(const std::vector<float>& whole) {
  std::vector<float> flat(network_->num_trainable());
  model::take_shard(network_->shards(), whole, flat);
  if (!flat.empty()) {
    std::memcpy(network_->parameters(), flat.data(), flat.size() * sizeof(float));
  }
}

std::vector<nn::StepPlan> GroupWorker::share_of(
    const std::vector<nn::StepPlan>& global_batch) const {
  std::vector<nn::StepPlan> share;
  const auto replica = static_cast<size_t>(place_.position.dp_rank);
  for (size_t i = replica; i < global_batch.size();
       i += static_cast<size_t>(settings_.layout.dp_size)) {
    share.push_back(global_batch[i]);
  }
  return share;
}

double GroupWorker::run(const std::vector<nn::StepPlan>& micro_batches, double gradient_scale) {
  std::vector<model::PipelineStep> steps;
  model::pipeline_1f1b({.num_stages = settings_.layout.pp_size,
                        .stage = place_.position.pp_rank,
                        .num_micro_batches = static_cast<int>(micro_batches.size()),
                        .first_trained_stage = model::first_trained_stage(
                            settings_.config, settings_.layout, settings_.memory.linears)},
                       &steps);
  double loss = 0;
  for (const model::PipelineStep& step : steps) {
    run_step(step, micro_batches, gradient_scale, &loss);
  }
  group_->finish_sends();
  return loss;
}

void GroupWorker::run_step(const model::PipelineStep& step,
                           const std::vector<nn::StepPlan>& micro_batches, double gradient_scale,
                           double* loss) {
  const nn::StepPlan& plan = micro_batches[static_cast<size_t>(step.micro_batch)];
  const int64_t elements = network_->stage_elements(static_cast<int64_t>(plan.ids.size()));
  switch (step.op) {
    case model::PipelineOp::kReceiveInput:
      group_->finish_sends();
      group_->receive(neighbour(-1), network_->stage_input(step.slot), elements);
      return;
    case model::PipelineOp::kForward:
      group_->finish_sends();
      network_->forward(step.slot, plan);
      return;
    case model::PipelineOp::kSendOutput:
      group_->send(neighbour(+1), network_->stage_output(), elements);
      return;
    case model::PipelineOp::kReceiveGradient:
      group_->finish_sends();
      group_->receive(neighbour(+1), network_->stage_gradient(), elements);
      return;
    case model::PipelineOp::kBackward:
      group_->finish_sends();
      *loss += network_->backward(step.slot, plan, gradient_scale);
      return;
    case model::PipelineOp::kSendGradient:
      group_->send(neighbour(-1), network_->stage_gradient(), elements);
      return;
  }
}

uint64_t GroupWorker::planned_bytes() const {
  return model::memory_plan(settings_.config, place_.layout, place_.position, settings_.memory,
                            rig_.device->traits())
      .total_bytes();
}

void run_group(const GroupSettings& settings, const std::function<void(GroupWorker&)>& body) {
  run_worker_threads(settings.layout.num_workers(), kRingBytes, [&](GroupTransport* transport) {
    GroupWorker worker(settings, transport);
    body(worker);
  });
}

GroupGradients group_gradients(const GroupSettings& settings, const std::vector<float>& parameters,
                               const std::vector<nn::StepPlan>& global_batch,
                               double gradient_scale) {
  GroupGradients result;
  result.whole.assign(parameters.size(), 0.0f);
  std::vector<bool> written(parameters.size(), false);
  std::mutex mutex;
  run_group(settings, [&](GroupWorker& worker) {
    worker.set_parameters(parameters);
    worker.network().zero_gradients();
    const double loss = worker.run(worker.share_of(global_batch), gradient_scale);
    worker.network().reduce_gradients();
    const model::AdapterShards& shards = worker.network().shards();
    const std::span<const float> flat(worker.network().gradients(), shards.num_elements);
    std::vector<float> own(parameters.size(), 0.0f), place(parameters.size(), 0.0f);
    model::put_shard(shards, flat, own);
    const std::vector<float> ones(shards.num_elements, 1.0f);
    model::put_shard(shards, ones, place);
    const std::lock_guard lock(mutex);
    if (worker.position().tp_rank == 0) result.loss += loss;
    result.planned_is_allocated &= worker.planned_bytes() == worker.allocated_bytes();
    for (size_t i = 0; i < own.size(); ++i) {
      if (place[i] == 0) continue;
      if (written[i]) {
        result.replicated_bits_equal &= std::memcmp(&result.whole[i], &own[i], sizeof(float)) == 0;
      }
      written[i] = true;
      result.whole[i] = own[i];
    }
  });
  for (const bool place : written) GALLEY_CHECK(place);
  return result;
}

}  // namespace galley::testing
