// balance_stages: layers of a pipeline's stages on unlike GPUs, by dynamic programming.
#include <algorithm>
#include <cmath>
#include <limits>

#include "predictor/predictor.h"

namespace galley::predictor {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();
// Sums of the same times in another order differ in their last bits.
constexpr double kTie = 1e-9;

/// Of the layers given to a stage and those before it: the sum of the stages' times, then the sum
/// of their squares.
struct Cost {
  double sum = kNone, squares = kNone;
  bool less(const Cost& other) const {
    if (sum == kNone || other.sum == kNone) return sum < other.sum;
    if (std::abs(sum - other.sum) > kTie * other.sum) return sum < other.sum;
    return squares < other.squares * (1 - kTie);
  }
};

class Balance {
 public:
  Balance(int num_layers, std::span<const StageCost> stages,
          const std::function<bool(int, int, int)>& fits)
      : num_layers_(num_layers),
        num_stages_(static_cast<int>(stages.size())),
        stages_(stages),
        fits_(fits),
        known_(static_cast<size_t>(num_stages_ * (num_layers + 1) * (num_layers + 1)), -1) {}

  std::vector<int> best() {
    const double slowest = least_slowest();
    if (slowest == kNone) return {};
    return cheapest_within(slowest * (1 + kTie));
  }

 private:
  double seconds(int stage, int layers) const {
    const StageCost& cost = stages_[static_cast<size_t>(stage)];
    return cost.layer_s * layers + cost.extra_s;
  }
  bool fits(int stage, int first, int layers) {
    int8_t& known = known_[static_cast<size_t>(
        (stage * (num_layers_ + 1) + first) * (num_layers_ + 1) + layers)];
    if (known < 0) known = fits_(stage, first, layers) ? 1 : 0;
    return known == 1;
  }
  /// Most layers that stages 0 .. stage may have together: the rest need one each.
  int most(int stage) const { return num_layers_ - (num_stages_ - 1 - stage); }

  /// The slowest stage's time of the best split, or kNone.
  double least_slowest() {
    std::vector<double> before(static_cast<size_t>(num_layers_) + 1, kNone);
    before[0] = 0;
    for (int stage = 0; stage < num_stages_; ++stage) {
      std::vector<double> after(before.size(), kNone);
      for (int end = stage + 1; end <= most(stage); ++end) {
        double& best = after[static_cast<size_t>(end)];
        for (int first = stage; first < end; ++first) {
          const double so_far = before[static_cast<size_t>(first)];
          const double time = std::max(so_far, seconds(stage, end - first));
          if (time < best && fits(stage, first, end - first)) best = time;
        }
      }
      before = std::move(after);
    }
    return before[static_cast<size_t>(num_layers_)];
  }

  std::vector<int> cheapest_within(double slowest) {
    const auto width = static_cast<size_t>(num_layers_) + 1;
    std::vector<Cost> before(width);
    before[0] = {0, 0};
    std::vector<std::vector<int>> given(static_cast<size_t>(num_stages_),
                                        std::vector<int>(width, 0));
    for (int stage = 0; stage < num_stages_; ++stage) {
      std::vector<Cost> after(width);
      for (int end = stage + 1; end <= most(stage); ++end) {
        for (int first = stage; first < end; ++first) {
          const Cost& so_far = before[static_cast<size_t>(first)];
          const double time = seconds(stage, end - first);
          if (so_far.sum == kNone || time > slowest) continue;
          const Cost cost{so_far.sum + time, so_far.squares + time * time};
          if (!cost.less(after[static_cast<size_t>(end)]) || !fits(stage, first, end - first))
            continue;
          after[static_cast<size_t>(end)] = cost;
          given[static_cast<size_t>(stage)][static_cast<size_t>(end)] = end - first;
        }
      }
      before = std::move(after);
    }
    std::vector<int> layers(static_cast<size_t>(num_stages_));
    int end = num_layers_;
    for (int stage = num_stages_ - 1; stage >= 0; --stage) {
      layers[static_cast<size_t>(stage)] =
          given[static_cast<size_t>(stage)][static_cast<size_t>(end)];
      end -= layers[static_cast<size_t>(stage)];
    }
    return layers;
  }

  const int num_layers_, num_stages_;
  const std::span<const StageCost> stages_;
  const std::function<bool(int, int, int)>& fits_;
  std::vector<int8_t> known_;  // -1: not asked yet
};

}  // namespace

std::vector<int> balance_stages(int num_layers, std::span<const StageCost> stages,
                                const std::function<bool(int, int, int)>& fits) {
  if (stages.empty() || num_layers < static_cast<int>(stages.size())) return {};
  return Balance(num_layers, stages, fits).best();
}

}  // namespace galley::predictor
