// The formats of weight matrices in memory, and the facts about each that packing and kernels
// share.
#pragma once

#include <cstdint>

namespace pellucid {

// Integer codes stand for scale * (code - zero point) + minimum. The names are those of
// EngineConfig.quantization and of files; the last six hold GGUF's other blocks without changing a
// value.
enum class Format : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kInt8,         // groups of 32 inputs, f16 scale, symmetric (the numbers of GGUF's Q8_0)
  kInt8Channel,  // one f32 scale per output, symmetric
  kInt4,         // groups of 32, f16 scale, codes -8..7 stored + 8 (the numbers of GGUF's Q4_0)
  kInt4G128,     // groups of 128
  kInt4Zp,       // groups of 32, codes 0..15, a zero point per group
  kInt4G128Zp,
  kInt8Min,  // groups of 32, f16 scale and minimum
  kInt4Min,  // likewise, codes 0..15, zero point 0
  kInt8K,    // groups of 32; scale and minimum are s8 times an f16 of 256 inputs
  kInt4K,    // likewise, codes 0..15, zero point 0
  kInt8K16,  // groups of 16, scales likewise, symmetric
  kInt4K16,  // groups of 16, scales and minimums likewise, codes 0..15, zero point 0
};

constexpr int kNumFormats = 15;

// The format of the activations that a kernel multiplies the weights with.
enum class Activations : std::uint8_t {
  kNative,  // int8 for integer formats, bf16 for bf16, f32 for f16 and f32
  kF32,     // unrounded: slower, for comparisons
};

constexpr int kNumActivations = 2;

// Outputs of a panel, which lie side by side in a packed matrix: the unit of work of a thread.
constexpr int kPanelOutputs = 32;

// Inputs that share the f16 factors of their groups' scales, in formats with factors.
constexpr int kBlockInputs = 256;

struct FormatInfo {
  const char* name;
  int weight_bits;        // of one weight or code
  bool is_integer;        // codes with scales
  int tile_inputs;        // inputs per tile; for integer formats with group scales the group
  int cell_bytes;         // one column of a step: the inputs that lie side by side
  bool has_group_scales;  // 32 scales at the end of each tile
  bool has_zero_points;   // 32 u8 zero points after the scales
  bool has_minimums;      // 32 minimums at the very end
  bool has_factors;       // scales and minimums are s8, to be multiplied with f16, instead of f16
};

// Internal linkage: each file that is compiled for an instruction set has a copy of its own, so the
// linker cannot use one level's code in another.
static constexpr FormatInfo kFormatInfo[kNumFormats] = {
    {"f32", 32, false, 1, 4, false, false, false, false},
    {"f16", 16, false, 1, 2, false, false, false, false},
    {"bf16", 16, false, 2, 4, false, false, false, false},
    {"int8", 8, true, 32, 4, true, false, false, false},
    {"int8-channel", 8, true, 32, 4, false, false, false, false},
    {"int4", 4, true, 32, 4, true, false, false, false},
    {"int4-g128", 4, true, 128, 4, true, false, false, false},
    {"int4-zp", 4, true, 32, 4, true, true, false, false},
    {"int4-g128-zp", 4, true, 128, 4, true, true, false, false},
    {"int8-min", 8, true, 32, 4, true, false, true, false},
    {"int4-min", 4, true, 32, 4, true, false, true, false},
    {"int8-k", 8, true, 32, 4, true, false, true, true},
    {"int4-k", 4, true, 32, 4, true, false, true, true},
    {"int8-k16", 8, true, 16, 4, true, false, false, true},
    {"int4-k16", 4, true, 16, 4, true, false, true, true},
};

static constexpr const FormatInfo& format_info(Format format) {
  return kFormatInfo[static_cast<int>(format)];
}

static constexpr bool has_channel_scales(const FormatInfo& info) {
  return info.is_integer && !info.has_group_scales;
}

// Bytes of weights or codes in a tile, without scales.
static constexpr std::int64_t tile_weight_bytes(const FormatInfo& info) {
  return std::int64_t{kPanelOutputs} * info.tile_inputs * info.weight_bits / 8;
}

// Bytes of one group's scale, and of its minimum if it has one.
static constexpr int group_scale_bytes(const FormatInfo& info) {
  if (!info.has_group_scales) return 0;
  return info.has_factors ? 1 : 2;
}

// Where the parts of a tile begin: weights, scales, zero points, minimums.
static constexpr std::int64_t zero_points_at(const FormatInfo& info) {
  return tile_weight_bytes(info) + kPanelOutputs * group_scale_bytes(info);
}

static constexpr std::int64_t minimums_at(const FormatInfo& info) {
  return zero_points_at(info) + (info.has_zero_points ? kPanelOutputs : 0);
}

static constexpr std::int64_t tile_bytes(const FormatInfo& info) {
  return minimums_at(info) + (info.has_minimums ? kPanelOutputs * group_scale_bytes(info) : 0);
}

// Behind the tiles of a panel stand, for each block of inputs, [32] f16 factors of scales and then
// of minimums; or for int8-channel the [32] f32 scales.
static constexpr std::int64_t factor_bytes(const FormatInfo& info) {
  return info.has_factors ? 2 * kPanelOutputs * (info.has_minimums ? 2 : 1) : 0;
}

// Where the factors of a tile's scales begin, in bytes from the end of the tiles.
static constexpr std::int64_t factors_of_tile(const FormatInfo& info, std::int64_t tile) {
  return info.has_factors ? tile / (kBlockInputs / info.tile_inputs) * factor_bytes(info) : 0;
}

// The zero point of codes in a packed matrix, in formats without zero points per group.
static constexpr int implied_zero_point(const FormatInfo& info) {
  if (!info.is_integer || (info.has_minimums && info.weight_bits == 4)) return 0;
  return 1 << (info.weight_bits - 1);
}

}  // namespace pellucid
