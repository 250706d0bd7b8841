// BlockRunner: runs the operations of a decoder block (model/block.h), forward and backward, for
// all kinds of segments, on a whole block or on one tensor-parallel worker's slice of it. One per
// network; owned by the worker's thread; allocates nothing.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/device/communicator.h"
#include "engine/device/ops.h"
#include "engine/model/block.h"
#include "engine/nn/network.h"

namespace galley::nn {

/// The adapter of one linear. Device memory.
struct AdapterLinear {
  int64_t rank = 0;  // 0: not adapted
  float scale = 0;
  const float* a = nullptr;  // [rank, in]
  const float* b = nullptr;  // [out, rank]
  float* d_a = nullptr;      // gradients, added to; null in inference
  float* d_b = nullptr;
};
/// By layer and projection.
using AdapterTable = std::vector<std::array<AdapterLinear, model::kNumProjections>>;

/// Rows of a step that use one adapter. No two ranges overlap.
struct AdapterRange {
  int64_t row = 0, num_rows = 0;
  const AdapterTable* table = nullptr;
};

/// Rows of new keys and values and their place in the cache.
struct CacheWrite {
  int64_t row = 0, num_rows = 0, cache_row = 0;
};

/// What a step gives to every block.
struct StepView {
  int64_t num_tokens = 0;
  const int32_t* positions = nullptr;  // device [T]
  const uint64_t* row_ids = nullptr;   // device [T]; used by dropout only
  float dropout = 0;
  std::span<const device::AttentionItem> attention;
  std::span<const AdapterRange> adapters;
  std::span<const CacheWrite> cache_writes;
};

/// Where the tensors of one layer lie; null where a slot is not used.
struct LayerTensors {
  std::array<float*, model::kNumSlots> at{};
  std::array<float*, model::kNumSlots> gradient{};
  float* dropped = nullptr;     // [T, widest adapted input]
  float* d_dropped = nullptr;   // the same
  float* d_low_rank = nullptr;  // [T, rank]
  float* partial = nullptr;     // [T, h]; sequence parallelism only
  // Inference: keys and values of all sequences [cache_rows, kv_width]; else the step's own are
  // used.
  float* key_cache = nullptr;
  float* value_cache = nullptr;
  int64_t cache_rows = 0;
};

class BlockRunner {
 public:
  struct Setup {
    device::Device* device = nullptr;
    device::Stream* stream = nullptr;
    device::OpSet* ops = nullptr;
    const BaseWeights* weights = nullptr;
    model::WorkerShape shape;
    float rms_eps = 0;
    const float* cos = nullptr;  // device [positions, head_dim / 2]
    const float* sin = nullptr;
    int64_t sliding_window = 0;  // of the model
    uint64_t dropout_seed = 0;
    device::Communicator* tensor = nullptr;  // of the workers that share the block; null: alone
  };
  explicit BlockRunner(const Setup& setup);

  /// Runs all operations of `layer`.
  void forward(int layer, const LayerTensors& tensors, const StepView& step);
  /// `tensors.gradient[kOutput]` holds the gradient of the residual stream and receives that of the
  /// block's input (when it is needed). Adapter gradients are added to.
  void backward(int layer, const model::BlockBackward& needs, const LayerTensors& tensors,
                const StepView& step);

  /// A view of a planned activation: rows at the plan's stride.
  device::Matrix matrix(float* data, int64_t rows, int64_t cols) const;

  // Between the workers that share the block; `rows` [T, h], all T of them. Alone: nothing.
  /// Every worker's rows become the sums over all workers.
  void sum_rows(const device::Matrix& rows);
  /// With sequence parallelism: the rows that this worker holds become the sums over all workers,
  /// the others are left undefined ...
  void sum_own_rows(const device::Matrix& rows);
  /// ... and the other workers' rows are filled in.
  void gather_rows(const device::Matrix& rows);
  /// Of T rows those whose residual stream this worker holds.
  device::Matrix own_rows(const device::Matrix& rows) const;
  bool divides_tokens() const {
    return setup_.shape.sequence_parallel == model::SequenceParallel::kYes;
  }

 private:
  struct Pass;
  void run(const Pass& pass, const model::BlockOperation& operation);
  void run_norm(const Pass& pass, const model::BlockOperation& operation);
  void run_linear(const Pass& pass, const model::BlockOperation& operation);
  device::Matrix begin_output(const Pass& pass, const model::BlockOperation& operation,
                              device::Write* write);
  void end_output(const Pass& pass, const model::BlockOperation& operation,
                  const device::Matrix& y);
  void backward_norm(const Pass& pass, const model::BlockOperation& operation);
  device::Matrix output_gradient(const Pass& pass, const model::BlockOperation& operation);
  device::TokenOps::DropoutMask mask(const Pass& pass, const AdapterRange& range,
                                     const model::BlockOperation& operation) const;
  std::span<const int64_t> share_elements(const device::Matrix& rows);
  void run_adapter(const Pass& pass, const AdapterRange& range, const AdapterLinear& adapter,
                   const model::BlockOperation& operation, const device::Matrix& output);
  device::Matrix run_low_rank(const Pass& pass, const AdapterRange& range,
                              const AdapterLinear& adapter, const model::BlockOperation& operation);
  void rerun_low_rank(const Pass& pass, const model::BlockOperation& operation);
  void run_attention(const Pass& pass);
  void rotate(const device::Matrix& x, const StepView& step, device::TokenOps::Direction direction);
  device::ConstMatrix adapter_input(const Pass& pass, const AdapterRange& range,
                                    const model::BlockOperation& operation);
  void backward_of(const Pass& pass, const model::BlockOperation& operation,
                   const model::BlockBackward& needs, std::array<bool, model::kNumSlots>* written);
  void backward_linear(const Pass& pass, const model::BlockOperation& operation, bool input_needs,
                       device::Write write);
  const AdapterRange* adapted_range(const Pass& pass, model::Projection projection) const;
  void backward_activation(const Pass& pass, const AdapterRange& range,
                           const AdapterLinear& adapter, const device::Matrix& d_output);
  void backward_adapter(const Pass& pass, const AdapterRange& range, const AdapterLinear& adapter,
                        const model::BlockOperation& operation, const device::Matrix& d_output);
  void backward_attention(const Pass& pass);
  void backward_dropped(const Pass& pass, const AdapterRange& range, const AdapterLinear& adapter,
                        const model::BlockOperation& operation);
  const float* norm_weight(int layer, const model::BlockOperation& operation) const;
  device::AttentionShape attention_shape() const;
  uint64_t dropout_stream(int layer, model::Projection projection) const;

  Setup setup_;
  std::vector<std::array<uint64_t, model::kNumProjections>> dropout_streams_;
  std::vector<int64_t> share_elements_;  // by tensor-parallel rank, of the current sum
};

}  // namespace galley::nn
