// The operations of the host device: each family distributes its work over the thread pool and
// calls the kernel table. All share one HostRuntime, owned by the device.
//
// Used by the device's one worker thread. No operation allocates: scratch comes from the runtime.
#pragma once

#include <algorithm>
#include <memory>

#include "engine/core/dtype.h"
#include "engine/device/host/host_device.h"
#include "engine/device/host/kernels.h"
#include "engine/device/host/thread_pool.h"
#include "engine/device/ops.h"

namespace galley::device {

/// The row of the kernel table; kAuto is resolved.
const KernelTable& kernel_table(KernelSet kernels);

struct HostRuntime {
  ThreadPool* pool = nullptr;
  const KernelTable* kernels = nullptr;
  float* gemm_scratch_base = nullptr;
  float* attention_scratch_base = nullptr;

  float* gemm_scratch(int thread) const { return gemm_scratch_base + thread * kGemmScratchFloats; }
  float* attention_scratch(int thread) const {
    return attention_scratch_base + thread * kAttentionScratchFloats;
  }
};

/// Threads split the rows of a product [m, n] when each gets several register tiles, else its
/// columns: then each reads its own part of the weight only.
inline bool splits_rows(int64_t m, int64_t n, int tile_rows, int64_t threads) {
  return m >= 4 * tile_rows * threads || (n + kPanelOutputs - 1) / kPanelOutputs < threads;
}

/// part(m0, m1, n0, n1, scratch) on `threads` threads of the pool, which together take all of
/// [m, n]; columns in whole panels.
template <typename Part>
void split_product(const HostRuntime& runtime, int64_t m, int64_t n, int tile_rows, int64_t threads,
                   const Part& part) {
  if (threads == 1) {
    part(int64_t{0}, m, int64_t{0}, n, runtime.gemm_scratch(0));
    return;
  }
  const bool by_rows = splits_rows(m, n, tile_rows, threads);
  const int64_t count = by_rows ? m : n;
  const int64_t grain = by_rows ? tile_rows : kPanelOutputs;
  const int64_t share = ((count + threads - 1) / threads + grain - 1) / grain * grain;
  runtime.pool->run([&](int thread) {
    const int64_t begin = std::min(count, thread * share);
    const int64_t end = std::min(count, begin + share);
    if (begin == end) return;
    if (by_rows) {
      part(begin, end, int64_t{0}, n, runtime.gemm_scratch(thread));
    } else {
      part(int64_t{0}, m, begin, end, runtime.gemm_scratch(thread));
    }
  });
}

/// Inputs of a panel as they are stored: an even number for bf16, a multiple of 4 for int8.
inline int64_t stored_inputs(const WeightHandle& weight) {
  if (weight.kind == WeightKind::kInt8) return (weight.in + 3) / 4 * 4;
  return weight.kind == WeightKind::kBf16 ? weight.in + weight.in % 2 : weight.in;
}

/// Rows [row_begin, row_begin + num_rows) of a weight as a file holds them: row-major
/// [num_rows][in].
struct SourceRows {
  DType dtype = DType::kF32;
  const void* data = nullptr;
  int64_t row_begin = 0, num_rows = 0;
};

/// body(panel, first, last) for every panel that rows [first, last) of these belong to, with all
/// threads of the pool; done() on each thread behind its last one.
template <typename Body, typename Done>
void for_panels(const HostRuntime& runtime, const SourceRows& rows, const Body& body,
                const Done& done) {
  const int64_t row_end = rows.row_begin + rows.num_rows;
  const int64_t first_panel = rows.row_begin / kPanelOutputs;
  const int64_t panels = (row_end - 1) / kPanelOutputs + 1 - first_panel;
  runtime.pool->parallel_for(panels, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t panel = first_panel + begin; panel < first_panel + end; ++panel) {
      body(panel, std::max(rows.row_begin, panel * kPanelOutputs),
           std::min(row_end, (panel + 1) * kPanelOutputs));
    }
    done();
  });
}

/// Packs the rows into their panels with all threads of the pool; the call that brings the last row
/// also clears the padding behind it.
void pack_host_weight(const HostRuntime& runtime, const WeightHandle& weight,
                      const SourceRows& rows);

/// The products with int8 weights of a row of the kernel table on this processor.
const Int8Kernels& int8_kernels(const KernelTable& kernels);
/// The same for an int8 weight; Error(kBadModel) naming the first row with a value that is not
/// finite.
void pack_host_int8_weight(const HostRuntime& runtime, const WeightHandle& weight,
                           const SourceRows& rows);
/// y sets/adds x W^T + bias of an int8 weight.
void multiply_host_int8(const HostRuntime& runtime, const ConstMatrix& x,
                        const WeightHandle& weight, const Matrix& y, Write write);
/// `row` of an int8 weight as f32, [in].
void read_host_int8_row(const WeightHandle& weight, int64_t row, float* to);

// Each keeps the reference; the device outlives its operations.
std::unique_ptr<LinearOps> make_host_linear_ops(const HostRuntime& runtime);
std::unique_ptr<ElementwiseOps> make_host_elementwise_ops(const HostRuntime& runtime);
std::unique_ptr<TokenOps> make_host_token_ops(const HostRuntime& runtime);
std::unique_ptr<AttentionOps> make_host_attention_ops(const HostRuntime& runtime);
std::unique_ptr<LossOps> make_host_loss_ops(const HostRuntime& runtime);
std::unique_ptr<OptimizerOps> make_host_optimizer_ops(const HostRuntime& runtime);

}  // namespace galley::device
