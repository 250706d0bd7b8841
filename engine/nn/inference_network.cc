#include <algorithm>
#include <string>

#include "engine/core/error.h"
#include "engine/nn/arena.h"
#include "engine/nn/block_runner.h"
#include "engine/nn/head_runner.h"
#include "engine/nn/network.h"

namespace galley::nn {

using device::Matrix;
using device::Write;
using model::Slot;

namespace {

size_t at(Slot slot) { return static_cast<size_t>(slot); }

class HostInferenceNetwork : public InferenceNetwork {
 public:
  HostInferenceNetwork(device::HostDevice& device, device::Stream& stream, device::OpSet& ops,
                       const model::ModelConfig& config, const BaseWeights& weights,
                       const Limits& limits, std::span<const model::Adapter> adapters)
      : device_(device),
        stream_(stream),
        ops_(ops),
        weights_(weights),
        limits_(limits),
        num_layers_(static_cast<int>(config.num_layers)),
        hidden_(config.hidden),
        rms_eps_(static_cast<float>(config.rms_eps)),
        plan_(model::inference_memory_plan(
            config, memory_settings(weights.dtype(), limits, adapters), device.traits())),
        acts_(device, plan_, model::ArenaKind::kActivations, "inference"),
        runner_({.device = &device,
                 .stream = &stream,
                 .ops = &ops,
                 .weights = &weights,
                 .shape = model::worker_shape(config, {}, {}),
                 .rms_eps = static_cast<float>(config.rms_eps),
                 .cos = acts_.find("rotary.cos"),
                 .sin = acts_.find("rotary.sin"),
                 .sliding_window = config.sliding_window}),
        head_({.device = &device,
               .stream = &stream,
               .ops = &ops,
               .weights = &weights,
               .shape = model::worker_shape(config, {}, {}),
               .rms_eps = static_cast<float>(config.rms_eps),
               .tensors = {.chunk_rows = limits.max_logit_rows,
                           .hidden = acts_.find("loss.hidden"),
                           .norm = acts_.find("loss.norm"),
                           .rstd = acts_.find("loss.rstd"),
                           .logits = acts_.find("loss.logits")}}) {
    fill_rotary(config);
    load_adapters(adapters);
    for (int layer = 0; layer < num_layers_; ++layer) bind_layer(layer);
    positions_.resize(static_cast<size_t>(limits.max_tokens));
  }

  void run(const StepPlan& step, float* logits) override {
    const StepView view = upload(step);
    const Matrix stream = runner_.matrix(acts_.find("stream"), view.num_tokens, hidden_);
    ops_.token->gather_rows(weights_.embedding(), acts_.find<int32_t>("ids"), 0, stream);
    show("embed", stream);
    for (int layer = 0; layer < num_layers_; ++layer) {
      runner_.forward(layer, layers_[static_cast<size_t>(layer)], view);
      if (probe_ != nullptr) show(("layer_" + std::to_string(layer)).c_str(), stream);
    }
    if (probe_ != nullptr) show_final_norm(stream);
    head_.logits(stream.data, step.target_rows, logits);
  }

  void set_probe(Probe probe, void* user) override {
    probe_ = probe;
    probe_user_ = user;
  }

 private:
  void fill_rotary(const model::ModelConfig& config) {
    const auto count = static_cast<size_t>(limits_.max_positions * (config.head_dim / 2));
    std::vector<float> cos(count), sin(count);
    model::rope_tables(config, limits_.max_positions, cos.data(), sin.data());
    device_.copy_to_device(stream_, acts_.find("rotary.cos"), cos.data(), count * sizeof(float));
    device_.copy_to_device(stream_, acts_.find("rotary.sin"), sin.data(), count * sizeof(float));
    device_.synchronize(stream_);
  }

  void load_adapters(std::span<const model::Adapter> adapters) {
    float* place = acts_.find("adapters");
    for (const model::Adapter& adapter : adapters) {
      GALLEY_CHECK(adapter.values.size() == model::num_trainable(adapter.linears));
      AdapterTable& table = tables_.emplace_back(static_cast<size_t>(num_layers_));
      device_.copy_to_device(stream_, place, adapter.values.data(),
                             adapter.values.size() * sizeof(float));
      const auto tensors = model::trainable_tensors(adapter.linears);
      for (size_t i = 0; i < adapter.linears.size(); ++i) {
        const model::AdaptedLinear& linear = adapter.linears[i];
        table[static_cast<size_t>(linear.layer)][static_cast<size_t>(linear.projection)] = {
            .rank = linear.rank,
            .scale = static_cast<float>(linear.scaling),
            .a = place + tensors[2 * i].offset,
            .b = place + tensors[2 * i + 1].offset};
      }
      place += adapter.values.size();
    }
    device_.synchronize(stream_);
  }

  void bind_layer(int layer) {
    LayerTensors tensors;
    for (int i = 0; i < model::kNumSlots; ++i) {
      const auto slot = static_cast<Slot>(i);
      const bool stream = slot == Slot::kInput || slot == Slot::kMiddle || slot == Slot::kOutput;
      const bool low_rank = slot >= Slot::kLowRank;
      const std::string name =
          "forward." + std::string(low_rank ? "low_rank" : model::slot_name(slot));
      tensors.at[at(slot)] = acts_.find(stream ? "stream" : name);
    }
    const std::string cache = "cache." + std::to_string(layer);
    tensors.key_cache = acts_.find(cache + ".k");
    tensors.value_cache = acts_.find(cache + ".v");
    tensors.cache_rows = limits_.num_slots * limits_.max_positions;
    layers_.push_back(tensors);
  }

  void add_segment(const Segment& segment) {
    GALLEY_CHECK(segment.kind != SegmentKind::kTrain && segment.num_tokens > 0);
    GALLEY_CHECK(segment.sequence_slot >= 0 && segment.sequence_slot < limits_.num_slots);
    GALLEY_CHECK(segment.position >= 0 &&
                 segment.position + segment.num_tokens <= limits_.max_positions);
    GALLEY_CHECK(segment.adapter >= -1 && segment.adapter < static_cast<int>(tables_.size()));
    for (int64_t i = 0; i < segment.num_tokens; ++i) {
      positions_[static_cast<size_t>(segment.row + i)] = static_cast<int32_t>(segment.position + i);
    }
    const int64_t sequence = segment.sequence_slot * limits_.max_positions;
    attention_.push_back(
        {segment.row, segment.num_tokens, sequence, segment.position + segment.num_tokens});
    writes_.push_back({segment.row, segment.num_tokens, sequence + segment.position});
    if (segment.adapter < 0) return;
    const AdapterTable* table = &tables_[static_cast<size_t>(segment.adapter)];
    if (!ranges_.empty() && ranges_.back().table == table &&
        ranges_.back().row + ranges_.back().num_rows == segment.row) {
      ranges_.back().num_rows += segment.num_tokens;
    } else {
      ranges_.push_back({segment.row, segment.num_tokens, table});
    }
  }

  StepView upload(const StepPlan& step) {
    const auto tokens = static_cast<int64_t>(step.ids.size());
    GALLEY_CHECK(tokens > 0 && tokens <= limits_.max_tokens);
    attention_.clear();
    writes_.clear();
    ranges_.clear();
    int64_t next_row = 0;
    for (const Segment& segment : step.segments) {
      GALLEY_CHECK(segment.row == next_row && segment.row + segment.num_tokens <= tokens);
      add_segment(segment);
      next_row += segment.num_tokens;
    }
    GALLEY_CHECK(next_row == tokens);
    for (const int32_t row : step.target_rows) GALLEY_CHECK(row >= 0 && row < tokens);
    const auto bytes = static_cast<size_t>(tokens) * sizeof(int32_t);
    device_.copy_to_device(stream_, acts_.find("ids"), step.ids.data(), bytes);
    device_.copy_to_device(stream_, acts_.find("positions"), positions_.data(), bytes);
    StepView view;
    view.num_tokens = tokens;
    view.positions = acts_.find<int32_t>("positions");
    view.attention = attention_;
    view.adapters = ranges_;
    view.cache_writes = writes_;
    return view;
  }

  void show(const char* name, const Matrix& matrix) {
    if (probe_ == nullptr) return;
    std::vector<float> rows(static_cast<size_t>(matrix.rows * matrix.cols));
    for (int64_t i = 0; i < matrix.rows; ++i) {
      device_.copy_to_host(stream_, rows.data() + i * matrix.cols, matrix.data + i * matrix.stride,
                           static_cast<size_t>(matrix.cols) * sizeof(float));
    }
    device_.synchronize(stream_);
    probe_(probe_user_, name, rows.data(), matrix.rows, matrix.cols);
  }

  /// The head norms only the rows it needs; for the probe all rows are normed, in idle scratch.
  void show_final_norm(const Matrix& stream) {
    const Matrix norm =
        runner_.matrix(acts_.find("forward.attention_norm"), stream.rows, stream.cols);
    ops_.token->rmsnorm_forward(stream, weights_.final_norm(), rms_eps_, norm,
                                acts_.find("forward.attention_rstd"));
    show("final_norm", norm);
  }

  device::HostDevice& device_;
  device::Stream& stream_;
  device::OpSet& ops_;
  const BaseWeights& weights_;
  const Limits limits_;
  const int num_layers_;
  const int64_t hidden_;
  const float rms_eps_;
  const model::MemoryPlan plan_;
  Arena acts_;
  BlockRunner runner_;
  HeadRunner head_;
  std::vector<AdapterTable> tables_;
  std::vector<LayerTensors> layers_;
  std::vector<int32_t> positions_;                // host
  std::vector<device::AttentionItem> attention_;  // of the current step
  std::vector<CacheWrite> writes_;
  std::vector<AdapterRange> ranges_;
  Probe probe_ = nullptr;
  void* probe_user_ = nullptr;
};

}  // namespace

model::InferenceMemorySettings InferenceNetwork::memory_settings(
    DType weight_dtype, const Limits& limits, std::span<const model::Adapter> adapters) {
  model::InferenceMemorySettings settings{.weight_dtype = weight_dtype,
                                          .max_tokens = limits.max_tokens,
                                          .num_slots = limits.num_slots,
                                          .max_positions = limits.max_positions,
                                          .max_logit_rows = limits.max_logit_rows};
  for (const model::Adapter& adapter : adapters) {
    settings.adapter_values += adapter.values.size();
    for (const model::AdaptedLinear& linear : adapter.linears) {
      settings.max_rank = std::max(settings.max_rank, linear.rank);
    }
  }
  return settings;
}

std::unique_ptr<InferenceNetwork> InferenceNetwork::create(
    device::HostDevice& device, device::Stream& stream, device::OpSet& ops,
    const model::ModelConfig& config, const BaseWeights& weights, const Limits& limits,
    std::span<const model::Adapter> adapters) {
  return std::make_unique<HostInferenceNetwork>(device, stream, ops, config, weights, limits,
                                                adapters);
}

}  // namespace galley::nn
