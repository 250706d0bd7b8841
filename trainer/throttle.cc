#include "trainer/throttle.h"

#include <chrono>
#include <thread>

#include "engine/core/clock.h"

namespace galley::trainer {

void Throttle::begin() {
  if (slowdown_ <= 1) return;
  begin_s_ = seconds_of(CLOCK_MONOTONIC);
  waited_s_ = group_.waited_s();
}

void Throttle::end() {
  if (slowdown_ <= 1) return;
  const double worked = seconds_of(CLOCK_MONOTONIC) - begin_s_ - (group_.waited_s() - waited_s_);
  if (worked <= 0) return;
  std::this_thread::sleep_for(std::chrono::duration<double>((slowdown_ - 1) * worked));
}

}  // namespace galley::trainer
