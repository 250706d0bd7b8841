// Memory, copies, products and elementwise operations of the CUDA device against the host device.
//
// Prints one line per check: its error beside what is allowed, and GB/s or TFLOP/s where that says
// something. Exit 0: all within bounds; 1: something is wrong; 69: no GPU can be used here, and
// why.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "engine/core/random.h"
#include "engine/core/strings.h"
#include "engine/device/cuda_library.h"
#include "engine/device/host/host_device.h"

namespace galley::device {
namespace {

constexpr double kF32Bound = 2e-5;   // of the largest value: sums in another order
constexpr double kBf16Bound = 1e-2;  // x is rounded to bf16 before it meets bf16 weights
constexpr uint64_t kMiB = uint64_t{1} << 20;

/// One device with what a check needs of it.
struct Side {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<LinearOps> linear;
  std::unique_ptr<ElementwiseOps> elementwise;

  explicit Side(std::unique_ptr<Device> opened)
      : device(std::move(opened)),
        stream(device->create_stream()),
        linear(device->linear_ops(*stream)),
        elementwise(device->elementwise_ops(*stream)) {}

  Buffer upload(const void* host, size_t bytes) {
    Buffer buffer = device->allocate(bytes, "gpu check");
    device->copy_to_device(*stream, buffer.data(), host, bytes);
    device->synchronize(*stream);
    return buffer;
  }
  std::vector<float> download(const Buffer& buffer) {
    std::vector<float> values(buffer.bytes() / sizeof(float));
    device->copy_to_host(*stream, values.data(), buffer.data(), buffer.bytes());
    device->synchronize(*stream);
    return values;
  }
  /// Seconds of one call, the best of five, after one that is not counted.
  double time(const std::function<void()>& call) {
    double best = 1e30;
    for (int i = 0; i < 6; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      call();
      device->synchronize(*stream);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (i > 0) best = std::min(best, took.count());
    }
    return best;
  }
};

/// A host matrix whose rows are `gap` floats apart from one another.
struct Values {
  int64_t rows, cols, stride;
  std::vector<float> data;

  Values(int64_t num_rows, int64_t num_cols, uint64_t seed, int64_t gap = 0)
      : rows(num_rows), cols(num_cols), stride(num_cols + gap) {
    Random draw(seed, random_stream("gpu check"));
    data.resize(static_cast<size_t>(rows * stride));
    for (float& value : data) value = 2 * draw.uniform_f32() - 1;
  }
  size_t bytes() const { return data.size() * sizeof(float); }
  Matrix on(const Buffer& buffer) const { return {buffer.at<float>(0), rows, cols, stride}; }
};

class Check {
 public:
  Check(Side& host, Side& cuda) : host_(host), cuda_(cuda) {}

  void line(const std::string& name, double error, double bound, const std::string& figures = "") {
    const bool good = error <= bound;  // false for NaN
    std::printf("%-44s error %-9.2e allowed %-9.2e %-16s %s\n", name.c_str(), error, bound,
                figures.c_str(), good ? "ok" : "WRONG");
    if (!good) ++num_wrong_;
  }

  /// Runs `work` on both sides with fresh copies of the inputs; the last input is compared after.
  using Work = std::function<void(Side&, const std::vector<Matrix>&)>;
  void compare(const std::string& name, const std::vector<Values>& inputs, double bound,
               double flops, const Work& work) {
    const auto run = [&](Side& side, double* seconds) {
      std::vector<Buffer> buffers;
      std::vector<Matrix> matrices;
      for (const Values& input : inputs) {
        buffers.push_back(side.upload(input.data.data(), input.bytes()));
        matrices.push_back(input.on(buffers.back()));
      }
      work(side, matrices);
      const std::vector<float> result = side.download(buffers.back());
      if (seconds != nullptr) *seconds = side.time([&] { work(side, matrices); });
      return result;
    };
    double seconds = 0;
    const std::vector<float> expected = run(host_, nullptr);
    const std::vector<float> found = run(cuda_, &seconds);
    line(name, relative_error(expected, found), bound,
         flops > 0 ? format("%.2f TFLOP/s", flops / seconds * 1e-12) : "");
  }

  int num_wrong() const { return num_wrong_; }

 private:
  static double relative_error(const std::vector<float>& expected,
                               const std::vector<float>& found) {
    double largest = 1e-30, error = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, static_cast<double>(std::abs(expected[i])));
      const double difference = std::abs(static_cast<double>(expected[i]) - found[i]);
      if (!(difference <= error)) error = difference;  // keeps a NaN
    }
    return error / largest;
  }

  Side& host_;
  Side& cuda_;
  int num_wrong_ = 0;
};

void check_memory(Side& cuda, Check* check) {
  Device& device = *cuda.device;
  const size_t before = device.allocated_bytes();
  {
    const Buffer buffer = device.allocate(64 * kMiB, "zeros");
    const std::vector<float> values = cuda.download(buffer);
    const auto wrong = std::count_if(values.begin(), values.end(), [](float v) { return v != 0; });
    check->line("allocated memory is zero", static_cast<double>(wrong), 0);
    check->line("allocated bytes are counted",
                static_cast<double>(device.allocated_bytes() - before - buffer.bytes()), 0);
  }
  check->line("freed bytes are counted", static_cast<double>(device.allocated_bytes() - before), 0);
  double refused = 1;
  try {
    device.allocate(device.traits().capacity_bytes + 1, "more than the capacity");
  } catch (const Error& error) {
    refused = error.reason() == Reason::kOutOfMemory ? 0 : 1;
  }
  check->line("more than the capacity is refused", refused, 0);
}

void check_copies(Side& cuda, Check* check) {
  const Values source(1, 64 << 20, 1);
  const Buffer first = cuda.device->allocate(source.bytes(), "copy");
  const Buffer second = cuda.device->allocate(source.bytes(), "copy");
  std::vector<float> back(source.data.size());
  Device& device = *cuda.device;
  const auto rate = [&](double copies, double seconds) {
    return format("%.1f GB/s", copies * static_cast<double>(source.bytes()) / seconds * 1e-9);
  };
  const auto equal = [&](const Buffer& buffer) {
    const std::vector<float> now = cuda.download(buffer);
    return std::memcmp(now.data(), source.data.data(), source.bytes()) == 0 ? 0.0 : 1.0;
  };
  const double up = cuda.time([&] {
    device.copy_to_device(*cuda.stream, first.data(), source.data.data(), source.bytes());
  });
  check->line("copy to the device", equal(first), 0, rate(1, up));
  const double inside = cuda.time(
      [&] { device.copy_on_device(*cuda.stream, second.data(), first.data(), source.bytes()); });
  check->line("copy on the device (read + write)", equal(second), 0, rate(2, inside));
  const double down = cuda.time(
      [&] { device.copy_to_host(*cuda.stream, back.data(), second.data(), source.bytes()); });
  check->line("copy to the host", back == source.data ? 0 : 1, 0, rate(1, down));
  device.fill_zero(*cuda.stream, first.data(), first.bytes());
  const std::vector<float> zeros = cuda.download(first);
  check->line("fill with zero",
              static_cast<double>(
                  std::count_if(zeros.begin(), zeros.end(), [](float v) { return v != 0; })),
              0);
}

/// Work on one stream that waits for an event of another sees its result.
void check_events(Side& cuda, Check* check) {
  Device& device = *cuda.device;
  const Values source(1, 16 << 20, 2);
  const Buffer first = cuda.device->allocate(source.bytes(), "event");
  const Buffer second = cuda.device->allocate(source.bytes(), "event");
  const std::unique_ptr<Stream> other = device.create_stream();
  const std::unique_ptr<Event> event = device.create_event();
  device.copy_to_device(*cuda.stream, first.data(), source.data.data(), source.bytes());
  device.record(*event, *cuda.stream);
  device.wait(*other, *event);
  device.copy_on_device(*other, second.data(), first.data(), source.bytes());
  device.synchronize(*other);
  check->line("a stream waits for an event", cuda.download(second) == source.data ? 0 : 1, 0);
}

struct LinearCase {
  int64_t tokens, in, out, lora_rank, gap;
};

std::vector<char> stored_weight(const LinearCase& c, DType dtype) {
  const Values values(c.out, c.in, 3);
  if (dtype == DType::kF32) {
    std::vector<char> bytes(values.bytes());
    std::memcpy(bytes.data(), values.data.data(), bytes.size());
    return bytes;
  }
  std::vector<char> bytes(values.data.size() * 2);
  for (size_t i = 0; i < values.data.size(); ++i) {
    reinterpret_cast<uint16_t*>(bytes.data())[i] = f32_to_bf16(values.data[i]);
  }
  return bytes;
}

/// The weight packed on a side; lives as long as its arena.
struct Packed {
  Buffer arena;
  Buffer bias;
  WeightHandle handle;
};

std::unique_ptr<Packed> pack(Side& side, const LinearCase& c, DType dtype, const Values& bias) {
  auto packed = std::make_unique<Packed>();
  packed->arena = side.device->allocate(
      packed_weight_bytes(side.device->traits(), dtype, static_cast<uint64_t>(c.out),
                          static_cast<uint64_t>(c.in)),
      "weight");
  packed->bias = side.upload(bias.data.data(), bias.bytes());
  packed->handle = {dtype == DType::kF32 ? WeightKind::kF32 : WeightKind::kBf16,
                    &packed->arena,
                    0,
                    c.out,
                    c.in,
                    packed->bias.at<float>(0)};
  side.linear->pack_weight(packed->handle, dtype, stored_weight(c, dtype).data(), 0, c.out);
  return packed;
}

void check_linear(Side& host, Side& cuda, const LinearCase& c, DType dtype, Check* check) {
  const Values x(c.tokens, c.in, 4, c.gap), dy(c.tokens, c.out, 5, c.gap), bias(1, c.out, 6);
  const Values xa(c.tokens, c.lora_rank, 7), a(c.lora_rank, c.in, 8), b(c.out, c.lora_rank, 9);
  const Values y(c.tokens, c.out, 10, c.gap), dx(c.tokens, c.in, 11, c.gap);
  const std::unique_ptr<Packed> on_host = pack(host, c, dtype, bias);
  const std::unique_ptr<Packed> on_cuda = pack(cuda, c, dtype, bias);
  const double flops = 2.0 * static_cast<double>(c.tokens * c.in * c.out);
  const double bound = dtype == DType::kF32 ? kF32Bound : kBf16Bound;
  const std::string shape = cat(dtype_name(dtype), " ", c.tokens, " x ", c.in, " x ", c.out);
  const auto weight_of = [&](Side& side) -> const WeightHandle& {
    return &side == &host ? on_host->handle : on_cuda->handle;
  };
  check->compare("linear forward " + shape, {x, xa, b, y}, bound, flops,
                 [&](Side& side, const std::vector<Matrix>& m) {
                   LowRank low_rank;
                   low_rank.xa = m[1];
                   low_rank.b = m[2];
                   low_rank.scale = 2.0f;
                   side.linear->forward(m[0], weight_of(side), &low_rank, m[3], Write::kSet);
                 });
  check->compare("linear backward " + shape, {dy, xa, a, dx}, bound, flops,
                 [&](Side& side, const std::vector<Matrix>& m) {
                   LowRank low_rank;
                   low_rank.xa = m[1];
                   low_rank.a = m[2];
                   side.linear->backward_input(m[0], weight_of(side), &low_rank, m[3], Write::kSet);
                 });
}

void check_products(const LinearCase& c, Check* check) {
  const double flops = 2.0 * static_cast<double>(c.tokens * c.in * c.out);
  const std::string shape = cat(c.tokens, " x ", c.in, " x ", c.out);
  const Values left(c.tokens, c.in, 12, c.gap), left_t(c.in, c.tokens, 13, c.gap);
  const Values right(c.in, c.out, 14, c.gap), right_t(c.out, c.in, 15, c.gap);
  const Values result(c.tokens, c.out, 16, c.gap);
  check->compare("product nt " + shape, {left, right_t, result}, kF32Bound, flops,
                 [](Side& side, const std::vector<Matrix>& m) {
                   side.linear->matmul_nt(m[0], m[1], 0.5f, m[2], Write::kSet);
                 });
  check->compare("product nn " + shape, {left, right, result}, kF32Bound, flops,
                 [](Side& side, const std::vector<Matrix>& m) {
                   side.linear->matmul_nn(m[0], m[1], 0.5f, m[2], Write::kSet);
                 });
  check->compare("product tn " + shape, {left_t, right, result}, kF32Bound, flops,
                 [](Side& side, const std::vector<Matrix>& m) {
                   side.linear->matmul_tn(m[0], m[1], 0.5f, m[2], Write::kSet);
                 });
  check->compare("product nt, added " + shape, {left, right_t, result}, kF32Bound, 0,
                 [](Side& side, const std::vector<Matrix>& m) {
                   side.linear->matmul_nt(m[0], m[1], 0.5f, m[2], Write::kSet);
                   side.linear->matmul_nt(m[0], m[1], -1.5f, m[2], Write::kAdd);
                 });
}

void check_elementwise(int64_t rows, int64_t cols, int64_t gap, Check* check) {
  const std::string shape = cat(rows, " x ", cols);
  const Values gate(rows, cols, 17, gap), up(rows, cols, 18, gap), dy(rows, cols, 19, gap);
  const Values result(rows, cols, 20, gap), second(rows, cols, 21, gap);
  check->compare("swiglu forward " + shape, {gate, up, result}, kF32Bound, 0,
                 [](Side& side, const std::vector<Matrix>& m) {
                   side.elementwise->swiglu_forward(m[0], m[1], m[2]);
                 });
  check->compare("swiglu backward, d_gate " + shape, {gate, up, dy, second, result}, kF32Bound, 0,
                 [](Side& side, const std::vector<Matrix>& m) {
                   side.elementwise->swiglu_backward(m[0], m[1], m[2], m[4], m[3]);
                 });
  check->compare("swiglu backward, d_up " + shape, {gate, up, dy, second, result}, kF32Bound, 0,
                 [](Side& side, const std::vector<Matrix>& m) {
                   side.elementwise->swiglu_backward(m[0], m[1], m[2], m[3], m[4]);
                 });
  check->compare(
      "add " + shape, {gate, up}, kF32Bound, 0,
      [](Side& side, const std::vector<Matrix>& m) { side.elementwise->add(m[0], m[1]); });
}

/// One member: NCCL starts, takes every kind of order, and leaves the values of one alone.
void check_communicator(Side& cuda, Check* check) {
  const auto transports = make_thread_transports(1, 4096);
  std::unique_ptr<Communicator> group;
  try {
    group = make_cuda_communicator(*cuda.stream, transports[0].get(), {0});
  } catch (const Error& error) {
    if (error.reason() != Reason::kNoDevice) throw;
    std::printf("NCCL is not checked: %s\n", error.what());
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  while (!group->ready()) {
    if (std::chrono::steady_clock::now() - begin > std::chrono::minutes(1)) {
      check->line("NCCL: start within a minute", 1, 0);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const Values values(1, 100'003, 17);
  const Buffer data = cuda.upload(values.data.data(), values.bytes());
  const std::vector<int64_t> counts = {values.cols};
  group->all_reduce(data.at<float>(0), values.cols);
  group->reduce_scatter(data.at<float>(0), counts);
  group->all_gather(data.at<float>(0), counts);
  group->finish_sends();
  const bool same = cuda.download(data) == values.data;
  check->line("NCCL: sums of one member", same ? 0 : 1, 0);
  double number = 3;
  group->all_reduce_host({&number, 1});
  check->line("NCCL: host sums of one member", std::abs(number - 3), 0);
}

int run() {
  const CudaReport report = inspect_cuda();
  if (!report.usable) {
    std::fprintf(stderr, "gpu_check: no GPU can be used here: %s\n", report.reason.c_str());
    return reason_traits(Reason::kNoDevice).exit_code;
  }
  for (const CudaCard& card : report.cards) {
    std::printf("GPU %d: %s, %.1f GiB, capability %s, %s\n", card.ordinal, card.name.c_str(),
                static_cast<double>(card.memory_bytes) / (1024.0 * static_cast<double>(kMiB)),
                card.capability.c_str(), card.uuid.c_str());
  }
  Side host(HostDevice::create({.capacity_bytes = 8192 * kMiB, .num_threads = 2}));
  Side cuda(open_cuda_device(report.cards.front().ordinal, 8192 * kMiB));
  Check check(host, cuda);
  check_memory(cuda, &check);
  check_copies(cuda, &check);
  check_events(cuda, &check);
  // The shapes of a small and of a large model's projections, odd sizes, and one row.
  for (const LinearCase& c : std::vector<LinearCase>{{512, 576, 1536, 16, 0},
                                                     {512, 4096, 4096, 16, 0},
                                                     {37, 123, 61, 3, 5},
                                                     {1, 576, 576, 8, 0}}) {
    check_linear(host, cuda, c, DType::kF32, &check);
    check_linear(host, cuda, c, DType::kBf16, &check);
    check_products(c, &check);
  }
  check_elementwise(2048, 1536, 0, &check);
  check_elementwise(33, 129, 7, &check);
  check_communicator(cuda, &check);
  std::printf("gpu_check: %s\n", check.num_wrong() == 0
                                     ? "all within bounds"
                                     : cat(check.num_wrong(), " checks are WRONG").c_str());
  return check.num_wrong() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace galley::device

int main() {
  try {
    return galley::device::run();
  } catch (const galley::Error& error) {
    std::fprintf(stderr, "gpu_check: %s\n", error.what());
    return error.exit_code();
  }
}
