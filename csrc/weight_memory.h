// WeightMemory: one allocation for all weight matrices of a model.
#pragma once

#include <atomic>
#include <cstddef>

#include "aligned_buffer.h"

namespace pellucid {

// One mapping in huge pages, of which matrices take parts one after another, so that no matrix is
// rounded up to whole huge pages.
class WeightMemory {
 public:
  // Allocates `num_bytes` and a little more, for padding. Throws std::bad_alloc.
  explicit WeightMemory(std::size_t num_bytes);

  // Returns zeroed memory on cache lines of its own, which lives as long as this object; null if
  // less than `num_bytes` are left.
  std::byte* take(std::size_t num_bytes);

 private:
  AlignedBuffer buffer_;
  std::atomic<std::size_t> num_taken_{0};
};

}  // namespace pellucid
