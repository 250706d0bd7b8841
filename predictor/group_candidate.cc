// group_candidate(): the shape that a job takes on given GPUs.
#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "predictor/figures.h"
#include "predictor/precision.h"

namespace galley::predictor {
namespace {

// Micro batches per optimizer step and stage that a pipeline should have: a bubble of about a fifth
// at most.
constexpr int64_t kMicroBatchesPerStage = 4;
// Splits tried when a balanced one turns out not to fit.
constexpr int kSplitTries = 4;
// Replicas whose shares differ by less are alike.
constexpr double kAlikeShare = 0.02;

bool alike(const GroupGpu& a, const GroupGpu& b) {
  return a.type.name == b.type.name && a.type.memory_bytes == b.type.memory_bytes &&
         a.type.slowdown == b.type.slowdown && a.threads == b.threads;
}

class GroupShapes {
 public:
  GroupShapes(const model::ModelConfig& config, const model::TrainSpec& spec, const DataShape& data,
              const model::ParallelLayout& layout, std::span<const GroupGpu> gpus)
      : config_(config), spec_(spec), data_(data), gpus_(gpus) {
    linears_ = model::adapted_linears(config, spec.lora);
    shape_.layout = layout;
    pinned_stages_ = layout.pp_size == 1 || !layout.stage_layers.empty();
    resolve_numbers();
    set_threads();
    for (int rank = 0; rank < layout.num_workers(); ++rank) {
      unlike_replicas_ =
          unlike_replicas_ || !alike(gpus[static_cast<size_t>(rank)],
                                     gpus[static_cast<size_t>(rank % workers_per_replica())]);
    }
  }

  Candidate best() {
    const std::vector<bool> recompute = recompute_choices();
    const std::vector<int64_t> budgets = micro_batch_budgets();
    const auto with = [&](bool blocks, int64_t tokens) {
      shape_.recompute_blocks = blocks;
      shape_.micro_batch_tokens = tokens;
      shape_.replica_tokens.clear();
      shape_.replica_shares.clear();
      return balanced();
    };
    // What does not fit at its smallest does not fit at all, and that is soon known.
    Candidate smallest = with(recompute.back(), budgets.back());
    if (!smallest.prediction.fits) return smallest;
    for (const bool blocks : recompute) {
      for (const int64_t tokens : budgets) {
        Candidate candidate = with(blocks, tokens);
        if (candidate.prediction.fits) return candidate;
      }
    }
    return smallest;
  }

 private:
  JobView job() const { return {config_, spec_, data_, linears_}; }
  int workers_per_replica() const { return shape_.layout.tp_size * shape_.layout.pp_size; }

  /// The same numbers everywhere: where one type rounds nothing, none does.
  void resolve_numbers() {
    shape_.may_round_inputs = true;
    shape_.weight_dtype = DType::kBf16;
    const GroupGpu* least = &gpus_.front();
    for (const GroupGpu& gpu : gpus_) {
      const ResolvedPrecision precision = resolve_precision(config_, spec_.precision, gpu.type);
      shape_.may_round_inputs = shape_.may_round_inputs && precision.may_round_inputs;
      if (precision.weight_dtype == DType::kF32) shape_.weight_dtype = DType::kF32;
      if (!has_bf16(gpu.type) && has_bf16(least->type)) least = &gpu;
    }
    shape_.precision_note = resolve_precision(config_, spec_.precision, least->type).note;
  }

  void set_threads() {
    bool equal = true;
    for (const GroupGpu& gpu : gpus_) {
      int threads = std::max(1, gpu.threads);
      if (spec_.threads > 0) threads = static_cast<int>(std::min<int64_t>(spec_.threads, threads));
      shape_.worker_threads.push_back(threads);
      equal = equal && threads == shape_.worker_threads.front();
    }
    shape_.threads = *std::min_element(shape_.worker_threads.begin(), shape_.worker_threads.end());
    if (equal) shape_.worker_threads.clear();
  }
  int threads(int rank) const {
    return shape_.worker_threads.empty() ? shape_.threads
                                         : shape_.worker_threads[static_cast<size_t>(rank)];
  }

  std::vector<bool> recompute_choices() const {
    if (spec_.recompute == model::Recompute::kNone) return {false};
    if (spec_.recompute == model::Recompute::kBlock) return {true};
    return {false, true};
  }

  std::vector<int64_t> micro_batch_budgets() const {
    const int64_t row = longest_row(spec_, data_);
    if (spec_.micro_batch_tokens > 0) return {std::max(spec_.micro_batch_tokens, row)};
    const model::ParallelLayout& layout = shape_.layout;
    const int64_t parts =
        layout.dp_size * (layout.pp_size > 1 ? kMicroBatchesPerStage * layout.pp_size : 1);
    const auto enough = static_cast<int64_t>(
        std::ceil(mean_tokens(spec_, data_) * static_cast<double>(spec_.global_batch) /
                  static_cast<double>(parts)));
    return micro_batch_choices(row, enough);
  }

  /// The candidate of shape_'s micro batch, with the layers and shares that suit the GPUs.
  Candidate balanced() {
    if (!pinned_stages_) shape_.layout.stage_layers.clear();
    std::vector<int> most(static_cast<size_t>(shape_.layout.pp_size),
                          static_cast<int>(config_.num_layers));
    bool measured = false;
    for (int tries = 0;; ++tries) {
      const bool split = pinned_stages_ || balance(most);
      share_out();
      Candidate candidate{shape_, predict_group(job(), shape_, gpus_)};
      if (candidate.prediction.fits || pinned_stages_ || !split || tries == kSplitTries) {
        return candidate;
      }
      if (!measured) {
        measure_most(&most);
        measured = true;
      } else {
        for (size_t stage = 0; stage < most.size(); ++stage) {
          if (!stage_fits(static_cast<int>(stage))) most[stage] = std::max(1, most[stage] - 1);
        }
      }
    }
  }

  bool balance(const std::vector<int>& most) {
    const std::vector<StageCost> costs = stage_costs();
    shape_.layout.stage_layers = balance_stages(
        static_cast<int>(config_.num_layers), costs,
        [&](int stage, int, int layers) { return layers <= most[static_cast<size_t>(stage)]; });
    return !shape_.layout.stage_layers.empty();
  }

  /// Seconds per token of a layer and of the head on each stage's slowest worker.
  std::vector<StageCost> stage_costs() const {
    model::ParallelLayout halves;
    halves.tp_size = shape_.layout.tp_size;
    halves.pp_size = 2;
    const std::vector<int> split = model::stage_layers(config_, halves);
    std::vector<StageCost> costs(static_cast<size_t>(shape_.layout.pp_size));
    for (int tp_rank = 0; tp_rank < halves.tp_size; ++tp_rank) {
      const double lower = flops(halves, tp_rank, 0), upper = flops(halves, tp_rank, 1);
      const double layer = lower / split[0];
      const double head = std::max(0.0, upper - layer * split[1]);
      for (int rank = 0; rank < shape_.layout.num_workers(); ++rank) {
        const model::WorkerPosition at = model::worker_position(shape_.layout, rank);
        if (at.tp_rank != tp_rank) continue;
        const double rate = device_flops(gpus_[static_cast<size_t>(rank)].type, threads(rank),
                                         shape_.may_round_inputs);
        StageCost& cost = costs[static_cast<size_t>(at.pp_rank)];
        cost.layer_s = std::max(cost.layer_s, layer / rate);
        if (at.pp_rank + 1 == shape_.layout.pp_size)
          cost.extra_s = std::max(cost.extra_s, head / rate);
      }
    }
    return costs;
  }

  double flops(const model::ParallelLayout& layout, int tp_rank, int stage) const {
    const model::WorkerFlops flops = model::worker_flops(
        config_, linears_, {layout, {tp_rank, stage, 0}}, mean_tokens(spec_, data_) / 2,
        data_.target_fraction, shape_.recompute_blocks);
    return flops.forward + flops.backward;
  }

  bool stage_fits(int stage) const { return predictor::stage_fits(job(), shape_, gpus_, stage); }

  /// The most layers that each stage's GPUs hold, each alone.
  void measure_most(std::vector<int>* most) {
    const std::vector<int> kept = shape_.layout.stage_layers;
    const auto stages = static_cast<int>(most->size());
    const auto layers = static_cast<int>(config_.num_layers);
    for (int stage = 0; stage < stages; ++stage) {
      const auto holds = [&](int count) {
        shape_.layout.stage_layers = split_with(layers, stages, stage, count);
        return stage_fits(stage);
      };
      // Bytes grow with the layers; doubling keeps to small plans where little fits.
      const int largest = layers - (stages - 1);
      int low = 0, high = 1;
      while (high < largest && holds(high)) {
        low = high;
        high = std::min(largest, 2 * high);
      }
      while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (holds(middle)) {
          low = middle;
        } else {
          high = middle - 1;
        }
      }
      (*most)[static_cast<size_t>(stage)] = low;
    }
    shape_.layout.stage_layers = kept;
  }

  /// A split in which one stage has `count` layers, the others what is left.
  static std::vector<int> split_with(int layers, int stages, int stage, int count) {
    std::vector<int> split(static_cast<size_t>(stages), 1);
    split[static_cast<size_t>(stage)] = count;
    const int rest = layers - count - (stages - 1);
    split[static_cast<size_t>(stage == 0 ? stages - 1 : 0)] += rest;
    return split;
  }

  /// Unlike replicas: each takes micro batches as large as its memory allows, and a share of the
  /// global batch by its speed.
  void share_out() {
    if (!unlike_replicas_) return;
    const int replicas = shape_.layout.dp_size;
    std::vector<double> speeds;
    std::vector<int64_t> tokens;
    double sum = 0;
    for (int replica = 0; replica < replicas; ++replica) {
      const auto [largest, speed] = alone(replica);
      tokens.push_back(largest);
      speeds.push_back(speed);
      sum += speed;
    }
    if (sum <= 0) return;  // some replica does not fit alone
    bool equal = true;
    for (double& speed : speeds) {
      speed /= sum;
      equal = equal && std::abs(speed * replicas - 1) < kAlikeShare;
    }
    shape_.replica_shares = equal ? std::vector<double>{} : speeds;
    const auto [least, most] = std::minmax_element(tokens.begin(), tokens.end());
    shape_.micro_batch_tokens = *most;
    shape_.replica_tokens = *least == *most ? std::vector<int64_t>{} : tokens;
  }

  /// One replica without the others: tokens of its micro batches and its tokens per second.
  std::pair<int64_t, double> alone(int replica) const {
    PlanShape one = shape_;
    one.layout.dp_size = 1;
    one.replica_tokens.clear();
    one.replica_shares.clear();
    const auto first = static_cast<size_t>(replica * workers_per_replica());
    const auto count = static_cast<size_t>(workers_per_replica());
    if (!one.worker_threads.empty()) {
      one.worker_threads.assign(shape_.worker_threads.begin() + static_cast<long>(first),
                                shape_.worker_threads.begin() + static_cast<long>(first + count));
    }
    Prediction prediction;
    for (const int64_t tokens : micro_batch_budgets()) {
      if (tokens > shape_.micro_batch_tokens) continue;
      one.micro_batch_tokens = tokens;
      prediction = predict_group(job(), one, gpus_.subspan(first, count));
      if (prediction.fits) break;
    }
    return {one.micro_batch_tokens, prediction.tokens_per_second};
  }

  const model::ModelConfig& config_;
  const model::TrainSpec& spec_;
  const DataShape& data_;
  const std::span<const GroupGpu> gpus_;
  std::vector<model::AdaptedLinear> linears_;
  PlanShape shape_;
  bool pinned_stages_ = false, unlike_replicas_ = false;
};

}  // namespace

Candidate group_candidate(const model::ModelConfig& config, const model::TrainSpec& spec,
                          const DataShape& data, const model::ParallelLayout& layout,
                          std::span<const GroupGpu> gpus) {
  GALLEY_CHECK(static_cast<int>(gpus.size()) == layout.num_workers());
  return GroupShapes(config, spec, data, layout, gpus).best();
}

}  // namespace galley::predictor
