// WeightPrefetcher: prefetches the weights of a thread's next stage while it waits for other
// threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/fetch_line.h"
#include "memory_units.h"
#include "program.h"

namespace pellucid {
namespace {

// Prefetches the beginning of a thread's weights, some lines at a time: otherwise memory would be
// idle while threads wait for each other.
template <class Fetch>
class WeightPrefetcherBy {
 public:
  // Sets the weights to prefetch. Continues where it was if they are the same.
  void turn_to(const WeightSpan& weights) {
    if (weights.data == begin_) return;
    begin_ = next_ = weights.data;
    end_ = begin_ + std::min(weights.num_bytes, kMaxBytes);
  }

  // Prefetches the next lines; false when all are prefetched.
  bool operator()() {
    if (next_ >= end_) return false;
    for (int line = 0; line < kLinesAtATime; ++line) {
      Fetch{}(next_);
      next_ += kCacheLine;
    }
    return true;
  }

  static constexpr std::int64_t kMaxBytes = 256 << 10;  // a quarter of a second-level cache
  static constexpr int kLinesAtATime = 4;

 private:
  const std::uint8_t* begin_ = nullptr;
  const std::uint8_t* next_ = nullptr;
  const std::uint8_t* end_ = nullptr;
};

using WeightPrefetcher = WeightPrefetcherBy<FetchLine>;

}  // namespace
}  // namespace pellucid
