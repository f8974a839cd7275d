// AlignedBuffer: zeroed, aligned memory for weights, the KV cache and scratch.
#pragma once

#include <cstddef>
#include <memory>

namespace pellucid {

// Aligned to cache lines. From 2 MiB on aligned to huge pages, which the system is asked for:
// streaming weights through 4 KiB pages costs a page walk each, twice that in a virtual machine.
// Such memory is the system's zeros until it is written, so that the threads that fill it share the
// work.
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
    void* mapping;  // null: from aligned_alloc
    std::size_t mapping_bytes;
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte[], Free> bytes_;
  std::size_t num_bytes_ = 0;
};

}  // namespace pellucid
