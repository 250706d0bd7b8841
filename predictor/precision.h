// What `precision` means for a model on a GPU type: the dtype of the base weights in memory, and
// whether products may round their inputs. Resolved in this one place; pure functions of values.
//
// The adapter, its optimizer state, activations and gradients are f32 whatever is said here.
#pragma once

#include <string>

#include "engine/model/model_config.h"
#include "engine/model/train_spec.h"
#include "engine/model/weights.h"
#include "predictor/gpu_table.h"

namespace galley::predictor {

enum class PrecisionUse { kTraining, kInference };

struct ResolvedPrecision {
  DType weight_dtype = DType::kF32;
  /// Products with bf16 weights may round their left operand to bf16.
  bool may_round_inputs = false;
  /// For people, a whole sentence: what differs from the stored numbers or from what was asked. ""
  /// when nothing does.
  std::string note;
};

/// Weights stored in bf16 stay bf16 in memory whatever is asked (widening is exact).
/// kF32: never rounds anything. kBf16: other weights are rounded to bf16 at load, inputs may be.
/// kAuto: training of a model stored in bf16 as kBf16, everything else as kF32.
ResolvedPrecision resolve_precision(const model::ModelConfig& config, model::Precision precision,
                                    PrecisionUse use);
/// The same for training on a GPU type: where it has no bf16 nothing is rounded to it (a wish for
/// it is not fulfilled and the note says so).
ResolvedPrecision resolve_precision(const model::ModelConfig& config, model::Precision precision,
                                    const GpuType& gpu);

/// The narrowest dtype that holds all matrices as they are stored: that of all of them, or f32.
/// config.json may say anything about it.
DType stored_matrix_dtype(const model::ModelWeights& weights, const model::ModelConfig& config);

}  // namespace galley::predictor
