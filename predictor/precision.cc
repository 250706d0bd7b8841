#include "predictor/precision.h"

#include "engine/core/strings.h"

namespace galley::predictor {
namespace {

std::string_view short_name(DType dtype) {
  return dtype == DType::kBf16 ? "bf16" : dtype == DType::kF16 ? "f16" : "f32";
}

bool is_matrix(model::WeightRole role) {
  return role == model::WeightRole::kEmbedding || role == model::WeightRole::kHead ||
         role == model::WeightRole::kProjection;
}

}  // namespace

ResolvedPrecision resolve_precision(const model::ModelConfig& config, model::Precision precision,
                                    PrecisionUse use) {
  const bool stored_bf16 = config.stored_dtype == DType::kBf16;
  ResolvedPrecision resolved;
  resolved.weight_dtype =
      stored_bf16 || precision == model::Precision::kBf16 ? DType::kBf16 : DType::kF32;
  resolved.may_round_inputs =
      precision == model::Precision::kBf16 ||
      (precision == model::Precision::kAuto && stored_bf16 && use == PrecisionUse::kTraining);
  if (resolved.weight_dtype == DType::kBf16 && !stored_bf16) {
    resolved.note = cat("the weights, stored as ", short_name(config.stored_dtype),
                        ", are rounded to bf16 at load (precision = \"bf16\")");
  }
  return resolved;
}

ResolvedPrecision resolve_precision(const model::ModelConfig& config, model::Precision precision,
                                    const GpuType& gpu) {
  if (has_bf16(gpu)) return resolve_precision(config, precision, PrecisionUse::kTraining);
  ResolvedPrecision resolved =
      resolve_precision(config, model::Precision::kF32, PrecisionUse::kTraining);
  resolved.note =
      cat(gpu.name, " has no bf16: ",
          precision == model::Precision::kBf16 ? "instead of precision = \"bf16\" " : "",
          "this job computes in f32 there (weights in ", short_name(resolved.weight_dtype),
          ", adapter in f32)");
  return resolved;
}

DType stored_matrix_dtype(const model::ModelWeights& weights, const model::ModelConfig& config) {
  bool first = true;
  DType all = DType::kF32;
  for (const model::WeightSpec& spec : model::weight_specs(config)) {
    if (!is_matrix(spec.id.role)) continue;
    const DType dtype = weights.get(spec.id).dtype;
    if (!first && dtype != all) return DType::kF32;
    all = dtype;
    first = false;
  }
  return all;
}

}  // namespace galley::predictor
