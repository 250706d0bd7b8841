// Speed of the host device's operations at the shapes of a 135M model (hidden 576, ffn 1536, vocab
// 49152): one line per case, the median of short runs, beside what limits it: the peak of the
// instruction that its kernel uses, or memory, both read before and after each sample.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/random.h"
#include "engine/core/strings.h"
#include "engine/device/profiled_ops.h"
#include "tests/bench/bench_program.h"

namespace galley::bench {
namespace {

using namespace galley::device;  // NOLINT: a benchmark of that module alone

constexpr const char* kHelp =
    "bench_device [FLAG...]: operations of the host device, at the shapes of a 135M model\n"
    "  --filter TEXT        only cases whose name has TEXT, e.g. \"gate/up f32 M=512\"\n"
    "  --threads N[,N]      default: 1 and all cores\n"
    "  --kernels NAME[,..]  default: the best of this processor, and what rounds inputs where it\n"
    "                       differs (products with bf16 weights); \"all\": every set it has\n"
    "  --json               JSON lines\n"
    "  --cpu-time           processor time instead of wall time (hides waiting)\n";

// Operands may be rounded, for kernels that do; others are exact all the same.
constexpr AttentionShape kHeads = {.num_heads = 9,
                                   .num_kv_heads = 3,
                                   .head_dim = 64,
                                   .scale = 0.125f,
                                   .operands = ProductOperands::kMayRound};
constexpr int kSamples = 5;
constexpr double kSampleSeconds = 0.015;
constexpr double kPeakSeconds = 0.004;
constexpr double kColdBytes = 96e6;  // of copies of a weight in turn: more than caches hold

class DeviceBench {
 public:
  DeviceBench(const BenchArguments& arguments, const Reporter& reporter, KernelSet kernels,
              int threads)
      : arguments_(arguments),
        reporter_(reporter),
        threads_(threads),
        device_(HostDevice::create({.num_threads = threads, .kernels = kernels})),
        stream_(device_->create_stream()),
        ops_(device_->all_ops(*stream_)),
        meter_(threads, {}, arguments.clock),
        bandwidth_(std::max(meter_.read_bytes_per_second(), meter_.read_bytes_per_second())) {}

  double bandwidth() const { return bandwidth_; }

  /// Kernels that round differ from the best ones in these alone: products with bf16 weights,
  /// attention.
  void all() {
    const bool rounds = kernel_set_rounds(device_->kernels());
    for (const WeightKind kind : {WeightKind::kF32, WeightKind::kBf16}) {
      if (rounds && kind == WeightKind::kF32) continue;
      weight_kind_ = kind;
      for (const Shape& shape : {Shape{"q/o", 576, 576}, Shape{"gate/up", 1536, 576},
                                 Shape{"down", 576, 1536}, Shape{"head", 49152, 576}}) {
        linear(shape);
      }
    }
    attention();
    if (rounds) return;
    adapter();
    decode();
    rows();
    optimizer();
  }

 private:
  struct Shape {
    const char* name;
    int64_t out, in;
  };

  double now() const { return bench_seconds(arguments_.clock, threads_); }

  /// Samples of the case and of the peaks take turns, so that both see the same load.
  void line(const std::string& name, const OpWork& work, const std::function<void()>& call) {
    if (!arguments_.wants(name)) return;
    call();
    const double start = now();
    call();
    const int repeats =
        std::clamp(static_cast<int>(kSampleSeconds / (now() - start + 1e-9)), 1, 10000);
    const Instruction instruction =
        work.product_flops > 0     ? product_instruction(device_->kernels(), weight_kind_)
        : work.attention_flops > 0 ? attention_instruction(device_->kernels(), kHeads.operands)
                                   : f32_instruction(device_->kernels());
    std::vector<double> milliseconds, flop_fractions;
    double before = meter_.operations_per_second(instruction, kPeakSeconds);
    for (int i = 0; i < kSamples; ++i) {
      const double begin = now();
      for (int j = 0; j < repeats; ++j) call();
      const double seconds = (now() - begin) / repeats;
      const double after = meter_.operations_per_second(instruction, kPeakSeconds);
      milliseconds.push_back(1e3 * seconds);
      flop_fractions.push_back(work.flops() / seconds / std::max(before, after));
      before = after;
    }
    const double seconds = 1e-3 * spread_of(milliseconds).median;
    const double flop_fraction = spread_of(flop_fractions).median;
    const double byte_fraction = bandwidth_ > 0 ? work.bytes / bandwidth_ / seconds : 0;
    const bool bytes = byte_fraction > flop_fraction;
    BenchRecord record;
    record.name = name;
    record.unit = "ms";
    record.value = spread_of(milliseconds);
    record.fraction = bytes ? byte_fraction : flop_fraction;
    record.limit = bytes ? "memory read" : instruction_name(instruction);
    record.rate = 1e-9 * (bytes ? work.bytes : work.flops()) / seconds;
    record.rate_unit = bytes ? "GB/s" : "GF/s";
    record.kernels = kernel_set_name(device_->kernels());
    record.threads = threads_;
    reporter_.add(record);
  }

  static Matrix matrix(const Buffer& buffer, int64_t rows, int64_t cols, int64_t stride = 0) {
    return {buffer.at<float>(0), rows, cols, stride == 0 ? cols : stride};
  }
  Buffer floats(int64_t count) {
    Buffer buffer = device_->allocate(static_cast<size_t>(count) * sizeof(float), "bench");
    Random draw(1, 2);
    auto* values = buffer.at<float>(0);
    for (int64_t i = 0; i < count; ++i)
      values[i] = i < 4096 ? draw.uniform_f32() - 0.5f : values[i % 4096];
    return buffer;
  }

  void linear(const Shape& s);
  void pack(const std::string& shape, const std::vector<WeightHandle>& weights,
            const Buffer& plain);
  void adapter();
  void attention();
  void decode();
  void attention_case(const std::string& name, const std::vector<AttentionItem>& items,
                      int64_t window = 0);
  void rows();
  void optimizer();

  const BenchArguments& arguments_;
  const Reporter& reporter_;
  const int threads_;
  std::unique_ptr<HostDevice> device_;
  std::unique_ptr<Stream> stream_;
  OpSet ops_;
  PeakMeter meter_;
  const double bandwidth_;
  WeightKind weight_kind_ = WeightKind::kF32;  // of the case
};

void DeviceBench::linear(const Shape& s) {
  const bool bf16 = weight_kind_ == WeightKind::kBf16;
  const std::string kind = cat(s.name, bf16 ? " bf16" : " f32");
  const uint64_t bytes =
      packed_weight_bytes(device_->traits(), bf16 ? DType::kBf16 : DType::kF32,
                          static_cast<uint64_t>(s.out), static_cast<uint64_t>(s.in));
  const auto copies = static_cast<uint64_t>(kColdBytes / static_cast<double>(bytes)) + 1;
  Buffer arena = device_->allocate(bytes * copies, "weights");
  const Buffer plain = floats(s.out * s.in * static_cast<int64_t>(copies));
  std::vector<WeightHandle> weights;
  for (uint64_t i = 0; i < copies; ++i) {
    weights.push_back({weight_kind_, &arena, bytes * i, s.out, s.in, nullptr});
    ops_.linear->pack_weight(weights.back(), DType::kF32, plain.data(), 0, s.out);
  }
  pack(kind, weights, plain);
  const Buffer x = floats(1024 * (s.in + 16)), y = floats(1024 * (s.out + 16));
  for (const int64_t m : {1, 8, 64, 512, 1024}) {
    if (s.out > 10000 && m == 1024) continue;  // as long as the others together
    const Matrix xm = matrix(x, m, s.in, s.in + 16), ym = matrix(y, m, s.out, s.out + 16);
    const auto values = static_cast<double>(m * (s.in + s.out));
    const OpWork work{2.0 * static_cast<double>(m * s.out * s.in), 0, 0,
                      static_cast<double>(bytes) + sizeof(float) * values};
    const std::string name = cat(kind, " M=", m);
    size_t next = 0;
    line("forward " + name, work, [&] {
      ops_.linear->forward(xm, weights[next++ % weights.size()], nullptr, ym, Write::kSet);
    });
    if (m < 64) continue;
    line("backward_input " + name, work, [&] {
      ops_.linear->backward_input(ym, weights[next++ % weights.size()], nullptr, xm, Write::kSet);
    });
  }
}

void DeviceBench::pack(const std::string& shape, const std::vector<WeightHandle>& weights,
                       const Buffer& plain) {
  const int64_t values = weights[0].out * weights[0].in;
  const int64_t packed = values * (weights[0].kind == WeightKind::kBf16 ? 2 : 4);
  for (const DType source : {DType::kF32, DType::kBf16}) {
    const int64_t stored = values * static_cast<int64_t>(dtype_bytes(source));
    size_t next = 0;
    line(cat("pack ", shape, " from ", dtype_name(source)),
         {0, 0, 0, static_cast<double>(packed + stored)}, [&] {
           const size_t i = next++ % weights.size();
           ops_.linear->pack_weight(weights[i], source,
                                    plain.at<std::byte>(i * static_cast<size_t>(stored)), 0,
                                    weights[i].out);
         });
  }
}

void DeviceBench::adapter() {
  const int64_t tokens = 1024, in = 576, out = 1536, rank = 16;
  const Buffer x = floats(tokens * in), dy = floats(tokens * out), xa = floats(tokens * rank);
  const Buffer a = floats(rank * in), b = floats(out * rank), da = floats(rank * in),
               db = floats(out * rank);
  const auto work = [&](int64_t width) {
    return OpWork{0, 0, 2.0 * static_cast<double>(tokens * width * rank),
                  4.0 * static_cast<double>(tokens * width + tokens * rank + width * rank)};
  };
  const Matrix xam = matrix(xa, tokens, rank);
  line("adapter xa = x A^T 1024x576 r16", work(in), [&] {
    ops_.linear->matmul_nt(matrix(x, tokens, in), matrix(a, rank, in), 1, xam, Write::kSet);
  });
  line("adapter dxa = dy B 1024x1536 r16", work(out), [&] {
    ops_.linear->matmul_nn(matrix(dy, tokens, out), matrix(b, out, rank), 2, xam, Write::kSet);
  });
  line("adapter dB = dy^T xa 1024x1536 r16", work(out), [&] {
    ops_.linear->matmul_tn(matrix(dy, tokens, out), xam, 2, matrix(db, out, rank), Write::kAdd);
  });
  line("adapter dA = dxa^T x 1024x576 r16", work(in), [&] {
    ops_.linear->matmul_tn(xam, matrix(x, tokens, in), 1, matrix(da, rank, in), Write::kAdd);
  });
}

/// Work of `products` products over visible pairs, with these numbers of query and key operands.
OpWork attention_work(const std::vector<AttentionItem>& items, int64_t window, int products,
                      int query_operands, int key_operands) {
  double pairs = 0, queries = 0, keys = 0;
  for (const AttentionItem& item : items) {
    pairs += visible_pairs(item, window);
    queries += static_cast<double>(item.num_queries);
    keys += static_cast<double>(item.num_keys);
  }
  const double q_width = kHeads.num_heads * kHeads.head_dim;
  const double kv_width = kHeads.num_kv_heads * kHeads.head_dim;
  return {0, 2.0 * products * pairs * q_width, 0,
          4.0 * (query_operands * queries * q_width + key_operands * keys * kv_width)};
}

void DeviceBench::attention_case(const std::string& name, const std::vector<AttentionItem>& items,
                                 int64_t window) {
  AttentionShape heads = kHeads;
  heads.window = window;
  const int64_t rows = items.back().key_row + items.back().num_keys;
  const int64_t q_width = kHeads.num_heads * kHeads.head_dim;
  const int64_t kv_width = kHeads.num_kv_heads * kHeads.head_dim;
  const Buffer q = floats(rows * q_width), o = floats(rows * q_width), d_o = floats(rows * q_width),
               dq = floats(rows * q_width), lse = floats(rows * kHeads.num_heads);
  const Buffer k = floats(rows * kv_width), v = floats(rows * kv_width),
               dk = floats(rows * kv_width), dv = floats(rows * kv_width);
  const auto wide = [&](const Buffer& b) { return matrix(b, rows, q_width); };
  const auto narrow = [&](const Buffer& b) { return matrix(b, rows, kv_width); };
  const auto forward = [&] {
    ops_.attention->forward(heads, items, wide(q), narrow(k), narrow(v), wide(o), lse.at<float>(0));
  };
  forward();  // backward reads what it leaves
  line("attention forward " + name, attention_work(items, window, 2, 2, 2), forward);
  line("attention backward " + name, attention_work(items, window, 5, 4, 6), [&] {
    ops_.attention->backward(heads, items, wide(q), narrow(k), narrow(v), wide(o), lse.at<float>(0),
                             wide(d_o), wide(dq), narrow(dk), narrow(dv));
  });
}

void DeviceBench::attention() {
  attention_case("512", {{0, 512, 0, 512}});
  attention_case("2048", {{0, 2048, 0, 2048}});
  attention_case("2048 window 256", {{0, 2048, 0, 2048}}, 256);
  std::vector<AttentionItem> packed;
  for (int64_t row = 0; row < 512; row += 32) packed.push_back({row, 32, row, 32});
  attention_case("16 x 32 packed", packed);
}

void DeviceBench::decode() {
  for (const auto& [streams, keys] : {std::pair<int64_t, int64_t>{16, 64}, {1, 1024}, {8, 1024}}) {
    std::vector<AttentionItem> items;
    for (int64_t i = 0; i < streams; ++i) items.push_back({i, 1, i * keys, keys});
    const int64_t q_width = kHeads.num_heads * kHeads.head_dim;
    const int64_t kv_width = kHeads.num_kv_heads * kHeads.head_dim;
    const Buffer q = floats(streams * q_width), o = floats(streams * q_width);
    const Buffer k = floats(streams * keys * kv_width), v = floats(streams * keys * kv_width);
    line(cat("attention decode ", streams, " x ", keys, " keys"), attention_work(items, 0, 2, 2, 2),
         [&] {
           ops_.attention->forward(
               kHeads, items, matrix(q, streams, q_width), matrix(k, streams * keys, kv_width),
               matrix(v, streams * keys, kv_width), matrix(o, streams, q_width), nullptr);
         });
  }
}

void DeviceBench::rows() {
  const int64_t tokens = 1024, h = 576, ffn = 1536, vocab = 49152, logit_rows = 64;
  const Buffer x = floats(tokens * ffn), y = floats(tokens * ffn), z = floats(tokens * ffn);
  const Buffer weight = floats(h), rstd = floats(tokens);
  const auto hidden = [&](const Buffer& b) { return matrix(b, tokens, h); };
  const auto wide = [&](const Buffer& b) { return matrix(b, tokens, ffn); };
  const auto bytes = [](int operands, int64_t values) {
    return OpWork{0, 0, 0, 4.0 * operands * static_cast<double>(values)};
  };
  line("rmsnorm forward 1024x576", bytes(2, tokens * h), [&] {
    ops_.token->rmsnorm_forward(hidden(x), weight.at<float>(0), 1e-5f, hidden(y),
                                rstd.at<float>(0));
  });
  line("rmsnorm backward 1024x576", bytes(3, tokens * h), [&] {
    ops_.token->rmsnorm_backward(hidden(z), hidden(x), weight.at<float>(0), rstd.at<float>(0),
                                 hidden(y), Write::kSet);
  });
  line("swiglu forward 1024x1536", bytes(3, tokens * ffn),
       [&] { ops_.elementwise->swiglu_forward(wide(x), wide(y), wide(z)); });
  line("swiglu backward 1024x1536", bytes(5, tokens * ffn),
       [&] { ops_.elementwise->swiglu_backward(wide(x), wide(y), wide(z), wide(x), wide(y)); });
  const std::vector<uint64_t> ids(static_cast<size_t>(tokens), 7);
  line("dropout 1024x576", bytes(2, tokens * h), [&] {
    ops_.token->dropout(hidden(x), {0.1f, 1, 2, ids.data()}, hidden(y), Write::kSet);
  });
  const Buffer angles = floats(tokens * 32);
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < tokens; ++i) positions.push_back(i);
  line("rope 1024x576", bytes(2, tokens * h), [&] {
    ops_.token->rope(hidden(x), 64, angles.at<float>(0), angles.at<float>(0), positions.data(),
                     TokenOps::Direction::kForward);
  });
  const Buffer logits = floats(logit_rows * vocab);
  std::vector<double> losses(static_cast<size_t>(logit_rows));
  const std::vector<int32_t> targets(static_cast<size_t>(logit_rows), 5);
  line("cross_entropy 64x49152", bytes(2, logit_rows * vocab), [&] {
    ops_.loss->cross_entropy(matrix(logits, logit_rows, vocab), targets.data(), 1.0f,
                             losses.data());
  });
  std::vector<double> parts(static_cast<size_t>(3 * logit_rows));
  line("cross_entropy_part 64x49152", bytes(1, logit_rows * vocab), [&] {
    ops_.loss->cross_entropy_part(matrix(logits, logit_rows, vocab), targets.data(), 0,
                                  parts.data());
  });
  line("cross_entropy_apply 64x49152", bytes(2, logit_rows * vocab), [&] {
    ops_.loss->cross_entropy_apply(matrix(logits, logit_rows, vocab), targets.data(), 0,
                                   losses.data(), 1.0f);
  });
}

void DeviceBench::optimizer() {
  const int64_t count = 4'900'000;
  const Buffer w = floats(count), g = floats(count), m = floats(count), v = floats(count);
  std::memset(v.data(), 0, v.bytes());
  AdamWStep step;
  step.learning_rate = 1e-4;
  const double bytes = 4.0 * static_cast<double>(count);
  line("adamw 4.9M", {0, 0, 0, 7 * bytes}, [&] {
    ops_.optimizer->adamw(w.at<float>(0), g.at<float>(0), m.at<float>(0), v.at<float>(0), count,
                          step);
  });
  line("sum_of_squares 4.9M", {0, 0, 2.0 * static_cast<double>(count), bytes},
       [&] { ops_.optimizer->sum_of_squares(g.at<float>(0), count); });
}

int bench(int argc, char** argv) {
  BenchArguments arguments = parse_arguments(argc, argv, kHelp, {});
  if (arguments.kernels.empty()) {
    arguments.kernels = {best_kernel_set()};
    if (kernel_set_usable(KernelSet::kAvx512Bf16)) {
      arguments.kernels.push_back(KernelSet::kAvx512Bf16);
    }
  }
  const Reporter reporter(arguments.json);
  for (const int threads : arguments.threads) {
    for (const KernelSet kernels : arguments.kernels) {
      DeviceBench bench(arguments, reporter, kernels, threads);
      reporter.machine_line(format("%d threads, %s kernels, memory read %.1f GB/s", threads,
                                   kernel_set_name(kernels).c_str(), 1e-9 * bench.bandwidth()));
      bench.all();
    }
  }
  return 0;
}

}  // namespace
}  // namespace galley::bench

int main(int argc, char** argv) {
  return galley::bench::run_program("bench_device", galley::bench::bench, argc, argv);
}
