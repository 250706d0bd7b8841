// Workers of a group as threads, for tests of single steps: each with its device and network, and
// everything that a job's step uses.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/device/host/host_device.h"
#include "engine/model/memory_plan.h"
#include "engine/model/weights.h"
#include "engine/nn/network.h"
#include "tests/support/worker_threads.h"
#include "trainer/pipeline_run.h"
#include "trainer/train_step.h"
#include "trainer/worker_group.h"

namespace galley::trainer::testing {

inline model::ParallelLayout layout_of(int tp, int pp, int dp) {
  model::ParallelLayout layout;
  layout.tp_size = tp;
  layout.pp_size = pp;
  layout.dp_size = dp;
  return layout;
}

/// What all workers of a group have in common.
struct GroupBenchSettings {
  std::string folder;  // model
  model::ParallelLayout layout;
  std::vector<model::AdaptedLinear> linears;
  std::vector<float> values;  // of the whole adapter
  int64_t tokens = 0;         // of a micro batch
  double dropout = 0;
  double slowdown = 1;
  size_t ring_bytes = 1 << 16;
};

/// One worker; its thread owns it.
struct GroupBench {
  GroupBench(const GroupBenchSettings& settings, int rank, GroupTransport* transport)
      : group(settings.layout, rank, transport),
        config(model::read_model_config(settings.folder)),
        weights(model::ModelWeights::open(settings.folder, config)),
        device(device::HostDevice::create({.capacity_bytes = uint64_t{4} << 30})),
        stream(device->create_stream()),
        ops(device->all_ops(*stream)),
        base(nn::BaseWeights::load(*device, *stream, *ops.linear, config, weights, DType::kF32,
                                   group.place())) {
    memory.linears = settings.linears;
    memory.weight_dtype = DType::kF32;
    memory.micro_batch_tokens = memory.micro_batch_rows = memory.max_position = settings.tokens;
    memory.dropout = settings.dropout > 0;
    network =
        nn::TrainNetwork::create(*device, *stream, ops, config, *base, memory, settings.dropout, 0,
                                 {.place = group.place(), .communicators = group.communicators()});
    pipeline =
        std::make_unique<PipelineRun>(*network, group, config, settings.linears, settings.slowdown);
    std::vector<float> own(network->num_trainable());
    model::take_shard(network->shards(), settings.values, own);
    if (!own.empty()) std::memcpy(network->parameters(), own.data(), own.size() * sizeof(float));
  }
  StepWork work_of(std::span<const MicroBatch> batches, int64_t num_targets) const {
    StepWork work;
    work.network = network.get();
    work.optimizer = ops.optimizer.get();
    work.pipeline = pipeline.get();
    work.group = &group;
    work.batches = batches;
    work.num_targets = num_targets;
    return work;
  }
  uint64_t planned_bytes() const {
    return model::memory_plan(config, group.place().layout, group.position(), memory,
                              device->traits())
        .total_bytes();
  }

  WorkerGroup group;
  model::ModelConfig config;
  model::ModelWeights weights;
  std::unique_ptr<device::HostDevice> device;
  std::unique_ptr<device::Stream> stream;
  device::OpSet ops;
  std::unique_ptr<nn::BaseWeights> base;
  model::MemorySettings memory;
  std::unique_ptr<nn::TrainNetwork> network;
  std::unique_ptr<PipelineRun> pipeline;
};

/// Runs `body` on every worker; the first exception is thrown again.
inline void run_bench_group(const GroupBenchSettings& settings,
                            const std::function<void(GroupBench&)>& body) {
  const int size = settings.layout.num_workers();
  galley::testing::run_worker_threads(size, settings.ring_bytes, [&](GroupTransport* transport) {
    GroupBench bench(settings, transport->rank(), size == 1 ? nullptr : transport);
    body(bench);
  });
}

}  // namespace galley::trainer::testing
