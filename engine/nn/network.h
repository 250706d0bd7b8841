// Network: a decoder-only transformer on one worker: forward for every kind of segment, loss, and
// the LoRA backward. One block implementation for all families and all kinds of work.
//
// A step is a list of segments over packed token rows; there is no padding and no attention across
// rows. Memory: training tensors lie in arenas cut by model::MemoryPlan; a step allocates nothing.
// Owned by one worker thread, like its device.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/device/communicator.h"
#include "engine/device/host/host_device.h"
#include "engine/model/adapter_file.h"
#include "engine/model/adapter_shards.h"
#include "engine/model/memory_plan.h"
#include "engine/model/weights.h"

namespace galley::nn {

enum class SegmentKind : uint8_t { kPrefill, kDecode, kTrain };

/// A range of tokens of one sequence that this step runs.
struct Segment {
  SegmentKind kind = SegmentKind::kTrain;
  int64_t row = 0;  // first row in the step's packed tokens
  int64_t num_tokens = 0;
  int64_t position = 0;  // position of the first token in its sequence (keys before it are cached)
  int64_t sequence_slot = 0;  // cache slot (prefill, decode)
  int adapter = 0;            // index of the adapter; -1: base model
};

/// Packed tokens of one engine step. Host memory.
struct StepPlan {
  std::vector<int32_t> ids;  // [T]
  std::vector<Segment> segments;
  std::vector<uint64_t> row_ids;  // [T] stable token identities for dropout (train); may be empty
  // Training and scoring: predict `targets[i]` from row `target_rows[i]`.
  std::vector<int32_t> target_rows;
  std::vector<int32_t> targets;
};

/// f32 stays f32, bf16 stays bf16 (2 bytes per weight, widened exactly), anything else becomes f32.
DType default_weight_dtype(DType stored);

/// Base weights of one worker (its slice of its stage's layers) packed on a device. Read-only after
/// load; may be shared. Owns one arena of the size of model::weights_memory_plan; handles and
/// pointers live as long as this object. Layers have their numbers of the whole model.
class BaseWeights {
 public:
  /// Gives the stored tensor of a weight; its bytes stay valid until the next call.
  using Source = std::function<model::StoredTensor(const model::WeightId&)>;
  /// Packs all weights of the model in `dtype` (kF32 or kBf16) into one arena of the plan's size,
  /// row block by row block from the memory map. Error(kOutOfMemory) when it does not fit.
  static std::unique_ptr<BaseWeights> load(device::Device& device, device::Stream& stream,
                                           device::LinearOps& ops, const model::ModelConfig& config,
                                           const model::ModelWeights& weights, DType dtype,
                                           const model::WorkerPlace& place = {});
  /// The same from any source of whole tensors (random weights, another process).
  static std::unique_ptr<BaseWeights> load(device::Device& device, device::Stream& stream,
                                           device::LinearOps& ops, const model::ModelConfig& config,
                                           const Source& source, DType dtype,
                                           const model::WorkerPlace& place = {});
  uint64_t bytes() const { return arena_.bytes(); }
  DType dtype() const { return dtype_; }
  const device::WeightHandle& embedding() const { return embedding_; }  // [vocab, hidden]
  const device::WeightHandle& head() const { return head_; }            // may be the embedding
  const float* final_norm() const { return final_norm_; }               // [hidden]
  const device::WeightHandle& projection(int layer, model::Projection projection) const {
    return layers_[static_cast<size_t>(layer)].projections[static_cast<size_t>(projection)];
  }
  const float* attention_norm(int layer) const {
    return layers_[static_cast<size_t>(layer)].attention_norm;
  }
  const float* mlp_norm(int layer) const { return layers_[static_cast<size_t>(layer)].mlp_norm; }
  const float* q_norm(int layer) const { return layers_[static_cast<size_t>(layer)].q_norm; }
  const float* k_norm(int layer) const { return layers_[static_cast<size_t>(layer)].k_norm; }
  const model::WorkerPlace& place() const { return place_; }

 private:
  friend class WeightLoader;
  struct Layer {
    std::array<device::WeightHandle, model::kNumProjections> projections;
    const float* attention_norm = nullptr;
    const float* mlp_norm = nullptr;
    const float* q_norm = nullptr;  // [head_dim]; models with qk_norm
    const float* k_norm = nullptr;
  };
  BaseWeights() = default;
  model::WorkerPlace place_;
  device::Buffer arena_;
  DType dtype_ = DType::kF32;
  device::WeightHandle embedding_, head_;
  const float* final_norm_ = nullptr;
  std::vector<Layer> layers_;
};

/// What a worker of a group adds to a TrainNetwork.
struct GroupSetup {
  model::WorkerPlace place;
  device::WorkerCommunicators communicators;  // must outlive the network
};

/// Training on one worker: the whole model, or its slice of one stage. Gradients accumulate in the
/// trainable arena. Allocates the trainable and activations arenas of model::memory_plan when it is
/// made, nothing afterwards. The weights, the stream and the ops must outlive it. Same threads and
/// kernels: same bits. Tensor-parallel workers call forward and backward together.
class TrainNetwork {
 public:
  static std::unique_ptr<TrainNetwork> create(device::HostDevice& device, device::Stream& stream,
                                              device::OpSet& ops, const model::ModelConfig& config,
                                              const BaseWeights& weights,
                                              const model::MemorySettings& settings, double dropout,
                                              uint64_t dropout_seed, const GroupSetup& group = {});
  virtual ~TrainNetwork() = default;
  /// What of the whole adapter this worker holds.
  virtual const model::AdapterShards& shards() const = 0;
  /// The worker's flat trainable vectors (order of shards().tensors), device memory.
  virtual float* parameters() = 0;
  virtual float* gradients() = 0;
  virtual float* first_moments() = 0;
  virtual float* second_moments() = 0;
  /// [shards().num_shared]; null when there is none.
  virtual float* shared_gradients() = 0;
  virtual uint64_t num_trainable() const = 0;
  /// Zeroes the gradients.
  virtual void zero_gradients() = 0;
  /// Sums the gradients over the tensor-parallel workers and the replicas, once per optimizer step:
  /// then those of each worker's elements are the whole ones.
  virtual void reduce_gradients() = 0;

  // A stage of a pipeline runs micro batches through slots of kept activations. Rows of a micro
  // batch between stages have model::row_stride(hidden) elements.
  virtual int num_slots() const = 0;
  /// Where the input of the next forward of `slot` is received (not on the first stage).
  virtual float* stage_input(int slot) = 0;
  /// The output of the last forward, until the next one (not on the last stage).
  virtual float* stage_output() = 0;
  /// Where the gradient of the output is received before backward(); holds that of the input
  /// after it.
  virtual float* stage_gradient() = 0;
  /// Elements of the three for a micro batch of so many tokens (with sequence parallelism: of this
  /// worker's share).
  virtual int64_t stage_elements(int64_t num_tokens) const = 0;
  /// Forward of one micro batch (segments kTrain); the first stage embeds its ids.
  virtual void forward(int slot, const StepPlan& step) = 0;
  /// On the last stage: loss and its gradient, then backward; adds gradient_scale * d(sum of
  /// losses)/d(parameters) to the gradients, returns the sum of the losses of its targets (f64). On
  /// the others from stage_gradient(); returns 0. `step` as in the forward of this slot.
  virtual double backward(int slot, const StepPlan& step, double gradient_scale) = 0;

  /// Forward and backward of one micro batch without stages.
  double forward_backward(const StepPlan& step, double gradient_scale) {
    forward(0, step);
    return backward(0, step, gradient_scale);
  }
  /// Sum of losses without gradients and without dropout; no stages.
  virtual double loss_only(const StepPlan& step) = 0;
};

/// Inference with contiguous key/value caches: prefill and decode segments. Allocates the
/// activations arena of model::inference_memory_plan when it is made (adapters' values are copied
/// into it).
class InferenceNetwork {
 public:
  struct Limits {
    int64_t max_tokens = 512;      // of one step
    int64_t num_slots = 1;         // sequences at once
    int64_t max_positions = 2048;  // of a sequence
    int64_t max_logit_rows = 16;
  };
  static std::unique_ptr<InferenceNetwork> create(device::HostDevice& device,
                                                  device::Stream& stream, device::OpSet& ops,
                                                  const model::ModelConfig& config,
                                                  const BaseWeights& weights, const Limits& limits,
                                                  std::span<const model::Adapter> adapters);
  virtual ~InferenceNetwork() = default;
  /// The settings of model::inference_memory_plan for these arguments.
  static model::InferenceMemorySettings memory_settings(DType weight_dtype, const Limits& limits,
                                                        std::span<const model::Adapter> adapters);
  /// Runs the step and copies logits of rows `step.target_rows` (targets ignored) to `logits`
  /// (host, [target_rows.size(), vocab]). May take more rows than max_logit_rows (runs in chunks).
  virtual void run(const StepPlan& step, float* logits) = 0;
  /// Hook for tests and `--dump`: called with name and [rows, cols] of the residual stream
  /// ("embed", "layer_0", ..., "final_norm") of each run.
  using Probe = void (*)(void* user, const char* name, const float* data, int64_t rows,
                         int64_t cols);
  virtual void set_probe(Probe probe, void* user) = 0;
};

}  // namespace galley::nn
