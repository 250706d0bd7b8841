// What the tests of communicators share: values that everybody knows, and random programs.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "engine/core/random.h"
#include "engine/core/strings.h"
#include "engine/device/communicator.h"

namespace galley::device {

inline std::vector<int> all_members(int size) {
  std::vector<int> members(static_cast<size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

/// What a worker gives to a step; known to everybody, so that each can add all.
inline std::vector<float> values_of(int worker, uint64_t step, int64_t count) {
  Random draw(step, random_stream("values", {static_cast<uint64_t>(worker)}));
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = 2 * draw.uniform_f32() - 1;
  return values;
}

inline std::vector<float> sum_in_order(const std::vector<int>& workers, uint64_t step,
                                       int64_t count) {
  std::vector<float> sum;
  for (int worker : workers) {
    const std::vector<float> values = values_of(worker, step, count);
    if (sum.empty()) {
      sum = values;
      continue;
    }
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

inline void expect_all_reduce(Communicator* group, const std::vector<int>& workers, uint64_t step,
                              int64_t count) {
  const int own = workers[static_cast<size_t>(group->rank())];
  std::vector<float> data = values_of(own, step, count);
  group->all_reduce(data.data(), count);
  EXPECT_TRUE(same_bits(data, sum_in_order(workers, step, count))) << count << " of " << own;
}

/// One operation of a program that all members draw alike.
inline void random_operation(Random* draw, uint64_t step, Communicator* group,
                             const std::vector<int>& workers) {
  const int size = group->size();
  const int64_t count = static_cast<int64_t>(draw->below(draw->below(8) == 0 ? 100'000 : 3000));
  const int root = static_cast<int>(draw->below(static_cast<uint64_t>(size)));
  const auto kind = draw->below(5);
  if (kind <= 1) return expect_all_reduce(group, workers, step, count);
  if (kind == 2) {
    const int own = workers[static_cast<size_t>(group->rank())];
    const std::vector<std::string> texts =
        group->all_gather_host(cat("step ", step, std::string(static_cast<size_t>(own), '.')));
    for (size_t i = 0; i < workers.size(); ++i) {
      EXPECT_EQ(texts[i], cat("step ", step, std::string(static_cast<size_t>(workers[i]), '.')));
    }
    return;
  }
  if (kind == 3) {
    EXPECT_EQ(group->broadcast_host(group->rank() == root ? cat(step) : "not me", root), cat(step));
    return;
  }
  // A pass round the ring, beginning nowhere: everybody sends first.
  if (size == 1) return;
  const int to = (group->rank() + 1) % size, from = (group->rank() + size - 1) % size;
  const std::vector<float> out =
      values_of(workers[static_cast<size_t>(group->rank())], step, count);
  std::vector<float> in(out.size());
  group->send(to, out.data(), count);
  group->receive(from, in.data(), count);
  EXPECT_TRUE(same_bits(in, values_of(workers[static_cast<size_t>(from)], step, count)));
  group->finish_sends();
}

/// A program over two communicators: everybody, and the workers of equal parity.
inline void run_random_program(GroupTransport* transport, Communicator* group, uint64_t seed,
                               uint64_t steps) {
  const int size = group->size();
  std::vector<int> half;
  for (int i = transport->rank() % 2; i < size; i += 2) half.push_back(i);
  const auto pair = make_host_communicator(transport, half);
  for (uint64_t step = 0; step < steps; ++step) {
    // Drawn anew, since the halves differ in size and so would their draws.
    Random draw(seed, random_stream("program", {step}));
    if (draw.below(2) == 0) {
      random_operation(&draw, step, group, all_members(size));
    } else {
      random_operation(&draw, step, pair.get(), half);
    }
  }
}

}  // namespace galley::device
