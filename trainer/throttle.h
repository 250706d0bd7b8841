// Throttle: makes a worker on an emulated GPU as slow as that GPU shall be.
//
// After each piece of work it sleeps so long that the piece has taken `slowdown` times what it
// needed; time in which the worker waited for others does not count. What is on its way to others
// moves on meanwhile. One owner.
#pragma once

#include <functional>

#include "trainer/worker_group.h"

namespace galley::trainer {

class Throttle {
 public:
  /// `slowdown` >= 1; `group` must outlive it.
  Throttle(double slowdown, const WorkerGroup& group) : slowdown_(slowdown), group_(group) {}
  /// Called a few times a second while it sleeps.
  void set_sign(std::function<void()> sign) { sign_ = std::move(sign); }
  void begin();
  /// Sleeps for what is missing.
  void end();
  /// Seconds that it slept so far.
  double slept_s() const { return slept_s_; }

 private:
  void sleep(double seconds);

  const double slowdown_;
  const WorkerGroup& group_;
  std::function<void()> sign_;
  double begin_s_ = 0, waited_s_ = 0, slept_s_ = 0;
};

}  // namespace galley::trainer
