// The shapes that operations on rows are tested with.
#pragma once

#include "tests/engine/device/device_testing.h"

namespace galley::device {

inline constexpr int64_t kRows[] = {1, 3, 33, 200};
inline constexpr int64_t kCols[] = {1, 3, 17, 31, 64, 100, 257, 576};

/// body(device, rows, cols) for all of them.
inline void for_every_shape(const std::function<void(TestDevice&, int64_t, int64_t)>& body) {
  for_every_device([&](TestDevice& t) {
    for (const int64_t rows : kRows) {
      for (const int64_t cols : kCols) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << cols);
        body(t, rows, cols);
        if (::testing::Test::HasFailure()) return;
      }
    }
  });
}

}  // namespace galley::device
