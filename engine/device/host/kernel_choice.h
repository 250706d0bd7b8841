// Which kernels of the host device a worker uses: timed on products like its own, here and now. No
// processor is looked up by name: two that look alike want opposite kernels.
//
// measure_kernels() times rows of the kernel table, choose_kernels() decides, purely. Called by a
// worker's one thread before its device exists; nothing is kept between calls.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/device/host/host_device.h"

namespace galley::device {

/// Whether products may round their left operand to bf16.
enum class InputRounding { kNever, kAllowed };

/// Usable kernels that the rounding allows, the narrowest first. Never empty.
std::vector<KernelSet> kernel_candidates(InputRounding rounding);

/// Products like those of a job. measure_kernels() cuts large ones to what takes milliseconds.
struct KernelWork {
  struct Shape {
    int64_t out = 0, in = 0;  // of a linear weight
  };
  struct Rows {
    int64_t rows = 0;
    double share = 1;  // how often products of so many rows come, relative to the others
  };
  enum class Passes { kForward, kForwardAndBackward };

  std::vector<Shape> shapes;
  std::vector<Rows> rows;
  Passes passes = Passes::kForward;
  WeightKind weights = WeightKind::kF32;
  int threads = 1;
  std::vector<int> cpus;  // as in HostDeviceOptions
};

struct KernelMeasurement {
  KernelSet kernels = KernelSet::kPortable;
  double flops_per_second = 0;  // sum over the threads
};

/// Times each candidate, at most some 30 ms each, in turns, on all threads at once (each with rows
/// of its own): clock and shared caches are then as in the job. A thread's processor time counts
/// and its best turn, so that neighbours who take a core do not decide. In the given order.
std::vector<KernelMeasurement> measure_kernels(std::span<const KernelSet> candidates,
                                               const KernelWork& work);

/// Rates that differ by less than this are a tie.
inline constexpr double kKernelTie = 1.03;
/// By so much a narrower set's products must be faster: all other operations gain from width.
inline constexpr double kNarrowerGain = 1.1;

/// The fastest, as far as kNarrowerGain lets a narrower set win (`measured` has the narrowest
/// first). Kernels that round must beat all others by more than a tie; an `earlier` choice that
/// ties with the new one stays, unless it rounds and the new one does not. `measured` is not empty.
KernelSet choose_kernels(std::span<const KernelMeasurement> measured,
                         std::optional<KernelSet> earlier);

/// How the chosen compare with the best other ones, and why slower ones were chosen: "2.1x avx512",
/// "0.98x avx2, wider"; "" without others.
std::string compare_kernels(KernelSet chosen, std::span<const KernelMeasurement> measured);

}  // namespace galley::device
