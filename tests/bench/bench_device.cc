// Speed of the host device's operations at the shapes of a 135M model (hidden 576, ffn 1536, vocab
// 49152): one line per case, medians of short runs, fraction of the f32 multiply-add peak that was
// measured beside the case. Usage: bench_device [--cpu-time] [kernels [filter [threads ...]]]
// --cpu-time counts the process's processor time per thread instead of wall time: for a machine
// that others load; with several threads it hides waiting.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "engine/core/random.h"
#include "engine/device/host/host_device.h"
#include "engine/device/host/thread_pool.h"
#include "tests/bench/fma_peak.h"
#include "tests/bench/timing.h"

namespace galley::bench {
namespace {

using namespace galley::device;  // NOLINT: a benchmark of that module alone

constexpr int kSamples = 7;
constexpr double kSampleSeconds = 0.02;

struct Bench {
  HostDevice& device;
  OpSet ops;
  int threads;
  std::string filter;
  bool cpu_time;
  ThreadPool pool;  // for the peak only

  double now() const {
    return cpu_time ? seconds_of(CLOCK_PROCESS_CPUTIME_ID) / threads : seconds_of(CLOCK_MONOTONIC);
  }

  /// Floating-point operations per second of the multiply-add loop on all threads, one short run.
  double peak() {
    const bool wide = device.kernels() == KernelSet::kAvx512;
    double flops = 0;
    const double begin = now();
    pool.run([&](int thread) {
      const double done = wide ? run_fma_avx512(30000) : run_fma_avx2(60000);
      if (thread == 0) flops = done;
    });
    return flops * threads / (now() - begin);
  }

  /// Samples of the case and of the peak take turns, so that both see the same load.
  void line(const std::string& name, double flops, double bytes,
            const std::function<void()>& call) {
    if (name.find(filter) == std::string::npos) return;
    call();
    const double start = now();
    call();
    const int repeats =
        std::clamp(static_cast<int>(kSampleSeconds / (now() - start + 1e-9)), 1, 10000);
    std::vector<double> seconds, fractions, peaks;
    for (int i = 0; i < kSamples; ++i) {
      const double before = peak();
      const double begin = now();
      for (int j = 0; j < repeats; ++j) call();
      seconds.push_back((now() - begin) / repeats);
      const double after = peak();
      peaks.push_back(std::max(before, after));
      fractions.push_back(flops / seconds.back() / peaks.back());
    }
    std::printf("%-40s threads %d %9.3f ms", name.c_str(), threads, median(seconds) * 1e3);
    if (flops > 0) {
      std::printf(" %7.1f GF %5.1f %% of the FMA peak (%.0f GF)", flops / median(seconds) * 1e-9,
                  100 * median(fractions), median(peaks) * 1e-9);
    }
    if (bytes > 0) std::printf(" %6.1f GB/s", bytes / median(seconds) * 1e-9);
    std::printf("\n");
    std::fflush(stdout);
  }

  Matrix matrix(const Buffer& buffer, int64_t rows, int64_t cols, int64_t stride = 0) {
    return {buffer.at<float>(0), rows, cols, stride == 0 ? cols : stride};
  }
  Buffer floats(int64_t count) {
    Buffer buffer = device.allocate(static_cast<size_t>(count) * sizeof(float), "bench");
    Random draw(1, 2);
    float* values = buffer.at<float>(0);
    for (int64_t i = 0; i < count; ++i)
      values[i] = i < 4096 ? draw.uniform_f32() - 0.5f : values[i % 4096];
    return buffer;
  }

  void linears();
  void low_rank();
  void attention();
  void rows();
};

void Bench::linears() {
  struct Shape {
    const char* name;
    int64_t out, in, copies;
  };
  // Copies of a weight in turn, so that it comes from memory as in a model.
  for (const Shape& s : {Shape{"q/o", 576, 576, 24}, Shape{"gate/up", 1536, 576, 12},
                         Shape{"down", 576, 1536, 12}, Shape{"head", 49152, 576, 1}}) {
    for (const WeightKind kind : {WeightKind::kF32, WeightKind::kBf16}) {
      const DType dtype = kind == WeightKind::kF32 ? DType::kF32 : DType::kBf16;
      const uint64_t bytes = packed_weight_bytes(
          device.traits(), dtype, static_cast<uint64_t>(s.out), static_cast<uint64_t>(s.in));
      Buffer arena = device.allocate(bytes * static_cast<uint64_t>(s.copies), "weights");
      const Buffer plain = floats(s.out * s.in);
      std::vector<WeightHandle> weights;
      for (int64_t i = 0; i < s.copies; ++i) {
        weights.push_back({kind, &arena, bytes * static_cast<uint64_t>(i), s.out, s.in, nullptr});
        ops.linear->pack_weight(weights.back(), DType::kF32, plain.data(), 0, s.out);
      }
      const std::string kind_name = kind == WeightKind::kF32 ? " f32" : " bf16";
      line(std::string("pack_weight ") + s.name + kind_name + " from F32", 0,
           4.0 * static_cast<double>(s.out * s.in),
           [&] { ops.linear->pack_weight(weights[0], DType::kF32, plain.data(), 0, s.out); });
      line(std::string("pack_weight ") + s.name + kind_name + " from BF16", 0,
           2.0 * static_cast<double>(s.out * s.in),
           [&] { ops.linear->pack_weight(weights[0], DType::kBf16, plain.data(), 0, s.out); });
      const Buffer x = floats(1024 * (s.in + 16)), y = floats(1024 * (s.out + 16));
      for (const int64_t m : {1, 8, 64, 512, 1024}) {
        if (s.copies == 1 && m == 1024) continue;
        const double flops = 2.0 * static_cast<double>(m * s.out * s.in);
        const Matrix xm = matrix(x, m, s.in, s.in + 16), ym = matrix(y, m, s.out, s.out + 16);
        const std::string shape = std::string(s.name) +
                                  (kind == WeightKind::kF32 ? " f32" : " bf16") +
                                  " M=" + std::to_string(m);
        size_t next = 0;
        line("forward " + shape, flops, static_cast<double>(bytes), [&] {
          ops.linear->forward(xm, weights[next++ % weights.size()], nullptr, ym, Write::kSet);
        });
        if (m < 64) continue;
        line("backward_input " + shape, flops, 0, [&] {
          ops.linear->backward_input(ym, weights[next++ % weights.size()], nullptr, xm,
                                     Write::kSet);
        });
      }
    }
  }
}

void Bench::low_rank() {
  const int64_t tokens = 1024, in = 576, out = 1536, rank = 16;
  const Buffer x = floats(tokens * in), dy = floats(tokens * out), xa = floats(tokens * rank);
  const Buffer a = floats(rank * in), b = floats(out * rank), da = floats(rank * in),
               db = floats(out * rank);
  const double down = 2.0 * tokens * in * rank, up = 2.0 * tokens * out * rank;
  const Matrix xam = matrix(xa, tokens, rank);
  line("lora xa = x A^T 1024x576 r16", down, 0, [&] {
    ops.linear->matmul_nt(matrix(x, tokens, in), matrix(a, rank, in), 1, xam, Write::kSet);
  });
  line("lora dxa = dy B 1024x1536 r16", up, 0, [&] {
    ops.linear->matmul_nn(matrix(dy, tokens, out), matrix(b, out, rank), 2, xam, Write::kSet);
  });
  line("lora dB = dy^T xa 1024x1536 r16", up, 0, [&] {
    ops.linear->matmul_tn(matrix(dy, tokens, out), xam, 2, matrix(db, out, rank), Write::kAdd);
  });
  line("lora dA = dxa^T x 1024x576 r16", down, 0, [&] {
    ops.linear->matmul_tn(xam, matrix(x, tokens, in), 1, matrix(da, rank, in), Write::kAdd);
  });
}

void Bench::attention() {
  const int64_t s = 512, batch = 2, heads = 9, kv = 3, d = 64, rows = s * batch;
  const AttentionShape shape = {heads, kv, d, 0.125f};
  const std::vector<AttentionItem> items = {{0, s, 0, s}, {s, s, s, s}};
  const Buffer q = floats(rows * heads * d), k = floats(rows * kv * d), v = floats(rows * kv * d);
  const Buffer o = floats(rows * heads * d), lse = floats(rows * heads),
               d_o = floats(rows * heads * d);
  const Buffer dq = floats(rows * heads * d), dk = floats(rows * kv * d),
               dv = floats(rows * kv * d);
  const auto wide = [&](const Buffer& b) { return matrix(b, rows, heads * d); };
  const auto narrow = [&](const Buffer& b) { return matrix(b, rows, kv * d); };
  const double pairs = static_cast<double>(batch * heads * s * (s + 1) / 2);
  line("attention forward 2 x S=512", 4.0 * pairs * d, 0, [&] {
    ops.attention->forward(shape, items, wide(q), narrow(k), narrow(v), wide(o), lse.at<float>(0));
  });
  line("attention backward 2 x S=512", 10.0 * pairs * d, 0, [&] {
    ops.attention->backward(shape, items, wide(q), narrow(k), narrow(v), wide(o), lse.at<float>(0),
                            wide(d_o), wide(dq), narrow(dk), narrow(dv));
  });
  const std::vector<AttentionItem> one = {{0, s, 0, s}};
  line("attention backward 1 x S=512", 5.0 * pairs * d, 0, [&] {
    ops.attention->backward(shape, one, wide(q), narrow(k), narrow(v), wide(o), lse.at<float>(0),
                            wide(d_o), wide(dq), narrow(dk), narrow(dv));
  });
  std::vector<AttentionItem> decodes;
  for (int64_t i = 0; i < 16; ++i) decodes.push_back({i, 1, i * 64, 64});
  line("attention decode 16 x 64 keys", 4.0 * 16 * 64 * heads * d, 0, [&] {
    ops.attention->forward(shape, decodes, wide(q), narrow(k), narrow(v), wide(o), nullptr);
  });
  const std::vector<AttentionItem> decode = {{0, 1, 0, 1024}};
  line("attention decode 1 x 1024 keys", 4.0 * 1024 * heads * d, 2.0 * 4 * 1024 * kv * d, [&] {
    ops.attention->forward(shape, decode, wide(q), narrow(k), narrow(v), wide(o), nullptr);
  });
}

void Bench::rows() {
  const int64_t tokens = 1024, h = 576, ffn = 1536, vocab = 49152, logit_rows = 64;
  const double f32 = sizeof(float);
  const Buffer x = floats(tokens * ffn), y = floats(tokens * ffn), z = floats(tokens * ffn);
  const Buffer weight = floats(h), rstd = floats(tokens);
  const auto hidden = [&](const Buffer& b) { return matrix(b, tokens, h); };
  const auto wide = [&](const Buffer& b) { return matrix(b, tokens, ffn); };
  line("rmsnorm forward 1024x576", 0, 2 * f32 * tokens * h, [&] {
    ops.token->rmsnorm_forward(hidden(x), weight.at<float>(0), 1e-5f, hidden(y), rstd.at<float>(0));
  });
  line("rmsnorm backward 1024x576", 0, 3 * f32 * tokens * h, [&] {
    ops.token->rmsnorm_backward(hidden(z), hidden(x), weight.at<float>(0), rstd.at<float>(0),
                                hidden(y), Write::kSet);
  });
  line("swiglu forward 1024x1536", 0, 3 * f32 * tokens * ffn,
       [&] { ops.elementwise->swiglu_forward(wide(x), wide(y), wide(z)); });
  line("swiglu backward 1024x1536", 0, 5 * f32 * tokens * ffn,
       [&] { ops.elementwise->swiglu_backward(wide(x), wide(y), wide(z), wide(x), wide(y)); });
  const std::vector<uint64_t> ids(static_cast<size_t>(tokens), 7);
  line("dropout 1024x576", 0, 2 * f32 * tokens * h,
       [&] { ops.token->dropout(hidden(x), 0.1f, 1, 2, ids.data(), hidden(y), Write::kSet); });
  const Buffer logits = floats(logit_rows * vocab);
  std::vector<double> losses(static_cast<size_t>(logit_rows));
  const std::vector<int32_t> targets(static_cast<size_t>(logit_rows), 5);
  line("cross_entropy 64x49152", 0, 3 * f32 * logit_rows * vocab, [&] {
    ops.loss->cross_entropy(matrix(logits, logit_rows, vocab), targets.data(), 1.0f, losses.data());
  });
  const int64_t count = 4'900'000;
  const Buffer w = floats(count), g = floats(count), m = floats(count), v = floats(count);
  std::memset(v.data(), 0, v.bytes());
  AdamWStep step;
  step.learning_rate = 1e-4;
  line("adamw 4.9M", 0, 7 * f32 * count, [&] {
    ops.optimizer->adamw(w.at<float>(0), g.at<float>(0), m.at<float>(0), v.at<float>(0), count,
                         step);
  });
  line("sum_of_squares 4.9M", 0, f32 * count,
       [&] { ops.optimizer->sum_of_squares(g.at<float>(0), count); });
}

}  // namespace
}  // namespace galley::bench

int main(int argc, char** argv) {
  using namespace galley::device;  // NOLINT
  std::vector<std::string> words(argv + 1, argv + argc);
  const bool cpu_time = !words.empty() && words[0] == "--cpu-time";
  if (cpu_time) words.erase(words.begin());
  HostDeviceOptions options;
  options.kernels = kernel_set_from_name(words.empty() ? "auto" : words[0]);
  std::vector<int> counts;
  for (size_t i = 2; i < words.size(); ++i) counts.push_back(std::stoi(words[i]));
  if (counts.empty()) counts = {1, 2};
  for (const int threads : counts) {
    options.num_threads = threads;
    const auto device = HostDevice::create(options);
    const auto stream = device->create_stream();
    galley::bench::Bench bench = {*device,  device->all_ops(*stream),
                                  threads,  words.size() > 1 ? words[1] : "",
                                  cpu_time, {threads, {}}};
    std::printf("%s\n", device->identity().name.c_str());
    bench.linears();
    bench.low_rank();
    bench.attention();
    bench.rows();
  }
  return 0;
}
