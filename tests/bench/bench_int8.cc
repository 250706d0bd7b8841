// Products with int8 weights beside f32 ones, at the shapes of a 135M model: one line per shape and
// number of rows, medians of short runs that take turns with the peaks, so that all see the same
// load. Weights lie in copies that caches do not hold.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/random.h"
#include "engine/core/strings.h"
#include "engine/device/host/peak.h"
#include "tests/bench/bench_program.h"

namespace galley::bench {
namespace {

using namespace galley::device;  // NOLINT: a benchmark of that module alone

constexpr const char* kHelp =
    "bench_int8 [FLAG...]: products with int8 weights beside f32 ones\n"
    "  --filter TEXT        only cases whose name has TEXT, e.g. \"head M=1\"\n"
    "  --threads N[,N]      default: 1 and all cores\n"
    "  --kernels NAME[,..]  default: the best of this processor\n"
    "  --cpu-time           processor time instead of wall time (hides waiting)\n";

constexpr int kSamples = 5;
constexpr double kSampleSeconds = 0.015;
constexpr double kColdBytes = 96e6;

struct Shape {
  const char* name;
  int64_t out, in;
};

/// One shape's weight in as many copies as kColdBytes holds.
class Weights {
 public:
  Weights(HostDevice& device, LinearOps& ops, WeightKind kind, const Shape& shape) {
    const uint64_t bytes =
        packed_weight_bytes(device.traits(), weight_dtype(kind), static_cast<uint64_t>(shape.out),
                            static_cast<uint64_t>(shape.in));
    const auto copies = static_cast<uint64_t>(kColdBytes / static_cast<double>(bytes)) + 1;
    arena_ = device.allocate(copies * bytes, "weights");
    std::vector<float> values(static_cast<size_t>(shape.out * shape.in));
    Random draw(1, 2);
    for (float& value : values) value = draw.uniform_f32() - 0.5f;
    for (uint64_t copy = 0; copy < copies; ++copy) {
      handles_.push_back({kind, &arena_, copy * bytes, shape.out, shape.in, nullptr});
      ops.pack_weight(handles_.back(), DType::kF32, values.data(), 0, shape.out);
    }
  }
  const WeightHandle& next() { return handles_[++used_ % handles_.size()]; }

 private:
  Buffer arena_;
  std::vector<WeightHandle> handles_;
  size_t used_ = 0;
};

class Int8Bench {
 public:
  Int8Bench(const BenchArguments& arguments, KernelSet kernels, int threads)
      : arguments_(arguments),
        threads_(threads),
        device_(HostDevice::create({.num_threads = threads, .kernels = kernels})),
        stream_(device_->create_stream()),
        ops_(device_->linear_ops(*stream_)),
        meter_(threads, {}, arguments.clock),
        bandwidth_(std::max(meter_.read_bytes_per_second(), meter_.read_bytes_per_second())) {}

  void all() {
    for (const Shape& shape : {Shape{"q/o", 576, 576}, Shape{"gate/up", 1536, 576},
                               Shape{"down", 576, 1536}, Shape{"head", 49152, 576}}) {
      Weights int8(*device_, *ops_, WeightKind::kInt8, shape);
      Weights f32(*device_, *ops_, WeightKind::kF32, shape);
      for (const int64_t rows : {1, 8, 64, 256}) line(shape, rows, int8, f32);
    }
  }

 private:
  double now() const { return bench_seconds(arguments_.clock, threads_); }
  double seconds_per_call(const std::function<void()>& call) {
    const double start = now();
    int calls = 0;
    do {
      call();
      ++calls;
    } while (now() - start < kSampleSeconds);
    return (now() - start) / calls;
  }

  void line(const Shape& shape, int64_t rows, Weights& int8, Weights& f32) {
    const std::string name = cat(shape.name, " M=", rows);
    if (!arguments_.wants(name)) return;
    Buffer x = device_->allocate(static_cast<size_t>(rows * shape.in) * sizeof(float), "rows");
    Buffer y = device_->allocate(static_cast<size_t>(rows * shape.out) * sizeof(float), "results");
    Random draw(3, 4);
    for (int64_t i = 0; i < rows * shape.in; ++i) x.at<float>(0)[i] = draw.uniform_f32() - 0.5f;
    const auto run = [&](Weights& weights) {
      ops_->forward({x.at<float>(0), rows, shape.in, shape.in}, weights.next(), nullptr,
                    {y.at<float>(0), rows, shape.out, shape.out}, Write::kSet);
    };
    const Instruction instruction = product_instruction(device_->kernels(), WeightKind::kInt8);
    const double work = 2.0 * static_cast<double>(rows * shape.in * shape.out);
    std::vector<double> seconds, ratios, fractions;
    for (int i = 0; i < kSamples; ++i) {
      const double peak = meter_.operations_per_second(instruction);
      seconds.push_back(seconds_per_call([&] { run(int8); }));
      ratios.push_back(seconds_per_call([&] { run(f32); }) / seconds.back());
      fractions.push_back(work / seconds.back() / peak);
    }
    const double middle = spread_of(seconds).median;
    const double weight_rate = static_cast<double>(shape.in * shape.out) / middle;
    std::printf(
        "%-14s %d threads %8.3f ms %7.1f Gop/s %5.2f x f32, %5.1f %% of the %s peak, "
        "weights %5.1f GB/s (%3.0f %% of memory)\n",
        name.c_str(), threads_, middle * 1e3, work / middle * 1e-9, spread_of(ratios).median,
        100 * spread_of(fractions).median, instruction_name(instruction).c_str(),
        weight_rate * 1e-9, 100 * weight_rate / bandwidth_);
    std::fflush(stdout);
  }

  const BenchArguments& arguments_;
  const int threads_;
  std::unique_ptr<HostDevice> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<LinearOps> ops_;
  PeakMeter meter_;
  const double bandwidth_;
};

int bench(int argc, char** argv) {
  BenchArguments arguments = parse_arguments(argc, argv, kHelp, {});
  if (arguments.kernels.empty()) arguments.kernels = {best_kernel_set()};
  for (const int threads : arguments.threads) {
    for (const KernelSet kernels : arguments.kernels) Int8Bench(arguments, kernels, threads).all();
  }
  return 0;
}

}  // namespace
}  // namespace galley::bench

int main(int argc, char** argv) {
  return galley::bench::run_program("bench_int8", galley::bench::bench, argc, argv);
}
