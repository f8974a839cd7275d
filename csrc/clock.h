// Seconds on a clock that only goes forward.
#pragma once

#include <chrono>

namespace pellucid {

inline double seconds_now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace pellucid
