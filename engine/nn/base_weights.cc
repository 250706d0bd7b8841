#include <algorithm>
#include <cstring>
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
               const model::ModelConfig& config, const BaseWeights::Source& source, DType dtype,
               const model::WorkerPlace& place)
      : device_(device),
        stream_(stream),
        ops_(ops),
        source_(source),
        shape_(model::worker_shape(config, place)),
        plan_(model::weights_memory_plan(config, place.layout, place.position, dtype,
                                         device.traits())),
        weights_(new BaseWeights()) {
    weights_->place_ = place;
    weights_->dtype_ = dtype;
    weights_->arena_ = device.allocate(plan_.weights_bytes, "weights of " + config.name);
  }

  std::unique_ptr<BaseWeights> load(const model::ModelConfig& config) {
    using model::WeightRole;
    const model::IndexRange tokens{shape_.first_token, shape_.first_token + shape_.vocab_size};
    const model::IndexRange all{0, config.hidden};
    const bool tied = config.tied_embeddings;
    if (shape_.has_embedding || (tied && shape_.has_head)) {
      weights_->embedding_ = pack("embedding", {.role = WeightRole::kEmbedding}, tokens, all);
    }
    const auto first = static_cast<int>(shape_.first_layer);
    const int end = first + static_cast<int>(shape_.num_layers);
    weights_->layers_.resize(static_cast<size_t>(end));
    for (int layer = first; layer < end; ++layer) load_layer(config, layer);
    if (!shape_.has_head) return std::move(weights_);
    weights_->final_norm_ = vector("final_norm", {.role = WeightRole::kFinalNorm}, all);
    weights_->head_ =
        tied ? weights_->embedding_ : pack("head", {.role = WeightRole::kHead}, tokens, all);
    return std::move(weights_);
  }

 private:
  void load_layer(const model::ModelConfig& config, int layer) {
    using model::WeightRole;
    BaseWeights::Layer& place = weights_->layers_[static_cast<size_t>(layer)];
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const auto norm = [&](const char* name, WeightRole role, int64_t count) {
      return vector(prefix + name, {.role = role, .layer = layer}, {0, count});
    };
    place.attention_norm = norm("attention_norm", WeightRole::kAttentionNorm, config.hidden);
    place.mlp_norm = norm("mlp_norm", WeightRole::kMlpNorm, config.hidden);
    if (config.qk_norm) {
      place.q_norm = norm("q_norm", WeightRole::kQNorm, config.head_dim);
      place.k_norm = norm("k_norm", WeightRole::kKNorm, config.head_dim);
    }
    for (int p = 0; p < model::kNumProjections; ++p) {
      const auto projection = static_cast<model::Projection>(p);
      const std::string name = prefix + std::string(model::projection_name(projection));
      const model::IndexRange rows = shape_.rows_of(projection);
      device::WeightHandle& handle = place.projections[static_cast<size_t>(p)];
      handle = pack(name + ".weight",
                    {.role = WeightRole::kProjection, .layer = layer, .projection = projection},
                    rows, shape_.columns_of(projection));
      // Summands of a row-parallel output meet one bias.
      const bool adds_bias =
          model::linear_split(projection) == model::LinearSplit::kColumn || shape_.tp_rank == 0;
      if (!config.projection_has_bias(projection) || !adds_bias) continue;
      handle.bias = vector(
          name + ".bias",
          {.role = WeightRole::kProjectionBias, .layer = layer, .projection = projection}, rows);
    }
  }

  /// Packs the given rows and columns of a stored weight.
  device::WeightHandle pack(const std::string& name, const model::WeightId& id,
                            const model::IndexRange& rows, const model::IndexRange& columns) {
    const model::StoredTensor tensor = source_(id);
    GALLEY_CHECK(tensor.shape.size() == 2 && rows.end <= tensor.shape[0] &&
                 columns.end <= tensor.shape[1]);
    device::WeightHandle handle;
    handle.kind = device::weight_kind(weights_->dtype_);
    handle.arena = &weights_->arena_;
    handle.offset_bytes = plan_.tensor(name).offset;
    handle.out = rows.size();
    handle.in = columns.size();
    std::vector<float> widened;  // of a dtype that cannot be packed as it is
    if (tensor.dtype == DType::kF64) widened = tensor.to_f32();
    const DType dtype = widened.empty() ? tensor.dtype : DType::kF32;
    const uint64_t row_bytes = static_cast<uint64_t>(tensor.shape[1]) * dtype_bytes(dtype);
    const auto panel = static_cast<int64_t>(device_.traits().panel_outputs);
    const auto wanted = static_cast<int64_t>(kBlockBytes / std::max<uint64_t>(row_bytes, 1));
    const int64_t block = std::max<int64_t>(wanted / panel, 1) * panel;
    for (int64_t row = rows.begin; row < rows.end; row += block) {
      const int64_t count = std::min(block, rows.end - row);
      const uint64_t begin = static_cast<uint64_t>(row) * row_bytes;
      const std::byte* bytes = widened.empty()
                                   ? fetch(tensor, begin, static_cast<uint64_t>(count) * row_bytes)
                                   : reinterpret_cast<const std::byte*>(widened.data()) + begin;
      if (columns.size() != tensor.shape[1]) {
        bytes = take_columns(bytes, count, row_bytes, columns, dtype_bytes(dtype));
      }
      ops_.pack_weight(handle, dtype, bytes, row - rows.begin, count);
      device_.synchronize(stream_);  // the buffers are used again
    }
    return handle;
  }

  /// The columns of `rows` rows, end to end; valid until the next call.
  const std::byte* take_columns(const std::byte* bytes, int64_t rows, uint64_t row_bytes,
                                const model::IndexRange& columns, uint64_t value_bytes) {
    const uint64_t begin = static_cast<uint64_t>(columns.begin) * value_bytes;
    const uint64_t size = static_cast<uint64_t>(columns.size()) * value_bytes;
    columns_.resize(static_cast<size_t>(rows) * size);
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(columns_.data() + static_cast<uint64_t>(row) * size,
                  bytes + static_cast<uint64_t>(row) * row_bytes + begin, size);
    }
    return columns_.data();
  }

  /// Bytes [begin, begin + size) of the tensor, valid until the next call.
  const std::byte* fetch(const model::StoredTensor& tensor, uint64_t begin, uint64_t size) {
    if (tensor.file == nullptr) return tensor.bytes + begin;
    if (begin > 0) tensor.read_ahead(begin + kReadAheadBytes, size);
    if (buffer_.size() < size) buffer_.resize(size);
    tensor.read(begin, buffer_.data(), size);
    return buffer_.data();
  }

  /// Elements `range` of a stored vector.
  const float* vector(const std::string& name, const model::WeightId& id,
                      const model::IndexRange& range) {
    const std::vector<float> values = source_(id).to_f32();
    GALLEY_CHECK(static_cast<int64_t>(values.size()) >= range.end);
    float* place = weights_->arena_.at<float>(plan_.tensor(name).offset);
    device_.copy_to_device(stream_, place, values.data() + range.begin,
                           static_cast<size_t>(range.size()) * sizeof(float));
    device_.synchronize(stream_);
    return place;
  }

  device::Device& device_;
  device::Stream& stream_;
  device::LinearOps& ops_;
  const BaseWeights::Source& source_;
  const model::WorkerShape shape_;
  const model::MemoryPlan plan_;
  std::vector<std::byte> buffer_;   // one block of a file
  std::vector<std::byte> columns_;  // the columns of a block that are packed
  std::unique_ptr<BaseWeights> weights_;
};

DType default_weight_dtype(DType stored) {
  return stored == DType::kBf16 ? DType::kBf16 : DType::kF32;
}

std::unique_ptr<BaseWeights> BaseWeights::load(device::Device& device, device::Stream& stream,
                                               device::LinearOps& ops,
                                               const model::ModelConfig& config,
                                               const model::ModelWeights& weights, DType dtype,
                                               const model::WorkerPlace& place) {
  const Source source = [&](const model::WeightId& id) { return weights.get(id); };
  return load(device, stream, ops, config, source, dtype, place);
}

std::unique_ptr<BaseWeights> BaseWeights::load(device::Device& device, device::Stream& stream,
                                               device::LinearOps& ops,
                                               const model::ModelConfig& config,
                                               const Source& source, DType dtype,
                                               const model::WorkerPlace& place) {
  if (dtype != DType::kF32 && dtype != DType::kBf16) {
    throw Error(Reason::kUnsupported, "weights in " + std::string(dtype_name(dtype)) +
                                          " are not supported; use F32 or BF16");
  }
  return WeightLoader(device, stream, ops, config, source, dtype, place).load(config);
}

}  // namespace galley::nn
