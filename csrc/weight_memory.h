// Memory for all matrices of a model.
#pragma once

#include <atomic>
#include <cstddef>
#include <thread>

#include "aligned_buffer.h"

namespace pellucid {

// One mapping in huge pages, of which matrices take parts one after another: none of them is
// rounded up to huge pages of its own. A thread asks the system for the pages meanwhile, ahead of
// those who write them: zeroing a gigabyte takes a tenth of a second, and many times that in a
// virtual machine whose host has yet to find the memory.
class WeightMemory {
 public:
  // For about `num_bytes`; a little more is there, for padding. Throws std::bad_alloc.
  explicit WeightMemory(std::size_t num_bytes);
  ~WeightMemory();
  WeightMemory(const WeightMemory&) = delete;
  WeightMemory& operator=(const WeightMemory&) = delete;

  // Zeroed, on cache lines of its own; null if there is not so much left. Lives as long as this.
  std::byte* take(std::size_t num_bytes);

 private:
  void ask_for_pages(std::size_t num_bytes) const;

  AlignedBuffer buffer_;
  std::atomic<std::size_t> num_taken_{0};
  std::atomic<bool> is_ending_{false};
  std::thread thread_;
};

}  // namespace pellucid
