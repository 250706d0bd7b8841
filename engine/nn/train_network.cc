#include <algorithm>
#include <optional>
#include <string>

#include "engine/core/error.h"
#include "engine/model/pipeline.h"
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
                   const model::MemorySettings& settings, double dropout, uint64_t dropout_seed,
                   const GroupSetup& group)
      : device_(device),
        stream_(stream),
        ops_(ops),
        weights_(weights),
        settings_(settings),
        dropout_(static_cast<float>(dropout)),
        communicators_(group.communicators),
        shape_(model::worker_shape(config, group.place)),
        shards_(model::adapter_shards(config, settings.linears, group.place)),
        first_adapted_(model::first_adapted_layer(settings.linears)),
        num_slots_(model::pipeline_slots(group.place.layout.pp_size, group.place.position.pp_rank)),
        plan_(model::memory_plan(config, group.place.layout, group.place.position, settings,
                                 device.traits())),
        trainable_(device, plan_, ArenaKind::kTrainable, "adapter, gradients and moments"),
        acts_(device, plan_, ArenaKind::kActivations, "activations"),
        stream_tensor_(acts_.find("stream")),
        d_stream_(acts_.find("d_stream")),
        runner_(runner_setup(config, dropout_seed)) {
    GALLEY_CHECK(dropout >= 0 && dropout < 1 && (dropout == 0 || settings.dropout));
    GALLEY_CHECK(settings.weight_dtype == weights.dtype() &&
                 weights.bytes() == plan_.weights_bytes);
    GALLEY_CHECK((communicators_.tensor != nullptr) == (shape_.tp_size > 1));
    if (shape_.has_head) head_.emplace(head_setup(config));
    fill_rotary(config);
    bind_adapters();
    bind_layers();
    positions_.resize(static_cast<size_t>(settings.micro_batch_tokens));
    attention_.reserve(static_cast<size_t>(std::max<int64_t>(settings.micro_batch_rows, 1)));
    range_.table = &table_;
  }

  const model::AdapterShards& shards() const override { return shards_; }
  float* parameters() override { return trainable_.find("parameters"); }
  float* gradients() override { return trainable_.find("gradients"); }
  float* first_moments() override { return trainable_.find("first_moments"); }
  float* second_moments() override { return trainable_.find("second_moments"); }
  float* shared_gradients() override { return trainable_.find("shared_gradients"); }
  uint64_t num_trainable() const override { return shards_.num_elements; }

  void zero_gradients() override {
    if (num_trainable() == 0) return;
    device_.fill_zero(stream_, gradients(), num_trainable() * sizeof(float));
  }

  void reduce_gradients() override {
    if (communicators_.tensor != nullptr) {
      const auto replicated = static_cast<int64_t>(shards_.num_replicated);
      if (replicated > 0) communicators_.tensor->all_reduce(gradients(), replicated);
      if (shards_.num_shared > 0) sum_shared_rows();
    }
    if (communicators_.replicas != nullptr && num_trainable() > 0) {
      communicators_.replicas->all_reduce(gradients(), static_cast<int64_t>(num_trainable()));
    }
  }

  int num_slots() const override { return num_slots_; }
  float* stage_input(int slot) override {
    return slots_[static_cast<size_t>(slot)].forward.front().at[at(Slot::kInput)];
  }
  float* stage_output() override { return stream_tensor_; }
  float* stage_gradient() override { return d_stream_; }
  int64_t stage_elements(int64_t num_tokens) const override {
    return shape_.stream_tokens(num_tokens).size() * model::row_stride(shape_.hidden);
  }

  void forward(int slot, const StepPlan& step) override {
    if (step.targets.empty()) return;
    run_forward(slots_[static_cast<size_t>(slot)], upload(step, dropout_));
  }

  double backward(int slot, const StepPlan& step, double gradient_scale) override {
    if (step.targets.empty()) return 0;
    // Another micro batch may have run since this one's forward.
    if (num_slots_ > 1) upload(step, dropout_);
    double sum = 0;
    if (shape_.has_head) {
      if (first_adapted_ >= 0) {
        device_.fill_zero(stream_, d_stream_, stream_bytes(view_.num_tokens));
      }
      sum = head_->loss({stream_tensor_, shape_.stream_tokens(view_.num_tokens)}, step.target_rows,
                        step.targets, gradient_scale, first_adapted_ < 0 ? nullptr : d_stream_);
    }
    if (first_adapted_ < 0) return sum;
    const SlotTensors& tensors = slots_[static_cast<size_t>(slot)];
    const int lowest = std::max(first_adapted_, first_layer());
    for (int layer = end_layer() - 1; layer >= lowest; --layer) {
      const auto index = static_cast<size_t>(layer - first_layer());
      runner_.backward(layer, needs_[index], tensors.backward[index], view_);
    }
    return sum;
  }

  double loss_only(const StepPlan& step) override {
    GALLEY_CHECK(shape_.has_embedding && shape_.has_head);
    if (step.targets.empty()) return 0;
    run_forward(slots_.front(), upload(step, 0.0f));
    return head_->loss({stream_tensor_, shape_.stream_tokens(view_.num_tokens)}, step.target_rows,
                       step.targets, 0, nullptr);
  }

 private:
  /// Where the tensors of this stage's layers lie for one slot.
  struct SlotTensors {
    std::vector<LayerTensors> forward, backward;
  };

  int first_layer() const { return static_cast<int>(shape_.first_layer); }
  int end_layer() const { return static_cast<int>(shape_.first_layer + shape_.num_layers); }

  BlockRunner::Setup runner_setup(const model::ModelConfig& config, uint64_t dropout_seed) {
    return {.device = &device_,
            .stream = &stream_,
            .ops = &ops_,
            .weights = &weights_,
            .shape = shape_,
            .rms_eps = static_cast<float>(config.rms_eps),
            .cos = acts_.find("rotary.cos"),
            .sin = acts_.find("rotary.sin"),
            .sliding_window = config.sliding_window,
            .dropout_seed = dropout_seed,
            .tensor = communicators_.tensor};
  }

  HeadRunner::Setup head_setup(const model::ModelConfig& config) {
    return {.device = &device_,
            .stream = &stream_,
            .ops = &ops_,
            .weights = &weights_,
            .shape = shape_,
            .rms_eps = static_cast<float>(config.rms_eps),
            .tensors = {.chunk_rows = plan_.logits_chunk_rows,
                        .hidden = acts_.find("loss.hidden"),
                        .norm = acts_.find("loss.norm"),
                        .rstd = acts_.find("loss.rstd"),
                        .logits = acts_.find("loss.logits"),
                        .targets = acts_.find<int32_t>("loss.targets"),
                        .values = acts_.find<double>("loss.values"),
                        .d_norm = acts_.find("loss.d_norm"),
                        .parts = acts_.find<double>("loss.parts"),
                        .log_sum_exp = acts_.find<double>("loss.log_sum_exp")},
            .tensor = communicators_.tensor};
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
    table_.resize(static_cast<size_t>(end_layer()));
    GALLEY_CHECK(shards_.tensors.size() == 2 * shards_.linears.size());
    for (size_t i = 0; i < shards_.linears.size(); ++i) {
      const model::AdaptedLinear& linear = shards_.linears[i];
      AdapterLinear& place =
          table_[static_cast<size_t>(linear.layer)][static_cast<size_t>(linear.projection)];
      const uint64_t a = shards_.tensors[2 * i].offset, b = shards_.tensors[2 * i + 1].offset;
      place.rank = linear.rank;
      place.scale = static_cast<float>(linear.scaling);
      place.a = parameters() + a;
      place.b = parameters() + b;
      place.d_a = gradients() + a;
      place.d_b = gradients() + b;
    }
  }

  void bind_layers() {
    for (int layer = first_layer(); layer < end_layer(); ++layer) {
      const bool below = first_adapted_ >= 0 && first_adapted_ < layer;
      needs_.push_back(model::block_backward({.qk_norm = shape_.qk_norm},
                                             model::layer_ranks(settings_.linears, layer), below,
                                             settings_.recompute_blocks));
    }
    for (int slot = 0; slot < num_slots_; ++slot) {
      SlotTensors& tensors = slots_.emplace_back();
      for (int layer = first_layer(); layer < end_layer(); ++layer) {
        bind_layer(slot, layer, &tensors);
      }
      bind_residual_stream(&tensors);
    }
  }

  void bind_layer(int slot_number, int layer, SlotTensors* tensors) {
    const model::BlockBackward& back = needs_[static_cast<size_t>(layer - first_layer())];
    const std::string prefix =
        (slot_number == 0 ? std::string() : "slot" + std::to_string(slot_number) + ".") + "acts." +
        std::to_string(layer) + ".";
    LayerTensors forward, backward;
    for (int i = 0; i < model::kNumSlots; ++i) {
      const auto slot = static_cast<Slot>(i);
      const std::string name(model::slot_name(slot));
      const Keep keep = back.keep[at(slot)];
      float* kept = acts_.find(prefix + name);
      const bool low_rank = slot >= Slot::kLowRank;
      float* scratch = acts_.find(low_rank ? "forward.low_rank" : "forward." + name);
      forward.at[at(slot)] =
          keep == Keep::kKeep ? kept : (in_stream(slot) ? stream_tensor_ : scratch);
      backward.at[at(slot)] = keep == Keep::kKeep ? kept : acts_.find("backward." + name);
    }
    forward.dropped = acts_.find("forward.dropped");
    forward.partial = acts_.find("forward.partial");
    bind_gradients(&backward);
    tensors->forward.push_back(forward);
    tensors->backward.push_back(backward);
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
    tensors->partial = acts_.find("backward.partial");
  }

  /// A block's output is the next block's input, the last one's the stream that the head or the
  /// next stage takes.
  void bind_residual_stream(SlotTensors* tensors) {
    std::vector<LayerTensors>& layers = tensors->forward;
    for (size_t i = 0; i < layers.size(); ++i) {
      const bool last = i + 1 == layers.size();
      layers[i].at[at(Slot::kOutput)] = last ? stream_tensor_ : layers[i + 1].at[at(Slot::kInput)];
    }
  }

  size_t stream_bytes(int64_t num_tokens) const {
    return static_cast<size_t>(stage_elements(num_tokens)) * sizeof(float);
  }

  const StepView& upload(const StepPlan& step, float dropout) {
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
    if (shape_.has_embedding) {
      device_.copy_to_device(stream_, acts_.find("ids"), step.ids.data(), bytes);
    }
    device_.copy_to_device(stream_, acts_.find("positions"), positions_.data(), bytes);
    if (dropout > 0) {
      GALLEY_CHECK(step.row_ids.size() == step.ids.size());
      device_.copy_to_device(stream_, acts_.find("row_ids"), step.row_ids.data(), 2 * bytes);
    }
    range_.num_rows = tokens;
    view_ = {};
    view_.num_tokens = tokens;
    view_.positions = acts_.find<int32_t>("positions");
    view_.row_ids = acts_.find<uint64_t>("row_ids");
    view_.dropout = dropout;
    view_.attention = attention_;
    if (first_adapted_ >= 0) view_.adapters = {&range_, 1};
    return view_;
  }

  void run_forward(const SlotTensors& tensors, const StepView& view) {
    if (shape_.has_embedding) embed(tensors, view);
    for (int layer = first_layer(); layer < end_layer(); ++layer) {
      runner_.forward(layer, tensors.forward[static_cast<size_t>(layer - first_layer())], view);
    }
  }

  /// Divided vocabulary: forward sums what each worker finds in its rows of the table.
  void embed(const SlotTensors& tensors, const StepView& view) {
    const LayerTensors& first = tensors.forward.front();
    float* input = first.at[at(Slot::kInput)];
    const device::Matrix all = runner_.matrix(runner_.divides_tokens() ? first.partial : input,
                                              view.num_tokens, shape_.hidden);
    ops_.token->gather_rows(weights_.embedding(), acts_.find<int32_t>("ids"),
                            static_cast<int32_t>(shape_.first_token), all);
    if (!runner_.divides_tokens()) {
      runner_.sum_rows(all);
      return;
    }
    runner_.sum_own_rows(all);
    device_.copy_on_device(stream_, input, runner_.own_rows(all).data,
                           stream_bytes(view.num_tokens));
  }

  /// Rows of B of key and value heads that live on several workers.
  void sum_shared_rows() {
    float* const sums = shared_gradients();
    const auto copy = [&](float* to, const float* from, uint64_t count) {
      device_.copy_on_device(stream_, to, from, count * sizeof(float));
    };
    device_.fill_zero(stream_, sums, shards_.num_shared * sizeof(float));
    for (const model::SharedRun& run : shards_.shared) {
      copy(sums + run.shared_offset, gradients() + run.offset, run.count);
    }
    communicators_.tensor->all_reduce(sums, static_cast<int64_t>(shards_.num_shared));
    for (const model::SharedRun& run : shards_.shared) {
      copy(gradients() + run.offset, sums + run.shared_offset, run.count);
    }
  }

  device::HostDevice& device_;
  device::Stream& stream_;
  device::OpSet& ops_;
  const BaseWeights& weights_;
  const model::MemorySettings settings_;
  const float dropout_;
  const device::WorkerCommunicators communicators_;
  const model::WorkerShape shape_;
  const model::AdapterShards shards_;
  const int first_adapted_;  // layer of the whole model
  const int num_slots_;
  const model::MemoryPlan plan_;
  Arena trainable_, acts_;
  float* const stream_tensor_;
  float* const d_stream_;
  BlockRunner runner_;
  std::optional<HeadRunner> head_;  // of the last stage
  AdapterTable table_;              // by layer of the whole model
  AdapterRange range_;
  std::vector<SlotTensors> slots_;
  std::vector<model::BlockBackward> needs_;       // by layer of this stage
  std::vector<int32_t> positions_;                // host
  std::vector<device::AttentionItem> attention_;  // of the current micro batch
  StepView view_;                                 // of the current micro batch
};

}  // namespace

std::unique_ptr<TrainNetwork> TrainNetwork::create(device::HostDevice& device,
                                                   device::Stream& stream, device::OpSet& ops,
                                                   const model::ModelConfig& config,
                                                   const BaseWeights& weights,
                                                   const model::MemorySettings& settings,
                                                   double dropout, uint64_t dropout_seed,
                                                   const GroupSetup& group) {
  return std::make_unique<HostTrainNetwork>(device, stream, ops, config, weights, settings, dropout,
                                            dropout_seed, group);
}

}  // namespace galley::nn
