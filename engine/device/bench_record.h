// BenchRecord: one figure of a benchmark, with its unit, its spread and the limit it is read
// beside.
//
// What `galley bench` and the programs of tests/bench print: a line for people, or a JSON line that
// scripts/compare_builds reads. Plain values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/core/json.h"

namespace galley::device {

/// Median of samples, and the smallest and largest of them.
struct Spread {
  double median = 0, lowest = 0, highest = 0;
};
/// At least one sample; the median of an even number is the mean of the middle two.
Spread spread_of(std::vector<double> samples);

struct BenchRecord {
  std::string name;  // of the case: the same in every build and on every machine
  std::string unit;  // "ms", "tokens/s", "GF/s", "GB/s"
  Spread value;
  std::optional<double> fraction;  // of `limit`, 1 = all of it
  std::string limit;               // "f32 fma avx512", "memory read", ...; empty: none
  std::optional<double> rate;      // what the fraction compares, in `rate_unit`
  std::string rate_unit;           // "GF/s", "GB/s"
  // Of a training step: two builds must agree on them.
  std::optional<double> loss, gradient_norm;
  std::string kernels;  // rows of the kernel table
  int threads = 0;
};

/// {"name", "unit", "value", "spread": [lowest, highest], "fraction", "limit", "rate", "rate_unit",
/// "loss", "gradient_norm", "kernels", "threads", "machine", "version"}; what a record lacks is
/// null.
Json to_json(const BenchRecord& record, const std::string& machine);
/// The record as one line of aligned columns.
std::string to_line(const BenchRecord& record);

}  // namespace galley::device
