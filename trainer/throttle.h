// Throttle: makes a worker on an emulated GPU as slow as that GPU shall be.
//
// After each piece of work it sleeps so long that the piece has taken `slowdown` times what it
// needed; time in which the worker waited for others does not count. One owner.
#pragma once

#include "trainer/worker_group.h"

namespace galley::trainer {

class Throttle {
 public:
  /// `slowdown` >= 1; `group` must outlive it.
  Throttle(double slowdown, const WorkerGroup& group) : slowdown_(slowdown), group_(group) {}
  void begin();
  /// Sleeps for what is missing.
  void end();

 private:
  const double slowdown_;
  const WorkerGroup& group_;
  double begin_s_ = 0, waited_s_ = 0;
};

}  // namespace galley::trainer
