#include "weight_memory.h"

#include <sys/mman.h>

#include <system_error>

namespace pellucid {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Matrices are padded to whole panels and tiles: seldom by a percent.
std::size_t with_padding(std::size_t num_bytes) { return num_bytes + num_bytes / 32 + kHugePage; }

// Left to those who write it: what is read before the weights, such as a tokenizer, takes memory
// for a while, which shall not add to the peak.
constexpr std::size_t kNotAskedFor = std::size_t{256} << 20;

}  // namespace

WeightMemory::WeightMemory(std::size_t num_bytes) : buffer_(with_padding(num_bytes)) {
  if (num_bytes <= kNotAskedFor) return;
  try {
    thread_ = std::thread([=] { ask_for_pages(num_bytes - kNotAskedFor); });
  } catch (const std::system_error&) {
    // Pages come all the same, when they are written.
  }
}

WeightMemory::~WeightMemory() {
  is_ending_ = true;
  if (thread_.joinable()) thread_.join();
}

std::byte* WeightMemory::take(std::size_t num_bytes) {
  const std::size_t rounded = (num_bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  const std::size_t begin = num_taken_.fetch_add(rounded);
  if (begin > buffer_.size() || rounded > buffer_.size() - begin) {
    num_taken_ -= rounded;
    return nullptr;
  }
  return buffer_.data() + begin;
}

void WeightMemory::ask_for_pages([[maybe_unused]] std::size_t num_bytes) const {
#if defined(MADV_POPULATE_WRITE)
  // It writes nothing, so it may overtake those who do and be overtaken. Older kernels do not know
  // it.
  auto* const memory = const_cast<std::byte*>(buffer_.data());
  for (std::size_t begin = 0; begin < num_bytes && !is_ending_; begin += kHugePage) {
    if (madvise(memory + begin, kHugePage, MADV_POPULATE_WRITE) != 0) return;
  }
#endif
}

}  // namespace pellucid
