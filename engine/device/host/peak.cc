#include "engine/device/host/peak.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/core/clock.h"
#include "engine/core/error.h"
#include "engine/device/host/host_memory.h"
#include "engine/device/host/peak_loops.h"

namespace galley::device {
namespace {

constexpr size_t kRatePadding = 64 / sizeof(double);
// Rounds between two looks at the clock: some ten microseconds.
constexpr int64_t kRounds = 4000;
constexpr int kSpinsBeforeYield = 10000;

double thread_seconds(BenchClock clock) {
  return seconds_of(clock == BenchClock::kWall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID);
}

using Loop = double (*)(int64_t rounds);

Loop loop_of(Instruction instruction) {
  switch (instruction) {
    case Instruction::kMulAddSse2:
      return peak_loop_sse2;
    case Instruction::kFmaAvx2:
      return peak_loop_avx2;
    case Instruction::kFmaAvx512:
      return peak_loop_avx512;
    case Instruction::kBf16Dot:
      return peak_loop_bf16_dot;
    case Instruction::kInt8Dot:
      return peak_loop_int8_dot;
  }
  return peak_loop_sse2;
}

/// The part of `thread`, in whole cache lines.
std::pair<size_t, size_t> part_of(size_t bytes, int thread, int num_threads) {
  const size_t part = bytes / static_cast<size_t>(num_threads) / 4096 * 4096;
  return {part * static_cast<size_t>(thread), part};
}

}  // namespace

std::string instruction_name(Instruction instruction) {
  switch (instruction) {
    case Instruction::kMulAddSse2:
      return "f32 mul+add sse2";
    case Instruction::kFmaAvx2:
      return "f32 fma avx2";
    case Instruction::kFmaAvx512:
      return "f32 fma avx512";
    case Instruction::kBf16Dot:
      return "bf16 dot";
    case Instruction::kInt8Dot:
      return "int8 dot";
  }
  return "unknown";
}

bool instruction_usable(Instruction instruction) {
  switch (instruction) {
    case Instruction::kMulAddSse2:
      return true;
    case Instruction::kFmaAvx2:
      return kernel_set_usable(KernelSet::kAvx2);
    case Instruction::kFmaAvx512:
      return kernel_set_usable(KernelSet::kAvx512);
    case Instruction::kBf16Dot:
      return kernel_set_usable(KernelSet::kAvx512Bf16);
    case Instruction::kInt8Dot:
      return kernel_set_usable(KernelSet::kAvx512) && __builtin_cpu_supports("avx512vnni");
  }
  return false;
}

double bench_seconds(BenchClock clock, int threads) {
  return clock == BenchClock::kWall ? seconds_of(CLOCK_MONOTONIC)
                                    : seconds_of(CLOCK_PROCESS_CPUTIME_ID) / threads;
}

Instruction f32_instruction(KernelSet kernels) {
  switch (kernels) {
    case KernelSet::kAuto:
      return f32_instruction(best_kernel_set());
    case KernelSet::kPortable:
      return Instruction::kMulAddSse2;
    case KernelSet::kAvx2:
      return Instruction::kFmaAvx2;
    case KernelSet::kAvx512:
    case KernelSet::kAvx512Bf16:
      return Instruction::kFmaAvx512;
  }
  return Instruction::kMulAddSse2;
}

Instruction attention_instruction(KernelSet kernels, ProductOperands operands) {
  if (operands == ProductOperands::kMayRound && kernel_set_rounds(kernels)) {
    return Instruction::kBf16Dot;
  }
  return f32_instruction(kernels);
}

Instruction product_instruction(KernelSet kernels, WeightKind kind) {
  if (kernels == KernelSet::kAvx512Bf16 && kind == WeightKind::kBf16) return Instruction::kBf16Dot;
  const bool wide = f32_instruction(kernels) == Instruction::kFmaAvx512;
  if (kind == WeightKind::kInt8 && wide && instruction_usable(Instruction::kInt8Dot)) {
    return Instruction::kInt8Dot;
  }
  return f32_instruction(kernels);
}

PeakMeter::PeakMeter(int num_threads, const std::vector<int>& cpus, BenchClock clock)
    : pool_(num_threads, cpus),
      clock_(clock),
      rates_(kRatePadding * static_cast<size_t>(num_threads)) {}

PeakMeter::~PeakMeter() {
  if (buffer_ != nullptr) host_memory_free(buffer_, buffer_size_);
}

/// body(thread) returns what it did and how long that took; all threads begin together, since a
/// thread that wakes late would count the others' time as its own.
template <typename Body>
double PeakMeter::sum_of_rates(const Body& body) {
  num_arrived_.store(0, std::memory_order_relaxed);
  pool_.run([&](int thread) {
    num_arrived_.fetch_add(1, std::memory_order_acq_rel);
    for (int spins = 0; num_arrived_.load(std::memory_order_acquire) < pool_.size(); ++spins) {
      if (spins < kSpinsBeforeYield) {
        __builtin_ia32_pause();
      } else {
        sched_yield();  // the others may wait for this very core
      }
    }
    const double begin = thread_seconds(clock_);
    const double done = body(thread, begin);
    rates_[static_cast<size_t>(thread) * kRatePadding] = done / (thread_seconds(clock_) - begin);
  });
  double sum = 0;
  for (size_t i = 0; i < rates_.size(); i += kRatePadding) sum += rates_[i];
  return sum;
}

double PeakMeter::operations_per_second(Instruction instruction, double seconds) {
  GALLEY_CHECK(instruction_usable(instruction));
  const Loop loop = loop_of(instruction);
  return sum_of_rates([&](int, double begin) {
    double done = 0;
    do {
      done += loop(kRounds);
    } while (thread_seconds(clock_) - begin < seconds);
    return done;
  });
}

void PeakMeter::take_buffer() {
  if (buffer_ != nullptr || host_memory_free_bytes() < 2 * kBufferBytes) return;
  buffer_ = static_cast<std::byte*>(host_memory_allocate(kBufferBytes));
  if (buffer_ == nullptr) return;
  buffer_size_ = kBufferBytes;
  pool_.run([&](int thread) {
    const auto [begin, bytes] = part_of(buffer_size_, thread, pool_.size());
    std::memset(buffer_ + begin, 1, bytes);
  });
}

double PeakMeter::read_bytes_per_second() {
  take_buffer();
  if (buffer_ == nullptr) return 0;
  return sum_of_rates([&](int thread, double) {
    const auto [begin, bytes] = part_of(buffer_size_, thread, pool_.size());
    read_memory(buffer_ + begin, static_cast<int64_t>(bytes));
    return static_cast<double>(bytes);
  });
}

double PeakMeter::copy_bytes_per_second() {
  take_buffer();
  if (buffer_ == nullptr) return 0;
  return sum_of_rates([&](int thread, double) {
    const auto [begin, bytes] = part_of(buffer_size_, thread, pool_.size());
    std::memcpy(buffer_ + begin, buffer_ + begin + bytes / 2, bytes / 2);
    return static_cast<double>(bytes);
  });
}

}  // namespace galley::device
