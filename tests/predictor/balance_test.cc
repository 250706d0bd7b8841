#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "engine/core/random.h"
#include "predictor/predictor.h"

namespace galley::predictor {
namespace {

bool any_fits(int, int, int) { return true; }

double slowest(const std::vector<int>& layers, const std::vector<StageCost>& stages) {
  double out = 0;
  for (size_t i = 0; i < layers.size(); ++i)
    out = std::max(out, stages[i].layer_s * layers[i] + stages[i].extra_s);
  return out;
}
double total(const std::vector<int>& layers, const std::vector<StageCost>& stages) {
  double out = 0;
  for (size_t i = 0; i < layers.size(); ++i)
    out += stages[i].layer_s * layers[i] + stages[i].extra_s;
  return out;
}

/// Every split, one by one.
struct Best {
  double slowest = std::numeric_limits<double>::infinity();
  double total = std::numeric_limits<double>::infinity();
};
void search(int left, std::vector<int>* layers, const std::vector<StageCost>& stages,
            const std::function<bool(int, int, int)>& fits, Best* best) {
  const auto stage = static_cast<int>(layers->size());
  const int first = std::accumulate(layers->begin(), layers->end(), 0);
  if (layers->size() == stages.size()) {
    if (left > 0) return;
    const double time = slowest(*layers, stages), sum = total(*layers, stages);
    const double tie = 1e-9 * time;
    if (time < best->slowest - tie || (time <= best->slowest + tie && sum < best->total)) {
      best->slowest = std::min(time, best->slowest);
      best->total = sum;
    }
    return;
  }
  for (int count = 1; count <= left; ++count) {
    if (!fits(stage, first, count)) continue;
    layers->push_back(count);
    search(left - count, layers, stages, fits, best);
    layers->pop_back();
  }
}

TEST(BalanceStages, alike_gpus_get_nearly_even_stages) {
  const std::vector<StageCost> stages(4, {1, 0});
  std::vector<int> layers = balance_stages(30, stages, any_fits);
  std::sort(layers.begin(), layers.end());
  EXPECT_EQ(layers, (std::vector<int>{7, 7, 8, 8}));
  EXPECT_EQ(balance_stages(30, std::vector<StageCost>(3, {1, 0}), any_fits),
            (std::vector<int>{10, 10, 10}));
}

TEST(BalanceStages, the_faster_gpu_gets_more_and_the_head_counts) {
  EXPECT_EQ(balance_stages(12, std::vector<StageCost>{{1, 0}, {3, 0}}, any_fits),
            (std::vector<int>{9, 3}));
  EXPECT_EQ(balance_stages(12, std::vector<StageCost>{{1, 0}, {1, 4}}, any_fits),
            (std::vector<int>{8, 4}));
}

TEST(BalanceStages, memory_limits_what_speed_would_give) {
  const auto fits = [](int stage, int, int layers) { return stage != 0 || layers <= 5; };
  EXPECT_EQ(balance_stages(12, std::vector<StageCost>{{1, 0}, {3, 0}}, fits),
            (std::vector<int>{5, 7}));
  const auto none = [](int, int, int layers) { return layers <= 5; };
  EXPECT_TRUE(balance_stages(12, std::vector<StageCost>{{1, 0}, {3, 0}}, none).empty());
  EXPECT_TRUE(balance_stages(1, std::vector<StageCost>{{1, 0}, {3, 0}}, any_fits).empty());
  EXPECT_EQ(balance_stages(5, std::vector<StageCost>{{1, 0}}, any_fits), std::vector<int>{5});
}

TEST(BalanceStages, property_as_good_as_trying_every_split) {
  Random draw(11, random_stream("balance test"));
  int found = 0, refused = 0;
  for (int round = 0; round < 500; ++round) {
    const int num_stages = 1 + static_cast<int>(draw.below(4));
    const int num_layers = num_stages + static_cast<int>(draw.below(12));
    std::vector<StageCost> stages;
    std::vector<int> most;
    std::vector<int> forbidden;
    for (int stage = 0; stage < num_stages; ++stage) {
      stages.push_back({0.1 + static_cast<double>(draw.below(40)) / 10,
                        static_cast<double>(draw.below(30)) / 10});
      most.push_back(1 + static_cast<int>(draw.below(static_cast<uint64_t>(num_layers))));
      forbidden.push_back(static_cast<int>(draw.below(20)));
    }
    // Not a limit on the number alone: some ranges are forbidden at random.
    const auto fits = [&](int stage, int first, int layers) {
      const auto at = static_cast<size_t>(stage);
      return layers <= most[at] && (first + 2 * layers) % 20 != forbidden[at];
    };
    Best best;
    std::vector<int> path;
    search(num_layers, &path, stages, fits, &best);
    const std::vector<int> layers = balance_stages(num_layers, stages, fits);
    if (layers.empty()) {
      EXPECT_EQ(best.slowest, std::numeric_limits<double>::infinity()) << "round " << round;
      ++refused;
      continue;
    }
    ++found;
    ASSERT_EQ(static_cast<int>(layers.size()), num_stages);
    EXPECT_EQ(std::accumulate(layers.begin(), layers.end(), 0), num_layers);
    int first = 0;
    for (int stage = 0; stage < num_stages; ++stage) {
      const int count = layers[static_cast<size_t>(stage)];
      EXPECT_TRUE(fits(stage, first, count));
      first += count;
    }
    EXPECT_NEAR(slowest(layers, stages), best.slowest, 1e-9 * best.slowest) << "round " << round;
    EXPECT_NEAR(total(layers, stages), best.total, 1e-6 * best.total) << "round " << round;
  }
  EXPECT_GT(found, 100);
  EXPECT_GT(refused, 20);
}

}  // namespace
}  // namespace galley::predictor
