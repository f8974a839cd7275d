// y = x W^T + b: prepares rows, then hands panels of the weights to the level's kernels.
#include "linear.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "memory_units.h"
#include "rounding.h"

namespace pellucid {
namespace {

constexpr std::int64_t kMinBytesPerGrab = 64 << 10, kMaxBytesPerGrab = 512 << 10;

bool is_quantized(const PackedMatrix& w) {
  return format_info(w.format()).is_integer && w.activations() == Activations::kNative;
}

// Bytes of one element of a prepared row.
std::int64_t element_bytes(const PackedMatrix& w) {
  if (is_quantized(w)) return 1;
  return w.format() == Format::kBF16 && w.activations() == Activations::kNative ? 2 : 4;
}

std::int64_t row_bytes(const PackedMatrix& w) {
  const FormatInfo& info = format_info(w.format());
  if (is_quantized(w)) {
    const std::int64_t num_tiles = w.view().num_tiles;
    const std::int64_t num_groups = has_group_scales(info) ? num_tiles : 1;
    return num_tiles * info.tile_inputs + num_groups * group_facts_bytes(info);
  }
  constexpr std::int64_t kMultiple = 128;  // vectors of every level write whole multiples of it
  return round_up(w.num_inputs(), kMultiple) * element_bytes(w);
}

// The distance between rows: an odd number of cache lines. At a power of two the rows of a tile
// would share one set of the first-level cache.
std::int64_t row_stride_bytes(const PackedMatrix& w) {
  constexpr std::int64_t kLineBytes = kCacheLine;
  return (ceil_div(row_bytes(w), kLineBytes) | 1) * kLineBytes;
}

PreparedRows rows_in(void* scratch, const PackedMatrix& w) {
  return {scratch, row_stride_bytes(w) / element_bytes(w)};
}

const LinearKernel& kernel_of(const KernelTable& kernels, const PackedMatrix& w) {
  return kernels.linear.kernels[static_cast<int>(w.format())][static_cast<int>(w.activations())];
}

}  // namespace

std::size_t linear_scratch_bytes(const PackedMatrix& w, std::int64_t num_rows) {
  return static_cast<std::size_t>(num_rows * row_stride_bytes(w));
}

std::int64_t panels_per_grab(const PackedMatrix& w) {
  return std::max<std::int64_t>(1, kMinBytesPerGrab / w.view().panel_bytes);
}

std::int64_t panels_per_grab_of_few_rows(const PackedMatrix& w) {
  const std::int64_t abreast =
      std::clamp<std::int64_t>(kMaxBytesPerGrab / w.view().panel_bytes, 1, kPanelsAbreast);
  return round_up(panels_per_grab(w), abreast);
}

std::int64_t rows_per_block(const KernelTable& kernels, const PackedMatrix& w) {
  return kernel_of(kernels, w).rows_per_block;
}

void linear_prepare(const KernelTable& kernels, const PackedMatrix& w, const float* x,
                    std::int64_t x_stride, std::int64_t row_begin, std::int64_t row_end,
                    void* scratch) {
  assert(0 <= row_begin && row_begin <= row_end);
  kernel_of(kernels, w).prepare(w.view(), x, x_stride, row_begin, row_end, rows_in(scratch, w));
}

bool share_prepared_rows(const PackedMatrix& a, const PackedMatrix& b) {
  return a.format() == b.format() && a.activations() == b.activations() &&
         a.num_inputs() == b.num_inputs();
}

void copy_prepared_row(const PackedMatrix& w, const void* from, std::int64_t from_row, void* to,
                       std::int64_t to_row) {
  const std::int64_t stride = row_stride_bytes(w);
  const auto* const source = static_cast<const std::byte*>(from);
  auto* const target = static_cast<std::byte*>(to);
  std::memcpy(target + to_row * stride, source + from_row * stride,
              static_cast<std::size_t>(row_bytes(w)));
}

void linear_compute(const KernelTable& kernels, const PackedMatrix& w, void* scratch,
                    std::int64_t row_begin, std::int64_t row_end, std::int64_t panel_begin,
                    std::int64_t panel_end, const LinearOutput& output) {
  assert(0 <= row_begin && row_begin <= row_end);
  assert(0 <= panel_begin && panel_begin <= panel_end && panel_end <= w.num_panels());
  if (row_begin == row_end) return;
  kernel_of(kernels, w)
      .compute(w.view(), rows_in(scratch, w), row_begin, row_end, panel_begin, panel_end, output);
}

}  // namespace pellucid
