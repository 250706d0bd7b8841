// metrics.csv of a job: one line per optimizer step, each step once, also over restarts.
//
// Owned by run_job's thread.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "trainer/run_job.h"

namespace galley::trainer {

class MetricsFile {
 public:
  /// Keeps the lines of steps up to `last_step`, drops the rest (they will be done again).
  MetricsFile(std::string path, int64_t last_step);
  /// Appends a line and hands it to the system; kDiskFull or kIo when that fails.
  void append(const JobProgress& progress, double unix_seconds);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace galley::trainer
