// Clock and median of the benchmarks.
#pragma once

#include <ctime>
#include <vector>

namespace galley::bench {

/// Seconds of a clock: CLOCK_MONOTONIC, or CLOCK_PROCESS_CPUTIME_ID for processor time.
double seconds_of(clockid_t clock);
/// The middle sample (the upper one of two); at least one is needed.
double median(std::vector<double> samples);

}  // namespace galley::bench
