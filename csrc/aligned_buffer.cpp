#include "aligned_buffer.h"

#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace pellucid {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

AlignedBuffer::AlignedBuffer(std::size_t num_bytes) : num_bytes_(num_bytes) {
  if (num_bytes == 0) return;
  const std::size_t alignment = num_bytes >= kHugePage ? kHugePage : kCacheLine;
  // aligned_alloc wants a multiple of the alignment, the advice whole pages; the rest is never
  // touched below, so it costs address space only.
  const std::size_t rounded = (num_bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  bytes_.reset(static_cast<std::byte*>(memory));
#if defined(__linux__)
  if (alignment == kHugePage) madvise(memory, rounded, MADV_HUGEPAGE);
#endif
  std::memset(memory, 0, num_bytes);
}

void AlignedBuffer::Free::operator()(std::byte* bytes) const { std::free(bytes); }

}  // namespace pellucid
