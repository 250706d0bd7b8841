// OptimizerOps of the host device.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>

#include "engine/device/host/host_ops.h"

namespace galley::device {
namespace {

class HostOptimizerOps final : public OptimizerOps {
 public:
  explicit HostOptimizerOps(const HostRuntime& runtime) : runtime_(runtime) {}

 protected:
  void do_adamw(float* w, const float* g, float* m, float* v, int64_t count,
                const AdamWStep& step) override;
  double do_sum_of_squares(const float* x, int64_t count) override;
  bool do_all_finite(const float* x, int64_t count) override;

 private:
  static constexpr int64_t kGrain = 16384;
  static constexpr int64_t kMaxBlocks = 1024;

  const HostRuntime& runtime_;
  std::array<double, kMaxBlocks> block_sums_{};
};

void HostOptimizerOps::do_adamw(float* w, const float* g, float* m, float* v, int64_t count,
                                const AdamWStep& step) {
  const double t = static_cast<double>(step.step);
  AdamWNumbers n;
  n.keep = static_cast<float>(1.0 - step.learning_rate * step.weight_decay);
  n.one_minus_beta1 = static_cast<float>(1.0 - step.beta1);
  n.beta2 = static_cast<float>(step.beta2);
  n.one_minus_beta2 = static_cast<float>(1.0 - step.beta2);
  n.step_size = static_cast<float>(step.learning_rate / (1.0 - std::pow(step.beta1, t)));
  n.root_correction = static_cast<float>(std::sqrt(1.0 - std::pow(step.beta2, t)));
  n.epsilon = static_cast<float>(step.epsilon);
  n.gradient_scale = step.gradient_scale;
  runtime_.pool->parallel_for(count, kGrain, [&](int64_t begin, int64_t end, int) {
    runtime_.kernels->vector.adamw(w + begin, g + begin, m + begin, v + begin, end - begin, n);
  });
}

double HostOptimizerOps::do_sum_of_squares(const float* x, int64_t count) {
  // Blocks depend on the count alone, and their sums are added in order.
  const int64_t block =
      std::max<int64_t>(4096, ((count + kMaxBlocks - 1) / kMaxBlocks + 15) / 16 * 16);
  const int64_t num_blocks = (count + block - 1) / block;
  const int64_t grain = std::max<int64_t>(1, kGrain / block);
  runtime_.pool->parallel_for(num_blocks, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      block_sums_[static_cast<size_t>(i)] = runtime_.kernels->vector.sum_of_squares(
          x + i * block, std::min(block, count - i * block));
    }
  });
  double total = 0;
  for (int64_t i = 0; i < num_blocks; ++i) total += block_sums_[static_cast<size_t>(i)];
  return total;
}

bool HostOptimizerOps::do_all_finite(const float* x, int64_t count) {
  std::atomic<bool> finite{true};
  runtime_.pool->parallel_for(count, kGrain, [&](int64_t begin, int64_t end, int) {
    if (!runtime_.kernels->vector.all_finite(x + begin, end - begin)) finite = false;
  });
  return finite;
}

}  // namespace

std::unique_ptr<OptimizerOps> make_host_optimizer_ops(const HostRuntime& runtime) {
  return std::make_unique<HostOptimizerOps>(runtime);
}

}  // namespace galley::device
