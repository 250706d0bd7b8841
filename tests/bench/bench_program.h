// What the benchmark programs share: their flags, and how figures come out.
//
// Values and one printer; used by main's thread.
#pragma once

#include <string>
#include <vector>

#include "engine/device/bench_record.h"
#include "engine/device/host/host_device.h"
#include "engine/device/host/peak.h"

namespace galley::bench {

struct BenchArguments {
  bool json = false;
  std::string filter;                      // part of a case's name
  std::vector<int> threads;                // default: 1 and all cores
  std::vector<device::KernelSet> kernels;  // empty: the program's choice
  device::BenchClock clock = device::BenchClock::kWall;
  std::vector<std::string> flags;  // those of the program that are given

  bool has(const std::string& flag) const;
  bool wants(const std::string& name) const { return name.find(filter) != std::string::npos; }
};

/// --json, --filter TEXT, --threads N[,N], --kernels NAME[,NAME]|all, --cpu-time, --help, and flags
/// of the program. Error(kUsage) naming the nearest flag. `help` is printed for --help, which
/// exits.
BenchArguments parse_arguments(int argc, char** argv, const std::string& help,
                               const std::vector<std::string>& own_flags);

/// Prints each record as it comes: a line, or a JSON line.
class Reporter {
 public:
  explicit Reporter(bool json);
  void machine_line(const std::string& text) const;  // for people only
  void add(const device::BenchRecord& record) const;
  /// A case that cannot run here, by name.
  void skip(const std::string& name, const std::string& reason) const;

 private:
  const bool json_;
  const std::string machine_;
};

/// Runs `body` and returns its exit code; errors are printed and become their exit codes.
int run_program(const std::string& name, int (*body)(int argc, char** argv), int argc, char** argv);

}  // namespace galley::bench
