// Prefetches the weights that a product reads next: memory is busy while arithmetic is.
#pragma once

#include <cstdint>

#include "../memory_units.h"

namespace pellucid {
namespace {

// Fetches bytes that are wanted next, an even share at each step of the work on others: more at
// once would fill the queue of loads in flight, and the work's own would wait in it. Into the
// second-level cache, for the first belongs to the work.
class StreamPrefetcher {
 public:
  // Spread over at most `num_steps` steps.
  StreamPrefetcher(const std::uint8_t* bytes, std::int64_t num_bytes, std::int64_t num_steps)
      : next_(bytes),
        end_(bytes + num_bytes),
        lines_per_step_((num_bytes + kLineBytes * num_steps - 1) / (kLineBytes * num_steps)) {}

  // As many lines at each step, until there are none: branches that a processor foresees.
  inline __attribute__((always_inline)) void step() {
    if (next_ >= end_) return;
    for (std::int64_t i = 0; i < lines_per_step_; ++i) {
      __builtin_prefetch(next_, 0, 2);
      next_ += kLineBytes;
    }
  }

 private:
  static constexpr std::int64_t kLineBytes = kCacheLine;

  const std::uint8_t* next_;
  const std::uint8_t* const end_;
  const std::int64_t lines_per_step_;
};

}  // namespace
}  // namespace pellucid
