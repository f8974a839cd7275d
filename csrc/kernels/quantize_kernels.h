// The interface of the kernels that quantize weights, 16 groups side by side: plain data and
// pointers to one level's kernels. Groups are columns, [size][16], so each group's sums run over
// its weights in order, and its bits do not depend on the groups beside it.
#pragma once

#include <cstdint>

namespace pellucid {

constexpr int kQuantizedGroups = 16;

// The codes of each group: code = round(x * inverse scale), clipped to [lowest, highest], + offset.
struct CodeRanges {
  float inverses[kQuantizedGroups];
  float lowest[kQuantizedGroups];
  float highest[kQuantizedGroups];
  float offsets[kQuantizedGroups];
};

struct QuantizeKernels {
  // max |x| of each group.
  void (*largest)(const float* x, std::int64_t size, float* largest);
  // Scales of codes -8 .. 7 with the least squared error among a few grids.
  void (*fit_symmetric)(const float* x, std::int64_t size, float* scales);
  // Scales and zero points of codes 0 .. 15, likewise.
  void (*fit_zero_points)(const float* x, std::int64_t size, float* scales, float* zero_points);
  // Codes [size][16], s8 or u8.
  void (*encode)(const float* x, std::int64_t size, const CodeRanges& ranges, std::uint8_t* codes);
};

}  // namespace pellucid
