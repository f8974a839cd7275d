// WeightBuffer: hands out parts of one allocation to weight matrices.
#include "weight_memory.h"

#include "memory_units.h"
#include "rounding.h"

namespace pellucid {
namespace {

// Matrices are padded to whole panels and tiles: seldom by a percent.
std::size_t with_padding(std::size_t num_bytes) { return num_bytes + num_bytes / 32 + kHugePage; }

}  // namespace

void WeightMemory::note_read(const std::byte*, std::size_t) {}

WeightBuffer::WeightBuffer(std::size_t num_bytes) : buffer_(with_padding(num_bytes)) {}

std::byte* WeightBuffer::take(std::size_t num_bytes) {
  const std::size_t rounded = round_up(num_bytes, kCacheLine);
  const std::size_t begin = num_taken_.fetch_add(rounded);
  if (begin > buffer_.size() || rounded > buffer_.size() - begin) {
    num_taken_ -= rounded;
    return nullptr;
  }
  return buffer_.data() + begin;
}

}  // namespace pellucid
