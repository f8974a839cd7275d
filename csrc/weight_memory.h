// WeightMemory: where the weight matrices of a model lie, one allocation or one file.
#pragma once

#include <atomic>
#include <cstddef>

#include "aligned_buffer.h"

namespace pellucid {

// Memory of which matrices take parts one after another.
class WeightMemory {
 public:
  virtual ~WeightMemory() = default;

  // Returns zeroed memory on cache lines of its own, which lives as long as this object; null if
  // less than `num_bytes` are left.
  virtual std::byte* take(std::size_t num_bytes) = 0;

  // Is told that a step is about to read such memory.
  virtual void note_read(const std::byte* bytes, std::size_t num_bytes);
};

// One mapping in huge pages, so that no matrix is rounded up to whole huge pages.
class WeightBuffer : public WeightMemory {
 public:
  // Allocates `num_bytes` and a little more, for padding. Throws std::bad_alloc.
  explicit WeightBuffer(std::size_t num_bytes);

  std::byte* take(std::size_t num_bytes) override;

 private:
  AlignedBuffer buffer_;
  std::atomic<std::size_t> num_taken_{0};
};

}  // namespace pellucid
