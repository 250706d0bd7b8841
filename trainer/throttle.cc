#include "trainer/throttle.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/core/clock.h"

namespace galley::trainer {
namespace {

// With a message that does not fit its ring, its receiver must not wait for the end of the sleep.
constexpr double kSliceWithSends_s = 0.5e-3;
constexpr double kSlice_s = 50e-3;
constexpr double kSignEvery_s = 0.25;

}  // namespace

void Throttle::begin() {
  if (slowdown_ <= 1) return;
  begin_s_ = seconds_of(CLOCK_MONOTONIC);
  waited_s_ = group_.waited_s();
}

void Throttle::end() {
  if (slowdown_ <= 1) return;
  const double worked = seconds_of(CLOCK_MONOTONIC) - begin_s_ - (group_.waited_s() - waited_s_);
  if (worked > 0) sleep((slowdown_ - 1) * worked);
}

void Throttle::sleep(double seconds) {
  const double begin_s = seconds_of(CLOCK_MONOTONIC);
  double now_s = begin_s, sign_s = begin_s;
  while (now_s < begin_s + seconds) {
    const double slice = group_.move_sends() ? kSliceWithSends_s : kSlice_s;
    const double left = begin_s + seconds - now_s;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(slice, left)));
    now_s = seconds_of(CLOCK_MONOTONIC);
    if (sign_ && now_s - sign_s >= kSignEvery_s) {
      sign_();
      sign_s = now_s;
    }
  }
  slept_s_ += now_s - begin_s;
}

}  // namespace galley::trainer
