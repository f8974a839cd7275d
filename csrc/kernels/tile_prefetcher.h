// TilePrefetcher: prefetches the tiles of keys and values that attention reads next.
#pragma once

#include <cstdint>

#include "../memory_units.h"
#include "attention_kernels.h"
#include "fetch_line.h"

namespace pellucid {
namespace {

// Prefetches the tiles of a range, a few lines at each step of the computation over another range:
// as fast as the computation reads them. More at once would wait for memory.
template <class Fetch>
class TilePrefetcherBy {
 public:
  // Spread over `num_steps` steps of work.
  TilePrefetcherBy(const KVView& kv, const KeyRange& range, std::int64_t num_steps)
      : tile_(range.tiles),
        end_(range.tiles + range.num_tiles),
        tile_bytes_(kv.tile_bytes),
        lines_per_step_((range.num_tiles * kv.tile_bytes / kCacheLineBytes + num_steps - 1) /
                        num_steps) {}

  inline __attribute__((always_inline)) void step() {
    if (tile_ == end_) return;
    for (std::int64_t i = 0; i < lines_per_step_; ++i) {
      Fetch{}(*tile_ + at_);
      at_ += kCacheLineBytes;
    }
    if (at_ >= tile_bytes_) {
      at_ = 0;
      ++tile_;
    }
  }

 private:
  static constexpr std::int64_t kCacheLineBytes = kCacheLine;

  const std::uint8_t* const* tile_;
  const std::uint8_t* const* const end_;
  std::int64_t at_ = 0;  // bytes into *tile_
  const std::int64_t tile_bytes_;
  const std::int64_t lines_per_step_;
};

using TilePrefetcher = TilePrefetcherBy<FetchLine>;

}  // namespace
}  // namespace pellucid
