#include <algorithm>
#include <string>

#include "engine/core/error.h"
#include "engine/nn/arena.h"
#include "engine/nn/block_runner.h"
#include "engine/nn/head_runner.h"
#include "engine/nn/network.h"

namespace galley::nn {

using model::ArenaKind;
using model::Keep;
using model::Slot;

namespace {

size_t at(Slot slot) { return static_cast<size_t>(slot); }
bool in_stream(Slot slot) {
  return slot == Slot::kInput || slot == Slot::kMiddle || slot == Slot::kOutput;
}

class HostTrainNetwork : public TrainNetwork {
 public:
  HostTrainNetwork(device::HostDevice& device, device::Stream& stream, device::OpSet& ops,
                   const model::ModelConfig& config, const BaseWeights& weights,
                   const model::MemorySettings& settings, double dropout, uint64_t dropout_seed)
      : device_(device),
        stream_(stream),
        settings_(settings),
        dropout_(static_cast<float>(dropout)),
        num_layers_(static_cast<int>(config.num_layers)),
        has_qk_norm_(config.qk_norm),
        plan_(model::memory_plan(config, {}, {}, settings, device.traits())),
        trainable_(device, plan_, ArenaKind::kTrainable, "adapter, gradients and moments"),
        acts_(device, plan_, ArenaKind::kActivations, "activations"),
        runner_(runner_setup(ops, config, weights, dropout_seed)),
        head_(&device, &stream, &ops, &weights, config.hidden, config.vocab_size,
              static_cast<float>(config.rms_eps), head_tensors()) {
    GALLEY_CHECK(dropout >= 0 && dropout < 1 && (dropout == 0 || settings.dropout));
    GALLEY_CHECK(settings.weight_dtype == weights.dtype() &&
                 weights.bytes() == plan_.weights_bytes);
    fill_rotary(config);
    first_adapted_ = model::first_adapted_layer(settings.linears);
    bind_adapters();
    for (int layer = 0; layer < num_layers_; ++layer) bind_layer(layer);
    bind_residual_stream();
    weights_ = &weights;
    token_ops_ = ops.token.get();
    hidden_ = config.hidden;
    positions_.resize(static_cast<size_t>(settings.micro_batch_tokens));
    attention_.reserve(static_cast<size_t>(std::max<int64_t>(settings.micro_batch_rows, 1)));
    range_.table = &table_;
  }

  float* parameters() override { return trainable_.find("parameters"); }
  float* gradients() override { return trainable_.find("gradients"); }
  float* first_moments() override { return trainable_.find("first_moments"); }
  float* second_moments() override { return trainable_.find("second_moments"); }
  uint64_t num_trainable() const override { return model::num_trainable(settings_.linears); }

  void zero_gradients() override {
    if (num_trainable() == 0) return;
    device_.fill_zero(stream_, gradients(), num_trainable() * sizeof(float));
  }

  double forward_backward(const StepPlan& step, double gradient_scale) override {
    if (step.targets.empty()) return 0;
    const StepView view = upload(step, dropout_);
    run_forward(view);
    float* d_stream = first_adapted_ < 0 ? nullptr : d_stream_;
    if (d_stream != nullptr) {
      device_.fill_zero(stream_, d_stream, row_bytes() * static_cast<size_t>(view.num_tokens));
    }
    const double sum =
        head_.loss(stream_tensor_, step.target_rows, step.targets, gradient_scale, d_stream);
    if (d_stream == nullptr) return sum;
    for (int layer = num_layers_ - 1; layer >= first_adapted_; --layer) {
      const auto index = static_cast<size_t>(layer);
      runner_.backward(layer, backward_[index], backward_tensors_[index], view);
    }
    return sum;
  }

  double loss_only(const StepPlan& step) override {
    if (step.targets.empty()) return 0;
    run_forward(upload(step, 0.0f));
    return head_.loss(stream_tensor_, step.target_rows, step.targets, 0, nullptr);
  }

 private:
  BlockRunner::Setup runner_setup(device::OpSet& ops, const model::ModelConfig& config,
                                  const BaseWeights& weights, uint64_t dropout_seed) {
    return {.device = &device_,
            .stream = &stream_,
            .ops = &ops,
            .weights = &weights,
            .shape = model::worker_shape(config, {}, {}),
            .rms_eps = static_cast<float>(config.rms_eps),
            .cos = acts_.find("rotary.cos"),
            .sin = acts_.find("rotary.sin"),
            .sliding_window = config.sliding_window,
            .dropout_seed = dropout_seed};
  }

  HeadTensors head_tensors() {
    stream_tensor_ = acts_.find("stream");
    d_stream_ = acts_.find("d_stream");
    return {.chunk_rows = plan_.logits_chunk_rows,
            .hidden = acts_.find("loss.hidden"),
            .norm = acts_.find("loss.norm"),
            .rstd = acts_.find("loss.rstd"),
            .logits = acts_.find("loss.logits"),
            .targets = acts_.find<int32_t>("loss.targets"),
            .values = acts_.find<double>("loss.values"),
            .d_norm = acts_.find("loss.d_norm")};
  }

  void fill_rotary(const model::ModelConfig& config) {
    const auto count = static_cast<size_t>(settings_.max_position * (config.head_dim / 2));
    std::vector<float> cos(count), sin(count);
    model::rope_tables(config, settings_.max_position, cos.data(), sin.data());
    device_.copy_to_device(stream_, acts_.find("rotary.cos"), cos.data(), count * sizeof(float));
    device_.copy_to_device(stream_, acts_.find("rotary.sin"), sin.data(), count * sizeof(float));
    device_.synchronize(stream_);
  }

  void bind_adapters() {
    table_.resize(static_cast<size_t>(num_layers_));
    const auto tensors = model::trainable_tensors(settings_.linears);
    GALLEY_CHECK(tensors.size() == 2 * settings_.linears.size());
    for (size_t i = 0; i < settings_.linears.size(); ++i) {
      const model::AdaptedLinear& linear = settings_.linears[i];
      AdapterLinear& place =
          table_[static_cast<size_t>(linear.layer)][static_cast<size_t>(linear.projection)];
      place.rank = linear.rank;
      place.scale = static_cast<float>(linear.scaling);
      place.a = parameters() + tensors[2 * i].offset;
      place.b = parameters() + tensors[2 * i + 1].offset;
      place.d_a = gradients() + tensors[2 * i].offset;
      place.d_b = gradients() + tensors[2 * i + 1].offset;
    }
  }

  void bind_layer(int layer) {
    const model::LayerRanks ranks = model::layer_ranks(settings_.linears, layer);
    const bool below = first_adapted_ >= 0 && first_adapted_ < layer;
    const model::BlockBackward back =
        model::block_backward({.qk_norm = has_qk_norm_}, ranks, below, settings_.recompute_blocks);
    LayerTensors forward, backward;
    for (int i = 0; i < model::kNumSlots; ++i) {
      const auto slot = static_cast<Slot>(i);
      const std::string name(model::slot_name(slot));
      const Keep keep = back.keep[at(slot)];
      float* kept = acts_.find("acts." + std::to_string(layer) + "." + name);
      const bool low_rank = slot >= Slot::kLowRank;
      float* scratch = acts_.find(low_rank ? "forward.low_rank" : "forward." + name);
      forward.at[at(slot)] =
          keep == Keep::kKeep ? kept : (in_stream(slot) ? stream_tensor_ : scratch);
      backward.at[at(slot)] = keep == Keep::kKeep ? kept : acts_.find("backward." + name);
    }
    forward.dropped = acts_.find("forward.dropped");
    bind_gradients(&backward);
    forward_tensors_.push_back(forward);
    backward_tensors_.push_back(backward);
    backward_.push_back(back);
  }

  void bind_gradients(LayerTensors* tensors) {
    const auto set = [&](Slot slot, float* place) { tensors->gradient[at(slot)] = place; };
    for (const Slot slot : {Slot::kInput, Slot::kMiddle, Slot::kOutput}) set(slot, d_stream_);
    set(Slot::kAttentionNorm, acts_.find("backward.d_norm"));
    set(Slot::kMlpNorm, acts_.find("backward.d_norm"));
    set(Slot::kQ, acts_.find("backward.d_q"));
    set(Slot::kQRaw, acts_.find("backward.d_q"));
    set(Slot::kKRaw, acts_.find("backward.d_k"));
    set(Slot::kK, acts_.find("backward.d_k"));
    set(Slot::kV, acts_.find("backward.d_v"));
    set(Slot::kAttention, acts_.find("backward.d_attention"));
    set(Slot::kProduct, acts_.find("backward.product"));
    set(Slot::kGate, tensors->at[at(Slot::kGate)]);
    set(Slot::kUp, tensors->at[at(Slot::kUp)]);
    tensors->dropped = acts_.find("backward.dropped");
    tensors->d_dropped = acts_.find("backward.d_dropped");
    tensors->d_low_rank = acts_.find("backward.d_low_rank");
  }

  /// A block's output is the next block's input, the last one's the stream that the head reads.
  void bind_residual_stream() {
    for (size_t layer = 0; layer < forward_tensors_.size(); ++layer) {
      const bool last = layer + 1 == forward_tensors_.size();
      forward_tensors_[layer].at[at(Slot::kOutput)] =
          last ? stream_tensor_ : forward_tensors_[layer + 1].at[at(Slot::kInput)];
    }
  }

  size_t row_bytes() const {
    return static_cast<size_t>(model::row_stride(hidden_)) * sizeof(float);
  }

  StepView upload(const StepPlan& step, float dropout) {
    const auto tokens = static_cast<int64_t>(step.ids.size());
    GALLEY_CHECK(tokens > 0 && tokens <= settings_.micro_batch_tokens);
    attention_.clear();
    int64_t next_row = 0;
    for (const Segment& segment : step.segments) {
      GALLEY_CHECK(segment.kind == SegmentKind::kTrain && segment.row == next_row);
      GALLEY_CHECK(segment.num_tokens > 0 && segment.position == 0 && segment.adapter == 0);
      GALLEY_CHECK(segment.num_tokens <= settings_.max_position);
      next_row += segment.num_tokens;
      GALLEY_CHECK(next_row <= tokens);
      for (int64_t i = 0; i < segment.num_tokens; ++i) {
        positions_[static_cast<size_t>(segment.row + i)] = static_cast<int32_t>(i);
      }
      attention_.push_back({segment.row, segment.num_tokens, segment.row, segment.num_tokens});
    }
    GALLEY_CHECK(next_row == tokens);
    for (const int32_t row : step.target_rows) GALLEY_CHECK(row >= 0 && row < tokens);
    const auto bytes = static_cast<size_t>(tokens) * sizeof(int32_t);
    device_.copy_to_device(stream_, acts_.find("ids"), step.ids.data(), bytes);
    device_.copy_to_device(stream_, acts_.find("positions"), positions_.data(), bytes);
    if (dropout > 0) {
      GALLEY_CHECK(step.row_ids.size() == step.ids.size());
      device_.copy_to_device(stream_, acts_.find("row_ids"), step.row_ids.data(), 2 * bytes);
    }
    range_.num_rows = tokens;
    StepView view;
    view.num_tokens = tokens;
    view.positions = acts_.find<int32_t>("positions");
    view.row_ids = acts_.find<uint64_t>("row_ids");
    view.dropout = dropout;
    view.attention = attention_;
    if (first_adapted_ >= 0) view.adapters = {&range_, 1};
    return view;
  }

  void run_forward(const StepView& view) {
    float* input = forward_tensors_[0].at[at(Slot::kInput)];
    token_ops_->gather_rows(weights_->embedding(), acts_.find<int32_t>("ids"), 0,
                            runner_.matrix(input, view.num_tokens, hidden_));
    for (int layer = 0; layer < num_layers_; ++layer) {
      runner_.forward(layer, forward_tensors_[static_cast<size_t>(layer)], view);
    }
  }

  device::HostDevice& device_;
  device::Stream& stream_;
  const model::MemorySettings settings_;
  const float dropout_;
  const int num_layers_;
  const bool has_qk_norm_;
  const model::MemoryPlan plan_;
  Arena trainable_, acts_;
  float* stream_tensor_ = nullptr;
  float* d_stream_ = nullptr;
  BlockRunner runner_;
  HeadRunner head_;
  const BaseWeights* weights_ = nullptr;
  device::TokenOps* token_ops_ = nullptr;
  int64_t hidden_ = 0;
  int first_adapted_ = -1;
  AdapterTable table_;
  AdapterRange range_;
  std::vector<LayerTensors> forward_tensors_, backward_tensors_;
  std::vector<model::BlockBackward> backward_;
  std::vector<int32_t> positions_;                // host
  std::vector<device::AttentionItem> attention_;  // of the current step
};

}  // namespace

std::unique_ptr<TrainNetwork> TrainNetwork::create(device::HostDevice& device,
                                                   device::Stream& stream, device::OpSet& ops,
                                                   const model::ModelConfig& config,
                                                   const BaseWeights& weights,
                                                   const model::MemorySettings& settings,
                                                   double dropout, uint64_t dropout_seed) {
  return std::make_unique<HostTrainNetwork>(device, stream, ops, config, weights, settings, dropout,
                                            dropout_seed);
}

}  // namespace galley::nn
