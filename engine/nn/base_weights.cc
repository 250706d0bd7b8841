#include <algorithm>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/model/block.h"
#include "engine/nn/network.h"

namespace galley::nn {
namespace {

/// Rows are read and packed in blocks of about this many stored bytes: enough for all threads,
/// little enough to stay in the caches between the two.
constexpr uint64_t kBlockBytes = uint64_t{2} << 20;
/// The system fetches this much of a tensor while the bytes before it are packed.
constexpr uint64_t kReadAheadBytes = uint64_t{32} << 20;

}  // namespace

/// Fills a BaseWeights. Lives for one load.
class WeightLoader {
 public:
  WeightLoader(device::Device& device, device::Stream& stream, device::LinearOps& ops,
               const model::ModelConfig& config, const BaseWeights::Source& source, DType dtype)
      : device_(device),
        stream_(stream),
        ops_(ops),
        source_(source),
        plan_(model::weights_memory_plan(config, {}, {}, dtype, device.traits())),
        weights_(new BaseWeights()) {
    weights_->dtype_ = dtype;
    weights_->arena_ = device.allocate(plan_.weights_bytes, "weights of " + config.name);
  }

  std::unique_ptr<BaseWeights> load(const model::ModelConfig& config) {
    using model::WeightRole;
    weights_->embedding_ =
        pack("embedding", {.role = WeightRole::kEmbedding}, config.vocab_size, config.hidden);
    for (int layer = 0; layer < static_cast<int>(config.num_layers); ++layer) {
      load_layer(config, layer);
    }
    weights_->final_norm_ = vector("final_norm", {.role = WeightRole::kFinalNorm}, config.hidden);
    weights_->head_ = config.tied_embeddings ? weights_->embedding_
                                             : pack("head", {.role = WeightRole::kHead},
                                                    config.vocab_size, config.hidden);
    return std::move(weights_);
  }

 private:
  void load_layer(const model::ModelConfig& config, int layer) {
    using model::WeightRole;
    BaseWeights::Layer& place = weights_->layers_.emplace_back();
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    place.attention_norm =
        vector(prefix + "attention_norm", {.role = WeightRole::kAttentionNorm, .layer = layer},
               config.hidden);
    place.mlp_norm =
        vector(prefix + "mlp_norm", {.role = WeightRole::kMlpNorm, .layer = layer}, config.hidden);
    if (config.qk_norm) {
      place.q_norm =
          vector(prefix + "q_norm", {.role = WeightRole::kQNorm, .layer = layer}, config.head_dim);
      place.k_norm =
          vector(prefix + "k_norm", {.role = WeightRole::kKNorm, .layer = layer}, config.head_dim);
    }
    for (int p = 0; p < model::kNumProjections; ++p) {
      const auto projection = static_cast<model::Projection>(p);
      const std::string name = prefix + std::string(model::projection_name(projection));
      const int64_t out = config.projection_out(projection);
      device::WeightHandle& handle = place.projections[static_cast<size_t>(p)];
      handle = pack(name + ".weight",
                    {.role = WeightRole::kProjection, .layer = layer, .projection = projection},
                    out, config.projection_in(projection));
      if (!config.projection_has_bias(projection)) continue;
      handle.bias = vector(
          name + ".bias",
          {.role = WeightRole::kProjectionBias, .layer = layer, .projection = projection}, out);
    }
  }

  device::WeightHandle pack(const std::string& name, const model::WeightId& id, int64_t out,
                            int64_t in) {
    const model::StoredTensor tensor = source_(id);
    GALLEY_CHECK(tensor.num_elements() == out * in);
    device::WeightHandle handle;
    handle.kind = device::weight_kind(weights_->dtype_);
    handle.arena = &weights_->arena_;
    handle.offset_bytes = plan_.tensor(name).offset;
    handle.out = out;
    handle.in = in;
    if (tensor.dtype == DType::kF64) {
      const std::vector<float> values = tensor.to_f32();
      ops_.pack_weight(handle, DType::kF32, values.data(), 0, out);
      device_.synchronize(stream_);
      return handle;
    }
    const uint64_t row_bytes = static_cast<uint64_t>(in) * dtype_bytes(tensor.dtype);
    const auto panel = static_cast<int64_t>(device_.traits().panel_outputs);
    const auto wanted = static_cast<int64_t>(kBlockBytes / std::max<uint64_t>(row_bytes, 1));
    const int64_t block = std::max<int64_t>(wanted / panel, 1) * panel;
    for (int64_t row = 0; row < out; row += block) {
      const int64_t rows = std::min(block, out - row);
      const uint64_t begin = static_cast<uint64_t>(row) * row_bytes;
      const std::byte* const bytes = fetch(tensor, begin, static_cast<uint64_t>(rows) * row_bytes);
      ops_.pack_weight(handle, tensor.dtype, bytes, row, rows);
      device_.synchronize(stream_);  // the buffer is used again
    }
    return handle;
  }

  /// Bytes [begin, begin + size) of the tensor, valid until the next call.
  const std::byte* fetch(const model::StoredTensor& tensor, uint64_t begin, uint64_t size) {
    if (tensor.file == nullptr) return tensor.bytes + begin;
    if (begin > 0) tensor.read_ahead(begin + kReadAheadBytes, size);
    if (buffer_.size() < size) buffer_.resize(size);
    tensor.read(begin, buffer_.data(), size);
    return buffer_.data();
  }

  const float* vector(const std::string& name, const model::WeightId& id, int64_t count) {
    const std::vector<float> values = source_(id).to_f32();
    GALLEY_CHECK(static_cast<int64_t>(values.size()) == count);
    float* place = weights_->arena_.at<float>(plan_.tensor(name).offset);
    device_.copy_to_device(stream_, place, values.data(), values.size() * sizeof(float));
    device_.synchronize(stream_);
    return place;
  }

  device::Device& device_;
  device::Stream& stream_;
  device::LinearOps& ops_;
  const BaseWeights::Source& source_;
  const model::MemoryPlan plan_;
  std::vector<std::byte> buffer_;  // one block of a file
  std::unique_ptr<BaseWeights> weights_;
};

DType default_weight_dtype(DType stored) {
  return stored == DType::kBf16 ? DType::kBf16 : DType::kF32;
}

std::unique_ptr<BaseWeights> BaseWeights::load(device::Device& device, device::Stream& stream,
                                               device::LinearOps& ops,
                                               const model::ModelConfig& config,
                                               const model::ModelWeights& weights, DType dtype) {
  const Source source = [&](const model::WeightId& id) { return weights.get(id); };
  return load(device, stream, ops, config, source, dtype);
}

std::unique_ptr<BaseWeights> BaseWeights::load(device::Device& device, device::Stream& stream,
                                               device::LinearOps& ops,
                                               const model::ModelConfig& config,
                                               const Source& source, DType dtype) {
  if (dtype != DType::kF32 && dtype != DType::kBf16) {
    throw Error(Reason::kUnsupported, "weights in " + std::string(dtype_name(dtype)) +
                                          " are not supported; use F32 or BF16");
  }
  return WeightLoader(device, stream, ops, config, source, dtype).load(config);
}

}  // namespace galley::nn
