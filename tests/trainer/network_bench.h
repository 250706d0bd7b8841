// A network on the host device with an adapter's values, for tests of single steps; and micro
// batches as the reference folders write them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/core/json.h"
#include "engine/device/host/host_device.h"
#include "engine/model/memory_plan.h"
#include "engine/model/weights.h"
#include "engine/nn/network.h"
#include "trainer/data_order.h"

namespace galley::trainer::testing {

struct NetworkBench {
  NetworkBench(const std::string& folder, const std::vector<model::AdaptedLinear>& linears,
               const std::vector<float>& values, int64_t tokens,
               device::KernelSet kernels = device::KernelSet::kAuto, DType dtype = DType::kF32,
               int num_threads = 1, double dropout = 0)
      : config(model::read_model_config(folder)),
        weights(model::ModelWeights::open(folder, config)),
        device(device::HostDevice::create({.capacity_bytes = uint64_t{256} << 20,
                                           .num_threads = num_threads,
                                           .kernels = kernels})),
        stream(device->create_stream()),
        ops(device->all_ops(*stream)),
        base(nn::BaseWeights::load(*device, *stream, *ops.linear, config, weights, dtype)) {
    model::MemorySettings settings;
    settings.linears = linears;
    settings.weight_dtype = dtype;
    settings.micro_batch_tokens = tokens;
    settings.micro_batch_rows = tokens;
    settings.max_position = tokens;
    settings.dropout = dropout > 0;
    network = nn::TrainNetwork::create(*device, *stream, ops, config, *base, settings, dropout, 0);
    device->copy_to_device(*stream, network->parameters(), values.data(), 4 * values.size());
  }
  std::vector<float> host(const float* from) {
    std::vector<float> values(network->num_trainable());
    device->copy_to_host(*stream, values.data(), from, 4 * values.size());
    return values;
  }

  model::ModelConfig config;
  model::ModelWeights weights;
  std::unique_ptr<device::HostDevice> device;
  std::unique_ptr<device::Stream> stream;
  device::OpSet ops;
  std::unique_ptr<nn::BaseWeights> base;
  std::unique_ptr<nn::TrainNetwork> network;
};

/// Micro batch of rows given as input_ids and labels.
inline MicroBatch batch_of(const std::vector<const Json*>& rows) {
  MicroBatch batch;
  for (const Json* row : rows) {
    const auto& ids = row->at("input_ids").as_array();
    const auto& labels = row->at("labels").as_array();
    nn::Segment segment;
    segment.row = batch.num_tokens;
    segment.num_tokens = static_cast<int64_t>(ids.size());
    batch.step.segments.push_back(segment);
    for (size_t t = 0; t < ids.size(); ++t) {
      batch.step.ids.push_back(static_cast<int32_t>(ids[t].as_int()));
      if (t == 0 || labels[t].as_int() < 0) continue;
      batch.step.target_rows.push_back(static_cast<int32_t>(segment.row) + static_cast<int32_t>(t) -
                                       1);
      batch.step.targets.push_back(static_cast<int32_t>(labels[t].as_int()));
    }
    batch.num_tokens += segment.num_tokens;
  }
  batch.num_targets = static_cast<int64_t>(batch.step.targets.size());
  return batch;
}

}  // namespace galley::trainer::testing
