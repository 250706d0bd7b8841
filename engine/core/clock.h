// Readings of the system's clocks, for measurements.
#pragma once

#include <ctime>

namespace galley {

/// Seconds of a clock: CLOCK_MONOTONIC for what passes, CLOCK_PROCESS_CPUTIME_ID or
/// CLOCK_THREAD_CPUTIME_ID for processor time.
double seconds_of(clockid_t clock);

}  // namespace galley
