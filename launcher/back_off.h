// BackOff: how an idle rank waits: busy for 50 us, then sleeps of 50 us doubled up to a limit. With
// 5 ms about half a percent of a core, and a reaction within 5 ms. One per loop.
#pragma once

#include <vector>

namespace galley::launcher {

/// Longest sleep of a rank that relays for a worker, of the coordinator, and of one with nothing to
/// do.
inline constexpr double kBriskSeconds = 5e-3;
inline constexpr double kCalmSeconds = 10e-3;
inline constexpr double kIdleSeconds = 20e-3;

class BackOff {
 public:
  /// Something happened: poll busily again.
  void reset() { idle_since_ = -1; }
  /// Waits a little, less when one of `fds` becomes readable.
  void wait(const std::vector<int>& fds, double now, double longest_s = kBriskSeconds);

 private:
  double idle_since_ = -1;
  double sleep_s_ = 0;
};

}  // namespace galley::launcher
