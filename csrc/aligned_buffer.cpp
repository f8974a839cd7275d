// AlignedBuffer: aligned memory from the heap, or in huge pages from the operating system.
#include "aligned_buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "memory_units.h"
#include "rounding.h"

namespace pellucid {

AlignedBuffer::AlignedBuffer(std::size_t num_bytes) : num_bytes_(num_bytes) {
  if (num_bytes == 0) return;
  if (num_bytes > std::numeric_limits<std::size_t>::max() / 2) throw std::bad_alloc();
  if (num_bytes < kHugePage) {
    void* const memory = std::aligned_alloc(kCacheLine, round_up(num_bytes, kCacheLine));
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory, 0, num_bytes);
    bytes_.reset(static_cast<std::byte*>(memory));
    return;
  }
  // One huge page more than needed, so that an aligned one is among them. Untouched pages cost
  // nothing.
  const std::size_t rounded = round_up(num_bytes, kHugePage);
  const std::size_t mapping_bytes = rounded + kHugePage;
  void* const mapping =
      mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  const std::size_t skipped =
      (kHugePage - reinterpret_cast<std::uintptr_t>(mapping) % kHugePage) % kHugePage;
  std::byte* const memory = static_cast<std::byte*>(mapping) + skipped;
  bytes_ = {memory, Free{mapping, mapping_bytes}};
#if defined(__linux__)
  madvise(memory, rounded, MADV_HUGEPAGE);
#endif
}

void AlignedBuffer::Free::operator()(std::byte* bytes) const {
  if (mapping != nullptr) {
    munmap(mapping, mapping_bytes);
  } else {
    std::free(bytes);
  }
}

}  // namespace pellucid
