#include "engine/device/host/kernel_choice.h"

#include <algorithm>
#include <cstdlib>

#include "engine/core/clock.h"
#include "engine/core/error.h"
#include "engine/core/random.h"
#include "engine/core/strings.h"
#include "engine/device/host/host_ops.h"

namespace galley::device {
namespace {

// One product of this size takes about a millisecond; larger ones say nothing more. 132 rows fill
// whole register tiles of 4, 6, 11 and 12 rows.
constexpr int64_t kMostRows = 132, kMostIn = 576, kMostOut = 384;
// A turn of a candidate lasts at least this long, so that the clock's own cost does not matter.
constexpr double kTurnSeconds = 3e-4;
constexpr double kBudgetSeconds = 0.015;  // of a candidate; one more turn may follow
constexpr int kMostTurns = 12;
// After this many turns whoever is slower than this share of the fastest is out.
constexpr int kTrialTurns = 2;
constexpr double kHopeless = 0.6;

double thread_seconds() { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }

constexpr size_t kAlignment = 64;

/// Aligned memory outside any device; its pages are taken by who writes them first.
class Block {
 public:
  explicit Block(size_t bytes)
      : data_(std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment)) {
    if (data_ == nullptr) throw Error(Reason::kOutOfMemory, "no memory to time kernels");
  }
  ~Block() { std::free(data_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_;
};

/// One product of a turn, without its rows and the memory of a thread.
struct Product {
  BForm form = BForm::kRows;
  int64_t out = 0, in = 0;  // of the weight
  int64_t n = 0, k = 0;
};

class KernelTimer {
 public:
  explicit KernelTimer(const KernelWork& work)
      : work_(work),
        pool_(work.threads, work.cpus),
        weights_(weight_bytes()),
        operands_(static_cast<size_t>(work.threads) * kThreadFloats * sizeof(float)),
        scratch_(static_cast<size_t>(work.threads) * kGemmScratchFloats * sizeof(float)) {
    list_products();
    fill();
  }

  /// Seconds of `count` runs of all products with so many rows, of each thread.
  void run(KernelSet kernels, int64_t rows, int64_t count, std::vector<double>* seconds) {
    const GemmKernels& gemm = kernel_table(kernels).gemm;
    pool_.run([&](int thread) {
      float* const scratch = scratch_.as<float>() + thread * kGemmScratchFloats;
      float* const operands = operands_.as<float>() + thread * kThreadFloats;
      const double begin = thread_seconds();
      for (int64_t i = 0; i < count; ++i) {
        for (const Product& product : products_) {
          const GemmTask task = task_of(product, rows, operands);
          gemm.gemm(task, 0, task.m, 0, task.n, scratch);
        }
      }
      (*seconds)[static_cast<size_t>(thread)] = thread_seconds() - begin;
    });
  }

  double flops(int64_t rows) const {
    double sum = 0;
    for (const Product& p : products_) sum += 2.0 * static_cast<double>(rows * p.n * p.k);
    return sum;
  }

 private:
  static constexpr int64_t kMostWidth = std::max(kMostIn, kMostOut);
  static constexpr int64_t kThreadFloats = 2 * kMostRows * kMostWidth;  // left operand, result
  static constexpr size_t kWeightValues = static_cast<size_t>(kMostIn * kMostOut);

  static size_t weight_bytes() { return kWeightValues * sizeof(float); }

  void list_products() {
    const bool bf16 = work_.weights == WeightKind::kBf16;
    for (const KernelWork::Shape& shape : work_.shapes) {
      const int64_t out = std::clamp<int64_t>(shape.out, 1, kMostOut);
      const int64_t in = std::clamp<int64_t>(shape.in, 1, kMostIn);
      // Shapes that the cut made equal say nothing new.
      const auto same = [&](const Product& p) { return p.out == out && p.in == in; };
      if (std::any_of(products_.begin(), products_.end(), same)) continue;
      products_.push_back({bf16 ? BForm::kPanelBf16 : BForm::kPanelF32, out, in, out, in});
      if (work_.passes == KernelWork::Passes::kForward) continue;
      products_.push_back(
          {bf16 ? BForm::kPanelBf16Transposed : BForm::kPanelF32Transposed, out, in, in, out});
    }
  }

  /// Ordinary numbers: zeros and denormal ones can take another time.
  void fill() {
    Random random(1, 1);
    for (size_t i = 0; i < kWeightValues; ++i) {
      const auto value = static_cast<float>(random.uniform() - 0.5);
      if (work_.weights == WeightKind::kBf16) {
        weights_.as<uint16_t>()[i] = f32_to_bf16(value);
      } else {
        weights_.as<float>()[i] = value;
      }
    }
    pool_.run([&](int thread) {  // by the thread that uses it: its pages are then near
      float* const operands = operands_.as<float>() + thread * kThreadFloats;
      for (int64_t i = 0; i < kThreadFloats; ++i) {
        operands[i] = 0.25f + static_cast<float>(i % 251) / 512.0f;
      }
    });
  }

  GemmTask task_of(const Product& product, int64_t rows, float* operands) const {
    GemmTask task;
    task.a = operands;
    task.a_row = product.k;
    task.b_form = product.form;
    task.b = weights_.as<void>();
    task.b_stride = stored_inputs({.kind = work_.weights, .in = product.in});
    task.m = rows;
    task.n = product.n;
    task.k = product.k;
    task.c = operands + kMostRows * kMostWidth;
    task.c_row = product.n;
    return task;
  }

  const KernelWork& work_;
  ThreadPool pool_;
  Block weights_, operands_, scratch_;
  std::vector<Product> products_;
};

/// A candidate in the course of its turns.
struct Trial {
  KernelSet kernels = KernelSet::kPortable;
  std::vector<std::vector<double>> best;  // [rows][thread] seconds of one run
  double spent = 0;
  bool out = false;

  /// Work of all shares by the time they take, summed over the threads.
  double flops_per_second(const KernelTimer& timer,
                          const std::vector<KernelWork::Rows>& rows) const {
    double sum = 0;
    for (size_t thread = 0; thread < best.at(0).size(); ++thread) {
      double flops = 0, seconds = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        flops += rows[i].share * timer.flops(rows[i].rows);
        seconds += rows[i].share * best[i][thread];
      }
      sum += flops / std::max(seconds, 1e-12);
    }
    return sum;
  }
};

}  // namespace

std::vector<KernelSet> kernel_candidates(InputRounding rounding) {
  std::vector<KernelSet> candidates = usable_kernel_sets();
  if (rounding == InputRounding::kNever) std::erase_if(candidates, kernel_set_rounds);
  return candidates;
}

std::vector<KernelMeasurement> measure_kernels(std::span<const KernelSet> candidates,
                                               const KernelWork& work) {
  GALLEY_CHECK(!work.shapes.empty() && !work.rows.empty() && work.threads > 0);
  std::vector<KernelWork::Rows> rows = work.rows;
  for (KernelWork::Rows& one : rows) one.rows = std::clamp<int64_t>(one.rows, 1, kMostRows);
  KernelTimer timer(work);
  const auto threads = static_cast<size_t>(work.threads);
  std::vector<double> seconds(threads);
  std::vector<Trial> trials;
  for (const KernelSet kernels : candidates) {
    trials.push_back({kernels, {rows.size(), std::vector<double>(threads, 1e30)}, 0, false});
  }

  const auto turn = [&](Trial& trial, size_t i) {
    // The first run tells how many make a turn.
    const double known = *std::max_element(trial.best[i].begin(), trial.best[i].end());
    const auto count =
        known > 1e29 ? 1 : std::max<int64_t>(1, static_cast<int64_t>(kTurnSeconds / known));
    timer.run(trial.kernels, rows[i].rows, count, &seconds);
    for (size_t t = 0; t < threads; ++t) {
      trial.best[i][t] = std::min(trial.best[i][t], seconds[t] / static_cast<double>(count));
    }
    trial.spent += *std::max_element(seconds.begin(), seconds.end());
  };
  for (int number = 0; number < kMostTurns; ++number) {
    double fastest = 0;
    for (Trial& trial : trials) {
      if (trial.out) continue;
      for (size_t i = 0; i < rows.size(); ++i) turn(trial, i);
      fastest = std::max(fastest, trial.flops_per_second(timer, rows));
    }
    for (Trial& trial : trials) {
      const bool hopeless =
          number + 1 >= kTrialTurns && trial.flops_per_second(timer, rows) < kHopeless * fastest;
      trial.out = trial.out || hopeless || trial.spent > kBudgetSeconds;
    }
  }
  std::vector<KernelMeasurement> measured;
  for (const Trial& trial : trials) {
    measured.push_back({trial.kernels, trial.flops_per_second(timer, rows)});
  }
  return measured;
}

KernelSet choose_kernels(std::span<const KernelMeasurement> measured,
                         std::optional<KernelSet> earlier) {
  GALLEY_CHECK(!measured.empty());
  const KernelMeasurement *exact = nullptr, *rounding = nullptr;  // the fastest of each
  for (const KernelMeasurement& one : measured) {
    const KernelMeasurement*& best = kernel_set_rounds(one.kernels) ? rounding : exact;
    if (best == nullptr || one.flops_per_second > best->flops_per_second) best = &one;
  }
  const bool gains =
      exact == nullptr ||
      (rounding != nullptr && rounding->flops_per_second > kKernelTie * exact->flops_per_second);
  const KernelMeasurement* chosen = gains ? rounding : exact;
  if (!gains) {
    for (const KernelMeasurement& one : measured) {
      const bool wide_enough = one.flops_per_second * kNarrowerGain >= exact->flops_per_second;
      if (!kernel_set_rounds(one.kernels) && wide_enough) chosen = &one;
    }
  }
  for (const KernelMeasurement& one : measured) {
    const bool tied = one.flops_per_second * kKernelTie >= chosen->flops_per_second;
    if (earlier == one.kernels && tied && (gains || !kernel_set_rounds(one.kernels)))
      return *earlier;
  }
  return chosen->kernels;
}

std::string compare_kernels(KernelSet chosen, std::span<const KernelMeasurement> measured) {
  const KernelMeasurement *own = nullptr, *other = nullptr;
  for (const KernelMeasurement& one : measured) {
    if (one.kernels == chosen) {
      own = &one;
    } else if (other == nullptr || one.flops_per_second > other->flops_per_second) {
      other = &one;
    }
  }
  if (own == nullptr || other == nullptr || other->flops_per_second <= 0) return "";
  const double ratio = own->flops_per_second / other->flops_per_second;
  const bool exact_instead = kernel_set_rounds(other->kernels) && !kernel_set_rounds(chosen);
  const char* excuse = ratio >= 1 ? "" : exact_instead ? ", exact" : other < own ? ", wider" : "";
  return cat(format(ratio < 1.1 ? "%.2f" : "%.1f", ratio), "x ", kernel_set_name(other->kernels),
             excuse);
}

}  // namespace galley::device
