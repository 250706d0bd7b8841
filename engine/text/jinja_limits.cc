#include "engine/text/jinja_limits.h"

#include "engine/core/strings.h"

namespace galley::text::jinja {

void Budget::fail_steps() const {
  throw Failure(cat("the template took more than ", limits_.max_steps, " evaluation steps"));
}

void Budget::fail_depth() {
  --depth_;  // the Level that failed is never destroyed
  throw Failure(
      cat("the template nests deeper than ", limits_.max_depth, " levels (endless recursion?)"));
}

void Budget::charge(size_t bytes) {
  work_bytes_ += bytes;
  if (work_bytes_ > limits_.max_work_bytes) {
    throw Failure(cat("the template made values of more than ",
                      format_bytes(static_cast<double>(limits_.max_work_bytes)), " in total"));
  }
}

void Budget::growing(size_t bytes) const {
  if (bytes > limits_.max_text_bytes) {
    throw Failure(cat("the template made a text of more than ",
                      format_bytes(static_cast<double>(limits_.max_text_bytes))));
  }
}

void Budget::text(size_t bytes) {
  growing(bytes);
  charge(bytes);
  scan(bytes);
}

void Budget::items(size_t count) {
  if (count > limits_.max_items) {
    throw Failure(cat("the template made a list of more than ", limits_.max_items, " items"));
  }
  charge(count * 64);
  step(static_cast<int64_t>(count / 8) + 1);
}

}  // namespace galley::text::jinja
