// Operations that time what they pass on: a table of where a step's time goes.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "engine/device/ops.h"

namespace galley::bench {

using Clock = std::function<double()>;  // seconds

class Profile {
 public:
  explicit Profile(Clock clock) : clock_(std::move(clock)) {}
  void add(const std::string& name, double seconds, double flops);
  double now() const { return clock_(); }
  void clear() { rows_.clear(); }
  /// One line per operation: ms per step, share of `step_seconds`, GF/s, fraction of `peak`.
  void print(int steps, double step_seconds, double peak) const;

 private:
  struct Row {
    double seconds = 0, flops = 0;
  };
  Clock clock_;
  std::map<std::string, Row> rows_;
};

/// Wraps every family of `ops`; products with a weight of `vocab` outputs count as the head.
device::OpSet profiled(device::OpSet ops, int64_t vocab, Profile* profile);

}  // namespace galley::bench
