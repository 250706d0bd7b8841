#include "launcher/back_off.h"

#include <poll.h>
#include <time.h>

#include <algorithm>

namespace galley::launcher {
namespace {

constexpr double kBusySeconds = 50e-6;
constexpr double kFirstSleepSeconds = 50e-6;

}  // namespace

void BackOff::wait(const std::vector<int>& fds, double now, double longest_s) {
  if (idle_since_ < 0) {
    idle_since_ = now;
    sleep_s_ = kFirstSleepSeconds;
  }
  if (now - idle_since_ < kBusySeconds) return;
  std::vector<pollfd> entries;
  for (const int fd : fds) entries.push_back({fd, POLLIN, 0});
  const timespec time{0, static_cast<long>(sleep_s_ * 1e9)};
  ppoll(entries.data(), entries.size(), &time, nullptr);
  sleep_s_ = std::min(2 * sleep_s_, longest_s);
}

}  // namespace galley::launcher
