// Counter-based random numbers (Philox 4x32-10, Salmon et al., SC'11): a pure function of
// (seed, stream, counter), so that a draw does not depend on threads, order or restarts.
//
// `stream` separates purposes: use random_stream("dropout", layer, ...) and never share one.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace galley {

/// The ten-round Philox function itself.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// A stream number for a purpose and its indices.
uint64_t random_stream(std::string_view purpose, std::initializer_list<uint64_t> indices = {});

/// A sequence of draws that starts at a given position. Copyable; its state is (seed, stream,
/// position).
class Random {
 public:
  Random(uint64_t seed, uint64_t stream, uint64_t position = 0)
      : seed_(seed), stream_(stream), position_(position) {}
  uint32_t next_u32();
  uint64_t next_u64();
  /// Uniform in [0, 1) with 53 bits.
  double uniform();
  /// Uniform in [0, 1) with 24 bits, exact in f32.
  float uniform_f32();
  /// Standard normal (Box-Muller).
  double normal();
  /// Uniform in [0, bound), without bias; bound > 0.
  uint64_t below(uint64_t bound);
  /// Number of 32-bit draws so far.
  uint64_t position() const { return position_; }

 private:
  uint64_t seed_, stream_, position_;
  uint64_t block_index_ = ~uint64_t{0};
  std::array<uint32_t, 4> block_{};
};

/// A permutation of 0 .. count-1 (Fisher-Yates): a pure function of (seed, stream, count).
std::vector<uint32_t> random_permutation(uint64_t seed, uint64_t stream, uint32_t count);
/// The same into `order`, whose storage is used again.
void random_permutation(uint64_t seed, uint64_t stream, uint32_t count,
                        std::vector<uint32_t>* order);

}  // namespace galley
