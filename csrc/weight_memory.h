// One allocation for all weight matrices of a model.
#pragma once

#include <atomic>
#include <cstddef>

#include "aligned_buffer.h"

namespace pellucid {

// One mapping in huge pages, of which matrices take parts one after another: none of them is
// rounded up to huge pages of its own.
class WeightMemory {
 public:
  // For about `num_bytes`; a little more is there, for padding. Throws std::bad_alloc.
  explicit WeightMemory(std::size_t num_bytes);

  // Zeroed, on cache lines of its own; null if there is not so much left. Lives as long as this.
  std::byte* take(std::size_t num_bytes);

 private:
  AlignedBuffer buffer_;
  std::atomic<std::size_t> num_taken_{0};
};

}  // namespace pellucid
