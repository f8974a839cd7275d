// Zeroed memory for weights, cache and scratch.
#pragma once

#include <cstddef>
#include <memory>

namespace pellucid {

// Aligned to cache lines; from 2 MiB on to huge pages, which the system is asked for: streaming
// weights through 4 KiB pages costs a page walk each, twice that in a virtual machine.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Throws std::bad_alloc.
  explicit AlignedBuffer(std::size_t num_bytes);

  std::byte* data() { return bytes_.get(); }
  const std::byte* data() const { return bytes_.get(); }
  std::size_t size() const { return num_bytes_; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte[], Free> bytes_;
  std::size_t num_bytes_ = 0;
};

}  // namespace pellucid
