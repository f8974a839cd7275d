// StreamPrefetcher: prefetches the weights that a linear layer reads next, while it computes.
#pragma once

#include <cstdint>

#include "../memory_units.h"
#include "fetch_line.h"

namespace pellucid {
namespace {

// Prefetches bytes, an even share at each step of the computation. More at once would fill the
// queue of outstanding loads, and the computation's own loads would wait.
template <class Fetch>
class StreamPrefetcherBy {
 public:
  // Spread over at most `num_steps` steps.
  StreamPrefetcherBy(const std::uint8_t* bytes, std::int64_t num_bytes, std::int64_t num_steps)
      : next_(bytes),
        end_(bytes + num_bytes),
        lines_per_step_((num_bytes + kLineBytes * num_steps - 1) / (kLineBytes * num_steps)) {}

  // The same number of lines at each step, until all are prefetched: easy branches to predict.
  inline __attribute__((always_inline)) void step() {
    if (next_ >= end_) return;
    for (std::int64_t i = 0; i < lines_per_step_; ++i) {
      Fetch{}(next_);
      next_ += kLineBytes;
    }
  }

 private:
  static constexpr std::int64_t kLineBytes = kCacheLine;

  const std::uint8_t* next_;
  const std::uint8_t* const end_;
  const std::int64_t lines_per_step_;
};

using StreamPrefetcher = StreamPrefetcherBy<FetchLine>;

}  // namespace
}  // namespace pellucid
