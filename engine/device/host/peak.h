// Limits of the processor that is there, measured: operations per second of each instruction that
// kernels use, and bytes per second of memory. The yardstick beside which benchmarks are read.
//
// A fraction of a peak means something only when the peak was read in the same minute and on the
// same threads. PeakMeter owns its threads (they sleep between readings) and is used by one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/device/host/host_device.h"
#include "engine/device/host/thread_pool.h"

namespace galley::device {

enum class Instruction : uint8_t {
  kMulAddSse2,  // f32 product and sum, 128 bits: the portable kernels
  kFmaAvx2,     // f32 multiply-add, 256 bits
  kFmaAvx512,   // f32 multiply-add, 512 bits
  kBf16Dot,     // pairs of bf16, f32 sums, 512 bits
  kInt8Dot,     // quadruples of int8, int32 sums, 512 bits
};
constexpr Instruction kAllInstructions[] = {Instruction::kMulAddSse2, Instruction::kFmaAvx2,
                                            Instruction::kFmaAvx512, Instruction::kBf16Dot,
                                            Instruction::kInt8Dot};
/// "f32 mul+add sse2", "f32 fma avx2", "f32 fma avx512", "bf16 dot", "int8 dot".
std::string instruction_name(Instruction instruction);
/// True when this processor (and its operating system) can run it.
bool instruction_usable(Instruction instruction);
/// What the arithmetic of f32 operands runs on in these kernels (kAuto: the best ones).
Instruction f32_instruction(KernelSet kernels);
/// What the products of attention run on.
Instruction attention_instruction(KernelSet kernels, ProductOperands operands);
/// What products with weights of this kind run on.
Instruction product_instruction(KernelSet kernels, WeightKind kind);

/// Time that readings count: what passes, or the processor time of each thread (for a machine that
/// others load; it hides waiting).
enum class BenchClock : uint8_t { kWall, kProcessor };
/// Seconds so far; processor time is the process's per thread, so that both clocks give comparable
/// ones.
double bench_seconds(BenchClock clock, int threads);

class PeakMeter {
 public:
  /// A reading of an instruction takes about this long.
  static constexpr double kReadingSeconds = 0.008;

  PeakMeter(int num_threads, const std::vector<int>& cpus, BenchClock clock = BenchClock::kWall);
  ~PeakMeter();

  int num_threads() const { return pool_.size(); }
  BenchClock clock() const { return clock_; }

  /// Operations per second of all threads together: they start together, each times itself until
  /// `seconds` are over, and the rates are summed. The processor must have the instruction.
  double operations_per_second(Instruction instruction, double seconds = kReadingSeconds);
  /// Bytes per second of all threads, each streaming through its part of a buffer that is larger
  /// than the caches: read, or read and written (both counted). 0 when there is no memory for the
  /// buffer, which is taken by the first reading and kept.
  double read_bytes_per_second();
  double copy_bytes_per_second();
  /// Of that buffer: many times what a core's share of the caches holds, read in milliseconds.
  static constexpr uint64_t kBufferBytes = uint64_t{256} << 20;

 private:
  template <typename Body>
  double sum_of_rates(const Body& body);
  void take_buffer();

  ThreadPool pool_;
  const BenchClock clock_;
  std::atomic<int> num_arrived_{0};
  std::vector<double> rates_;  // of each thread, padded to cache lines
  std::byte* buffer_ = nullptr;
  size_t buffer_size_ = 0;
};

}  // namespace galley::device
