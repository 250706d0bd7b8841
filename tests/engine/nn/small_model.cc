#include "tests/engine/nn/small_model.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/random.h"

namespace galley::testing {

using model::AdaptedLinear;
using model::ModelConfig;
using model::Projection;
using model::WeightId;
using model::WeightRole;

ModelConfig small_config(const SmallShape& shape) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.name = "small";
  config.vocab_size = shape.vocab;
  config.hidden = shape.hidden;
  config.intermediate = shape.intermediate;
  config.num_layers = shape.layers;
  config.num_heads = shape.heads;
  config.num_kv_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.max_position = 256;
  config.rms_eps = 1e-5;
  config.tied_embeddings = shape.tied;
  config.qkv_bias = shape.attention_bias || shape.qkv_bias;
  config.o_bias = shape.attention_bias;
  config.mlp_bias = shape.mlp_bias;
  config.qk_norm = shape.qk_norm;
  config.sliding_window = shape.sliding_window;
  return config;
}

SmallWeights::SmallWeights(const ModelConfig& config, uint64_t seed) {
  const auto draw = [&](const WeightId& id, std::vector<int64_t> shape, double mean,
                        double spread) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    Random random(seed, random_stream("weights", {entries_.size()}));
    Entry entry{id, std::move(shape), std::vector<float>(static_cast<size_t>(count))};
    for (float& value : entry.values) value = static_cast<float>(mean + spread * random.normal());
    entries_.push_back(std::move(entry));
  };
  const double narrow = 1.2 / std::sqrt(static_cast<double>(config.hidden));
  draw({.role = WeightRole::kEmbedding}, {config.vocab_size, config.hidden}, 0, 0.8);
  for (int layer = 0; layer < static_cast<int>(config.num_layers); ++layer) {
    draw({.role = WeightRole::kAttentionNorm, .layer = layer}, {config.hidden}, 1, 0.2);
    draw({.role = WeightRole::kMlpNorm, .layer = layer}, {config.hidden}, 1, 0.2);
    if (config.qk_norm) {
      draw({.role = WeightRole::kQNorm, .layer = layer}, {config.head_dim}, 1, 0.2);
      draw({.role = WeightRole::kKNorm, .layer = layer}, {config.head_dim}, 1, 0.2);
    }
    for (int p = 0; p < model::kNumProjections; ++p) {
      const auto projection = static_cast<Projection>(p);
      const int64_t out = config.projection_out(projection), in = config.projection_in(projection);
      draw({.role = WeightRole::kProjection, .layer = layer, .projection = projection}, {out, in},
           0, narrow);
      if (config.projection_has_bias(projection)) {
        draw({.role = WeightRole::kProjectionBias, .layer = layer, .projection = projection}, {out},
             0, 0.3);
      }
    }
  }
  draw({.role = WeightRole::kFinalNorm}, {config.hidden}, 1, 0.2);
  if (!config.tied_embeddings) {
    draw({.role = WeightRole::kHead}, {config.vocab_size, config.hidden}, 0, narrow);
  }
}

const std::vector<float>& SmallWeights::get(const WeightId& id) const {
  for (const Entry& entry : entries_) {
    if (entry.id == id) return entry.values;
  }
  throw Error(Reason::kInternal, "no such weight");
}

nn::BaseWeights::Source SmallWeights::source() const {
  return [this](const WeightId& id) {
    for (const Entry& entry : entries_) {
      if (!(entry.id == id)) continue;
      model::StoredTensor tensor;
      tensor.dtype = DType::kF32;
      tensor.shape = entry.shape;
      tensor.bytes = reinterpret_cast<const std::byte*>(entry.values.data());
      tensor.num_bytes = entry.values.size() * sizeof(float);
      return tensor;
    }
    throw Error(Reason::kInternal, "no such weight");
  };
}

Rig::Rig(int threads, device::KernelSet kernels) {
  device::HostDeviceOptions options;
  options.capacity_bytes = uint64_t{4} << 30;
  options.num_threads = threads;
  options.kernels = kernels;
  device = device::HostDevice::create(options);
  stream = device->create_stream();
  ops = device->all_ops(*stream);
}

std::unique_ptr<nn::BaseWeights> Rig::load(const ModelConfig& config, const SmallWeights& weights,
                                           DType dtype) {
  return nn::BaseWeights::load(*device, *stream, *ops.linear, config, weights.source(), dtype);
}

Batch random_batch(const std::vector<int>& lengths, int64_t vocab, uint64_t seed, double share) {
  Random random(seed, random_stream("batch"));
  Batch batch;
  for (const int length : lengths) {
    auto& row = batch.rows.emplace_back();
    auto& targets = batch.is_target.emplace_back();
    for (int i = 0; i < length; ++i) {
      row.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab))));
      targets.push_back(i > 0 && random.uniform() < share);
    }
    if (length > 1) targets[1] = true;
  }
  return batch;
}

nn::StepPlan train_step(const Batch& batch, size_t begin, size_t end) {
  nn::StepPlan step;
  uint64_t token = 0;
  for (size_t r = 0; r < end; ++r) {
    if (r < begin) {
      token += batch.rows[r].size();
      continue;
    }
    const auto row = static_cast<int64_t>(step.ids.size());
    step.segments.push_back({.kind = nn::SegmentKind::kTrain,
                             .row = row,
                             .num_tokens = static_cast<int64_t>(batch.rows[r].size())});
    for (size_t i = 0; i < batch.rows[r].size(); ++i) {
      step.ids.push_back(batch.rows[r][i]);
      step.row_ids.push_back(token++);
      if (!batch.is_target[r][i]) continue;
      step.target_rows.push_back(static_cast<int32_t>(row + static_cast<int64_t>(i) - 1));
      step.targets.push_back(batch.rows[r][i]);
    }
  }
  return step;
}

nn::StepPlan train_step(const Batch& batch) { return train_step(batch, 0, batch.rows.size()); }

std::vector<AdaptedLinear> adapt(const ModelConfig& config, const std::vector<std::string>& targets,
                                 const std::vector<int64_t>& layers, int64_t rank, double alpha) {
  model::LoraSettings settings;
  settings.rank = rank;
  settings.alpha = alpha;
  settings.targets = targets;
  settings.layers = layers;
  return model::adapted_linears(config, settings);
}

std::vector<float> random_parameters(const std::vector<AdaptedLinear>& linears, uint64_t seed) {
  Random random(seed, random_stream("parameters"));
  std::vector<float> values(model::num_trainable(linears));
  for (float& value : values) value = static_cast<float>(0.25 * random.normal());
  return values;
}

model::MemorySettings settings_for(const std::vector<AdaptedLinear>& linears,
                                   const nn::StepPlan& step) {
  model::MemorySettings settings;
  settings.linears = linears;
  settings.micro_batch_tokens = static_cast<int64_t>(step.ids.size());
  settings.micro_batch_rows = static_cast<int64_t>(step.segments.size());
  settings.max_position = 128;
  return settings;
}

namespace {

/// The f64 forward pass of one row.
class Reference {
 public:
  using Rows = std::vector<double>;  // [tokens, width]
  Reference(const ModelConfig& config, const SmallWeights& weights,
            const std::vector<AdaptedLinear>& linears, const std::vector<double>& parameters,
            const std::vector<int32_t>& ids, size_t row, const MaskSource& mask)
      : config_(config),
        weights_(weights),
        linears_(linears),
        parameters_(parameters),
        ids_(ids),
        row_(row),
        mask_(mask),
        tokens_(static_cast<int64_t>(ids.size())) {}

  Rows logits() {
    const int64_t h = config_.hidden;
    const auto& embedding = weights_.get({.role = WeightRole::kEmbedding});
    Rows x(static_cast<size_t>(tokens_ * h));
    for (int64_t t = 0; t < tokens_; ++t) {
      for (int64_t i = 0; i < h; ++i)
        x[idx(t, h, i)] = embedding[idx(ids_[static_cast<size_t>(t)], h, i)];
    }
    for (int layer = 0; layer < static_cast<int>(config_.num_layers); ++layer) block(layer, &x);
    const Rows last = norm(x, weights_.get({.role = WeightRole::kFinalNorm}));
    const auto& head =
        config_.tied_embeddings ? embedding : weights_.get({.role = WeightRole::kHead});
    return multiply(last, head, config_.vocab_size, h);
  }

 private:
  static size_t idx(int64_t row, int64_t width, int64_t col) {
    return static_cast<size_t>(row * width + col);
  }

  void block(int layer, Rows* x) {
    const Rows n1 = norm(*x, weights_.get({.role = WeightRole::kAttentionNorm, .layer = layer}));
    Rows q = linear(layer, Projection::kQ, n1);
    Rows k = linear(layer, Projection::kK, n1);
    const Rows v = linear(layer, Projection::kV, n1);
    if (config_.qk_norm) {
      q = norm(q, weights_.get({.role = WeightRole::kQNorm, .layer = layer}));
      k = norm(k, weights_.get({.role = WeightRole::kKNorm, .layer = layer}));
    }
    rotate(&q, config_.num_heads);
    rotate(&k, config_.num_kv_heads);
    add(linear(layer, Projection::kO, attention(q, k, v)), x);
    const Rows n2 = norm(*x, weights_.get({.role = WeightRole::kMlpNorm, .layer = layer}));
    const Rows gate = linear(layer, Projection::kGate, n2);
    Rows product = linear(layer, Projection::kUp, n2);
    for (size_t i = 0; i < gate.size(); ++i) product[i] *= gate[i] / (1 + std::exp(-gate[i]));
    add(linear(layer, Projection::kDown, product), x);
  }

  static void add(const Rows& x, Rows* y) {
    for (size_t i = 0; i < x.size(); ++i) (*y)[i] += x[i];
  }

  /// Of each run of weight.size() values: a token's or a head's.
  Rows norm(const Rows& x, const std::vector<float>& weight) const {
    const auto h = static_cast<int64_t>(weight.size());
    const int64_t num_rows = static_cast<int64_t>(x.size()) / h;
    Rows y(x.size());
    for (int64_t t = 0; t < num_rows; ++t) {
      double sum = 0;
      for (int64_t i = 0; i < h; ++i) sum += x[idx(t, h, i)] * x[idx(t, h, i)];
      const double rstd = 1 / std::sqrt(sum / static_cast<double>(h) + config_.rms_eps);
      for (int64_t i = 0; i < h; ++i) {
        y[idx(t, h, i)] = x[idx(t, h, i)] * rstd * weight[static_cast<size_t>(i)];
      }
    }
    return y;
  }

  template <typename Matrix>
  Rows multiply(const Rows& x, const Matrix& w, int64_t out, int64_t in) const {
    Rows y(static_cast<size_t>(tokens_ * out));
    for (int64_t t = 0; t < tokens_; ++t) {
      for (int64_t o = 0; o < out; ++o) {
        double sum = 0;
        for (int64_t i = 0; i < in; ++i) sum += x[idx(t, in, i)] * w[idx(o, in, i)];
        y[idx(t, out, o)] = sum;
      }
    }
    return y;
  }

  Rows linear(int layer, Projection projection, const Rows& x) const {
    const WeightId id{.role = WeightRole::kProjection, .layer = layer, .projection = projection};
    const int64_t out = config_.projection_out(projection), in = config_.projection_in(projection);
    Rows y = multiply(x, weights_.get(id), out, in);
    if (config_.projection_has_bias(projection)) {
      const auto& bias = weights_.get(
          {.role = WeightRole::kProjectionBias, .layer = layer, .projection = projection});
      for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i % static_cast<size_t>(out)];
    }
    size_t offset = 0;
    for (const AdaptedLinear& adapted : linears_) {
      if (adapted.layer == layer && adapted.projection == projection) {
        adapter(adapted, parameters_.data() + offset, x, &y);
      }
      offset += adapted.num_parameters();
    }
    return y;
  }

  void adapter(const AdaptedLinear& adapted, const double* values, const Rows& x, Rows* y) const {
    const int64_t r = adapted.rank;
    Rows dropped = x;
    if (mask_) {
      const auto mask = mask_(adapted.layer, adapted.projection, row_, tokens_, adapted.in);
      for (size_t i = 0; i < dropped.size(); ++i) dropped[i] *= mask[i];
    }
    const std::vector<double> a(values, values + r * adapted.in);
    const std::vector<double> b(values + r * adapted.in, values + r * (adapted.in + adapted.out));
    const Rows share = multiply(multiply(dropped, a, r, adapted.in), b, adapted.out, r);
    for (size_t i = 0; i < share.size(); ++i) (*y)[i] += adapted.scaling * share[i];
  }

  void rotate(Rows* x, int64_t heads) const {
    const int64_t d = config_.head_dim, half = d / 2;
    for (int64_t t = 0; t < tokens_; ++t) {
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t i = 0; i < half; ++i) {
          const double angle =
              static_cast<double>(t) *
              std::pow(config_.rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(d));
          double& low = (*x)[idx(t, heads * d, head * d + i)];
          double& high = (*x)[idx(t, heads * d, head * d + i + half)];
          const double l = low, g = high;
          low = l * std::cos(angle) - g * std::sin(angle);
          high = g * std::cos(angle) + l * std::sin(angle);
        }
      }
    }
  }

  Rows attention(const Rows& q, const Rows& k, const Rows& v) const {
    const int64_t d = config_.head_dim, qw = config_.q_width(), kw = config_.kv_width();
    const int64_t group = config_.num_heads / config_.num_kv_heads;
    Rows o(static_cast<size_t>(tokens_ * qw));
    for (int64_t head = 0; head < config_.num_heads; ++head) {
      const int64_t qc = head * d, kc = head / group * d;
      for (int64_t t = 0; t < tokens_; ++t) {
        std::vector<double> p;
        double sum = 0;
        const int64_t window = config_.sliding_window;
        const int64_t first = window > 0 ? std::max<int64_t>(0, t - window + 1) : 0;
        for (int64_t s = first; s <= t; ++s) {
          double score = 0;
          for (int64_t i = 0; i < d; ++i) score += q[idx(t, qw, qc + i)] * k[idx(s, kw, kc + i)];
          p.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
          sum += p.back();
        }
        for (int64_t s = first; s <= t; ++s) {
          const double weight = p[static_cast<size_t>(s - first)] / sum;
          for (int64_t i = 0; i < d; ++i) o[idx(t, qw, qc + i)] += weight * v[idx(s, kw, kc + i)];
        }
      }
    }
    return o;
  }

  const ModelConfig& config_;
  const SmallWeights& weights_;
  const std::vector<AdaptedLinear>& linears_;
  const std::vector<double>& parameters_;
  const std::vector<int32_t>& ids_;
  const size_t row_;
  const MaskSource& mask_;
  const int64_t tokens_;
};

}  // namespace

std::vector<double> reference_logits(const ModelConfig& config, const SmallWeights& weights,
                                     const std::vector<AdaptedLinear>& linears,
                                     const std::vector<double>& parameters,
                                     const std::vector<int32_t>& ids, size_t row,
                                     const MaskSource& mask) {
  return Reference(config, weights, linears, parameters, ids, row, mask).logits();
}

double reference_loss(const ModelConfig& config, const SmallWeights& weights,
                      const std::vector<AdaptedLinear>& linears,
                      const std::vector<double>& parameters, const Batch& batch,
                      const MaskSource& mask) {
  const auto vocab = static_cast<size_t>(config.vocab_size);
  double sum = 0;
  for (size_t r = 0; r < batch.rows.size(); ++r) {
    const auto logits =
        reference_logits(config, weights, linears, parameters, batch.rows[r], r, mask);
    for (size_t t = 1; t < batch.rows[r].size(); ++t) {
      if (!batch.is_target[r][t]) continue;
      const double* row = logits.data() + (t - 1) * vocab;
      const double largest = *std::max_element(row, row + vocab);
      double exps = 0;
      for (size_t i = 0; i < vocab; ++i) exps += std::exp(row[i] - largest);
      sum += largest + std::log(exps) - row[batch.rows[r][t]];
    }
  }
  return sum;
}

}  // namespace galley::testing
