// BackOff: how an idle rank waits: busy for 50 us, then sleeps of 50 us doubled up to 5 ms. About
// half a percent of a core, and a reaction within 5 ms. One per loop.
#pragma once

#include <vector>

namespace galley::launcher {

class BackOff {
 public:
  /// Something happened: poll busily again.
  void reset() { idle_since_ = -1; }
  /// Waits a little, less when one of `fds` becomes readable.
  void wait(const std::vector<int>& fds, double now);

 private:
  double idle_since_ = -1;
  double sleep_s_ = 0;
};

}  // namespace galley::launcher
