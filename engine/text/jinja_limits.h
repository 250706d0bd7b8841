// Bounds of one rendering. Templates come with models and are untrusted: whatever they do ends
// after a bounded amount of work, as a Failure that names the bound.
//
// A Budget belongs to one rendering on one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace galley::text::jinja {

/// What went wrong, without the place; the renderer adds file and line.
class Failure : public std::runtime_error {
 public:
  explicit Failure(const std::string& message, int line = 0)
      : std::runtime_error(message), line_(line) {}
  /// Line in the template, 0 where it is the line that was being evaluated.
  int line() const { return line_; }

 private:
  int line_;
};

/// raise_exception() of a template.
class Refusal : public Failure {
 public:
  using Failure::Failure;
};

struct Limits {
  int64_t max_steps = 10'000'000;            // nodes evaluated, items visited
  int max_depth = 1500;                      // nested evaluations and macro calls
  int max_value_depth = 200;                 // lists within lists
  size_t max_text_bytes = size_t{16} << 20;  // of one string, and of the output
  size_t max_items = 1'000'000;              // of one list or dictionary
  size_t max_range = 100'000;                // of range(), as in Jinja's sandbox
  size_t max_work_bytes = size_t{1} << 30;   // of all values made, together
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}
  const Limits& limits() const { return limits_; }

  /// Charges `count` evaluation steps.
  void step(int64_t count = 1) {
    steps_ += count;
    if (steps_ > limits_.max_steps) fail_steps();
  }
  /// Charges reading `bytes` of text.
  void scan(size_t bytes) { step(static_cast<int64_t>(bytes / 256) + 1); }
  /// Call before making a string of `bytes`.
  void text(size_t bytes);
  /// Call before making a list or dictionary of `count` items.
  void items(size_t count);
  /// Checks the size of a string that is being built, without charging it.
  void growing(size_t bytes) const;

  /// Counts one level of nesting while it lives.
  class Level {
   public:
    explicit Level(Budget& budget) : budget_(budget) {
      if (++budget_.depth_ > budget_.limits_.max_depth) budget_.fail_depth();
    }
    ~Level() { --budget_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Budget& budget_;
  };

 private:
  [[noreturn]] void fail_steps() const;
  [[noreturn]] void fail_depth();
  void charge(size_t bytes);

  Limits limits_;
  int64_t steps_ = 0;
  size_t work_bytes_ = 0;
  int depth_ = 0;
};

}  // namespace galley::text::jinja
