#include "linear.h"

#include <cassert>

namespace pellucid {
namespace {

constexpr std::int64_t kAlignment = 64;

// Rows further apart than they need to be, for their own sake: at a power of two the rows of a tile
// would share one set of the first-level cache.
constexpr std::int64_t kRowPaddingBytes = 64;

std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Inputs of a row that kernels read, and that vectors of any level write whole.
constexpr std::int64_t kInputMultiple = 128;

// Where the parts of the scratch begin, in bytes.
struct ScratchLayout {
  std::int64_t stride;  // elements
  std::int64_t num_groups;
  bool has_sums;
  std::int64_t scales;
  std::int64_t raises;
  std::int64_t starts;
  std::int64_t sums;
  std::int64_t num_bytes;
};

int element_bytes(const PackedMatrix& w) {
  if (w.activations() == Activations::kF32) return 4;
  const FormatInfo& info = format_info(w.format());
  if (info.is_integer) return 1;
  return w.format() == Format::kBF16 ? 2 : 4;
}

ScratchLayout scratch_layout(const PackedMatrix& w, std::int64_t num_rows) {
  const std::int64_t bytes = element_bytes(w);
  const FormatInfo& info = format_info(w.format());
  const bool is_quantized = info.is_integer && w.activations() == Activations::kNative;
  ScratchLayout layout;
  layout.stride = round_up(w.num_inputs(), kInputMultiple) + kRowPaddingBytes / bytes;
  layout.num_groups = info.has_group_scales ? w.view().num_tiles : 1;
  const auto numbers = [&](std::int64_t count) { return round_up(count * 4, kAlignment); };
  const std::int64_t row_bytes = is_quantized ? numbers(num_rows) : 0;
  const std::int64_t group_bytes = is_quantized ? numbers(num_rows * layout.num_groups) : 0;
  layout.scales = round_up(num_rows * layout.stride * bytes, kAlignment);
  layout.raises = layout.scales + row_bytes;
  layout.starts = layout.raises + group_bytes;
  layout.sums = layout.starts + group_bytes;
  layout.has_sums = is_quantized && info.has_minimums;
  layout.num_bytes = layout.sums + (layout.has_sums ? group_bytes : 0);
  return layout;
}

PreparedRows rows_in(void* scratch, const ScratchLayout& layout) {
  auto* const bytes = static_cast<std::byte*>(scratch);
  return {bytes,
          layout.stride,
          reinterpret_cast<float*>(bytes + layout.scales),
          reinterpret_cast<std::int32_t*>(bytes + layout.raises),
          reinterpret_cast<std::int32_t*>(bytes + layout.starts),
          layout.has_sums ? reinterpret_cast<float*>(bytes + layout.sums) : nullptr,
          layout.num_groups};
}

const LinearKernel& kernel_of(const KernelTable& kernels, const PackedMatrix& w) {
  return kernels.linear.kernels[static_cast<int>(w.format())][static_cast<int>(w.activations())];
}

}  // namespace

std::size_t linear_scratch_bytes(const PackedMatrix& w, std::int64_t num_rows) {
  return static_cast<std::size_t>(scratch_layout(w, num_rows).num_bytes);
}

void linear_prepare(const KernelTable& kernels, const PackedMatrix& w, const float* x,
                    std::int64_t x_stride, std::int64_t row_begin, std::int64_t row_end,
                    std::int64_t num_rows, void* scratch) {
  assert(0 <= row_begin && row_begin <= row_end && row_end <= num_rows);
  kernel_of(kernels, w)
      .prepare(w.view(), x, x_stride, row_begin, row_end,
               rows_in(scratch, scratch_layout(w, num_rows)));
}

void linear_compute(const KernelTable& kernels, const PackedMatrix& w, void* scratch,
                    std::int64_t num_rows, std::int64_t row_begin, std::int64_t row_end,
                    std::int64_t panel_begin, std::int64_t panel_end, const LinearOutput& output) {
  assert(0 <= row_begin && row_begin <= row_end && row_end <= num_rows);
  assert(0 <= panel_begin && panel_begin <= panel_end && panel_end <= w.num_panels());
  if (row_begin == row_end) return;
  kernel_of(kernels, w)
      .compute(w.view(), rows_in(scratch, scratch_layout(w, num_rows)), row_begin, row_end,
               panel_begin, panel_end, output);
}

}  // namespace pellucid
