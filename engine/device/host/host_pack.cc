// Packs rows of weights as they lie in files into the panels that the matrix product reads.
#include <algorithm>
#include <cstring>

#include "engine/core/dtype.h"
#include "engine/device/host/host_ops.h"

namespace galley::device {
namespace {

float widened(DType source, const void* values, int64_t index) {
  if (source == DType::kBf16) return bf16_to_f32(static_cast<const uint16_t*>(values)[index]);
  return f16_to_f32(static_cast<const uint16_t*>(values)[index]);
}

/// Place of input i of output j in a bf16 panel: inputs i and i + 1 of an even i share a word.
int64_t bf16_place(int64_t i, int64_t j) { return (i / 2 * kPanelOutputs + j) * 2 + i % 2; }

/// Rows [first, last) of the tensor (all in one panel) into the panel [in][32].
struct PanelRows {
  const WeightHandle* weight;
  DType source;
  const std::byte* rows;  // of `row_begin`
  int64_t row_begin, first, last;
};

constexpr int64_t kPackInputs = 64;  // inputs at once: the piece of the panel stays in L1

void pack_f32_panel(const PanelRows& p, float* panel) {
  const int64_t in = p.weight->in;
  for (int64_t i0 = 0; i0 < in; i0 += kPackInputs) {
    const int64_t i1 = std::min(in, i0 + kPackInputs);
    for (int64_t row = p.first; row < p.last; ++row) {
      const int64_t base = (row - p.row_begin) * in;
      float* const to = panel + row % kPanelOutputs;
      if (p.source == DType::kF32) {
        const auto* from = reinterpret_cast<const float*>(p.rows) + base;
        for (int64_t i = i0; i < i1; ++i)
          std::memcpy(to + i * kPanelOutputs, from + i, sizeof(float));
      } else {
        for (int64_t i = i0; i < i1; ++i) {
          to[i * kPanelOutputs] = widened(p.source, p.rows, base + i);
        }
      }
    }
  }
}

void pack_bf16_panel(const PanelRows& p, uint16_t* panel) {
  const int64_t in = p.weight->in;
  for (int64_t i0 = 0; i0 < in; i0 += kPackInputs) {
    const int64_t i1 = std::min(in, i0 + kPackInputs);
    for (int64_t row = p.first; row < p.last; ++row) {
      const int64_t base = (row - p.row_begin) * in;
      for (int64_t i = i0; i < i1; ++i) {
        uint16_t bits;
        if (p.source == DType::kBf16) {
          bits = reinterpret_cast<const uint16_t*>(p.rows)[base + i];
        } else if (p.source == DType::kF16) {
          bits = f32_to_bf16(widened(p.source, p.rows, base + i));
        } else {
          bits = f32_to_bf16(reinterpret_cast<const float*>(p.rows)[base + i]);
        }
        panel[bf16_place(i, row % kPanelOutputs)] = bits;
      }
    }
  }
  for (int64_t row = p.first; in % 2 != 0 && row < p.last; ++row) {
    panel[bf16_place(in, row % kPanelOutputs)] = 0;
  }
}

}  // namespace

void pack_host_weight(const HostRuntime& runtime, const WeightHandle& weight,
                      const SourceRows& rows) {
  if (rows.num_rows == 0) return;
  const int64_t row_begin = rows.row_begin;
  const int64_t row_end = row_begin + rows.num_rows;
  const int64_t first_panel = row_begin / kPanelOutputs;
  const int64_t panels = (row_end - 1) / kPanelOutputs + 1 - first_panel;
  const int64_t panel_values = stored_inputs(weight) * kPanelOutputs;
  runtime.pool->parallel_for(panels, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t panel = first_panel + begin; panel < first_panel + end; ++panel) {
      PanelRows p = {&weight,   rows.dtype, static_cast<const std::byte*>(rows.data),
                     row_begin, 0,          0};
      p.first = std::max(row_begin, panel * kPanelOutputs);
      p.last = std::min(row_end, (panel + 1) * kPanelOutputs);
      // The call that brings the last row also clears the padding behind it.
      const bool padded = p.last == weight.out && weight.out % kPanelOutputs != 0;
      if (weight.kind == WeightKind::kF32) {
        float* to = weight.arena->at<float>(weight.offset_bytes) + panel * panel_values;
        pack_f32_panel(p, to);
        for (int64_t j = padded ? weight.out % kPanelOutputs : kPanelOutputs; j < kPanelOutputs;
             ++j) {
          for (int64_t i = 0; i < weight.in; ++i) to[i * kPanelOutputs + j] = 0;
        }
      } else {
        uint16_t* to = weight.arena->at<uint16_t>(weight.offset_bytes) + panel * panel_values;
        pack_bf16_panel(p, to);
        for (int64_t j = padded ? weight.out % kPanelOutputs : kPanelOutputs; j < kPanelOutputs;
             ++j) {
          for (int64_t i = 0; i < stored_inputs(weight); ++i) to[bf16_place(i, j)] = 0;
        }
      }
    }
  });
}

}  // namespace galley::device
