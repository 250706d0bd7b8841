// A whole job on a group of threads, its curve and its adapter, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/strings.h"
#include "engine/model/adapter_file.h"
#include "tests/trainer/group_bench.h"
#include "tests/trainer/toy_job.h"

namespace galley::trainer::testing {

struct GroupRun {
  std::vector<JobResult> results;  // by group rank
  FakeEvents leader;
  std::exception_ptr failure;                // the first
  std::vector<std::exception_ptr> failures;  // by group rank
};

/// Runs the job on a group of threads until `stop_at` steps are done (the stop is seen a step
/// later); `change` may alter a worker's assignment or events.
using Change = std::function<void(int rank, TrainAssignment*, FakeEvents*)>;
inline GroupRun run_on(const ToyJob& job, const model::ParallelLayout& shape, int64_t stop_at = -1,
                       const Change& change = {}, size_t ring_bytes = 1 << 16) {
  GroupRun run;
  const int size = shape.num_workers();
  run.results.resize(static_cast<size_t>(size));
  run.failures.resize(static_cast<size_t>(size));
  auto transports = make_thread_transports(size, ring_bytes);
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      FakeEvents own;
      FakeEvents& events = rank == 0 ? run.leader : own;
      TrainAssignment assignment = job.assignment;
      assignment.layout = shape;
      assignment.group_rank = rank;
      if (rank == 0) events.stop_at = stop_at;
      if (change) change(rank, &assignment, &events);
      try {
        run.results[static_cast<size_t>(rank)] = run_job(
            assignment, events, size == 1 ? nullptr : transports[static_cast<size_t>(rank)].get());
      } catch (...) {
        const std::lock_guard lock(mutex);
        run.failures[static_cast<size_t>(rank)] = std::current_exception();
        if (run.failure == nullptr) run.failure = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return run;
}

struct Curve {
  std::vector<double> losses, norms;
};
inline Curve curve_of(const ToyJob& job) {
  Curve curve;
  const std::vector<std::string> lines = job.metrics();
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> fields = split(lines[i], ',');
    EXPECT_EQ(parse_int(fields[0]).value_or(-1), static_cast<int64_t>(i)) << "each step once";
    curve.losses.push_back(parse_number(fields[2]).value_or(NAN));
    curve.norms.push_back(parse_number(fields[3]).value_or(NAN));
  }
  return curve;
}

inline void expect_same_curve(const Curve& a, const Curve& b) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_NEAR(a.losses[i], b.losses[i], 1e-5 * b.losses[i]) << "step " << i + 1;
    EXPECT_NEAR(a.norms[i], b.norms[i], 5e-5 * b.norms[i]) << "step " << i + 1;
  }
}

inline std::vector<float> adapter_values(const ToyJob& job) {
  const auto config = model::read_model_config(job.assignment.spec.model);
  return model::read_adapter(job.assignment.job_directory + "/adapter", config).values;
}

/// Norm of the difference over the norm of what training moved.
inline double gap(const ToyJob& job, const std::vector<float>& a, const std::vector<float>& b) {
  const auto config = model::read_model_config(job.assignment.spec.model);
  const model::TrainSpec& spec = job.assignment.spec;
  const auto first =
      model::initial_adapter(model::adapted_linears(config, spec.lora), spec.lora.init, spec.seed);
  double apart = 0, moved = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    apart += std::pow(static_cast<double>(a[i]) - b[i], 2);
    moved += std::pow(static_cast<double>(b[i]) - first[i], 2);
  }
  return std::sqrt(apart / moved);
}

}  // namespace galley::trainer::testing
