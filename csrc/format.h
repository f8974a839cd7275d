// The formats of weight matrices in memory, and the facts about each that packing and kernels
// share.
#pragma once

#include <cstdint>

namespace pellucid {

// An integer code stands for scale * (code - zero point) + minimum, or for scale * its number in a
// codebook. The names are those of EngineConfig.quantization and of files. The formats from
// kInt8Min on hold what was quantized elsewhere, without changing a value.
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
  kInt5K,    // groups of 32, codes 0..31; scale and minimum are s8 times an f16 of 256 inputs
  kInt4K,    // likewise, codes 0..15, zero point 0
  kInt6K16,  // groups of 16, codes -32..31, scales likewise
  kInt4K16,  // groups of 16, scales and minimums likewise, codes 0..15, zero point 0
  kMxfp4,    // groups of 32, power-of-two scale, codebook e2m1 (OCP Microscaling Formats)
  kIq4Nl,    // groups of 32, f16 scale, codebook of GGUF's IQ4_NL
  kIq4Xs,    // groups of 32, the same codebook; scale is s8 times an f16 of 256 inputs
  kNf4,      // groups of 64, f16 scale, codebook of normal floats (QLoRA)
  kInt4G64,  // groups of 64, otherwise as kInt4
  kInt4G64Zp,
  kInt4S16,  // groups of 16, scales as kInt6K16, codes -8..7 stored + 8
};

constexpr int kNumFormats = 22;

// How the scale of a code is stored, and how many codes share it.
enum class ScaleKind : std::uint8_t {
  kNone,      // floats
  kF32,       // one per output
  kF16,       // one per group
  kExponent,  // one per group, a byte e: 2^(e - 127), and 0 for e = 0
  kProduct,   // one per group, s8, times an f16 factor of the group's block of inputs
};

// The numbers that codes of 4 bits stand for.
enum class Codebook : std::uint8_t {
  kNone,  // the code itself
  kE2M1,  // twice the numbers of MXFP4
  kIq4,   // of GGUF's IQ4_NL and IQ4_XS
  kNf4,   // 127 times the numbers of NF4, rounded
};

constexpr int kNumCodebooks = 4;
constexpr int kCodebookSize = 16;

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
  int weight_bits;               // of one weight or code
  bool is_integer;               // codes with scales
  int tile_inputs;               // inputs per tile; for integer formats with group scales the group
  int cell_bytes;                // one column of a step: the inputs that lie side by side
  ScaleKind scale;               // 32 scales of groups stand at the end of each tile
  bool has_zero_points = false;  // 32 u8 zero points after the scales
  bool has_minimums = false;     // 32 minimums at the very end, stored like scales
  Codebook codebook = Codebook::kNone;
};

// Internal linkage: each file that is compiled for an instruction set has a copy of its own, so the
// linker cannot use one level's code in another.
static constexpr FormatInfo kFormatInfo[kNumFormats] = {
    {"f32", 32, false, 1, 4, ScaleKind::kNone},
    {"f16", 16, false, 1, 2, ScaleKind::kNone},
    {"bf16", 16, false, 2, 4, ScaleKind::kNone},
    {"int8", 8, true, 32, 4, ScaleKind::kF16},
    {"int8-channel", 8, true, 32, 4, ScaleKind::kF32},
    {"int4", 4, true, 32, 4, ScaleKind::kF16},
    {"int4-g128", 4, true, 128, 4, ScaleKind::kF16},
    {"int4-zp", 4, true, 32, 4, ScaleKind::kF16, true},
    {"int4-g128-zp", 4, true, 128, 4, ScaleKind::kF16, true},
    {"int8-min", 8, true, 32, 4, ScaleKind::kF16, false, true},
    {"int4-min", 4, true, 32, 4, ScaleKind::kF16, false, true},
    {"int5-k", 5, true, 32, 4, ScaleKind::kProduct, false, true},
    {"int4-k", 4, true, 32, 4, ScaleKind::kProduct, false, true},
    {"int6-k16", 6, true, 16, 4, ScaleKind::kProduct},
    {"int4-k16", 4, true, 16, 4, ScaleKind::kProduct, false, true},
    {"mxfp4", 4, true, 32, 4, ScaleKind::kExponent, false, false, Codebook::kE2M1},
    {"iq4-nl", 4, true, 32, 4, ScaleKind::kF16, false, false, Codebook::kIq4},
    {"iq4-xs", 4, true, 32, 4, ScaleKind::kProduct, false, false, Codebook::kIq4},
    {"nf4", 4, true, 64, 4, ScaleKind::kF16, false, false, Codebook::kNf4},
    {"int4-g64", 4, true, 64, 4, ScaleKind::kF16},
    {"int4-g64-zp", 4, true, 64, 4, ScaleKind::kF16, true},
    {"int4-s16", 4, true, 16, 4, ScaleKind::kProduct},
};

static constexpr const FormatInfo& format_info(Format format) {
  return kFormatInfo[static_cast<int>(format)];
}

// The numbers of each codebook. backends/quantization/formats.py has the same, with their sources.
static constexpr std::int8_t kCodebooks[kNumCodebooks][kCodebookSize] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
    {-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127},
};

static constexpr const std::int8_t (&codebook_of(const FormatInfo& info))
    [kCodebookSize] { return kCodebooks[static_cast<int>(info.codebook)]; }

static constexpr bool has_codebook(const FormatInfo& info) {
  return info.codebook != Codebook::kNone;
}

// Codes of 5 and 6 bits: four bits of each stand as in formats of 4 bits, and the upper bits of a
// tile in one step behind them. In the arrays of files such codes take a byte.
static constexpr bool has_upper_bits(const FormatInfo& info) {
  return info.weight_bits == 5 || info.weight_bits == 6;
}

// Bits of a weight or code in the arrays of files.
static constexpr int source_bits(const FormatInfo& info) {
  return has_upper_bits(info) ? 8 : info.weight_bits;
}

static constexpr bool has_channel_scales(const FormatInfo& info) {
  return info.scale == ScaleKind::kF32;
}

static constexpr bool has_group_scales(const FormatInfo& info) {
  return info.scale != ScaleKind::kNone && info.scale != ScaleKind::kF32;
}

static constexpr bool has_factors(const FormatInfo& info) {
  return info.scale == ScaleKind::kProduct;
}

// Bytes of weights or codes in a tile, without scales.
static constexpr std::int64_t tile_weight_bytes(const FormatInfo& info) {
  return std::int64_t{kPanelOutputs} * info.tile_inputs * info.weight_bits / 8;
}

// Bytes of one group's scale, and of its minimum if it has one.
static constexpr int group_scale_bytes(const FormatInfo& info) {
  if (!has_group_scales(info)) return 0;
  return info.scale == ScaleKind::kF16 ? 2 : 1;
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
  return has_factors(info) ? 2 * kPanelOutputs * (info.has_minimums ? 2 : 1) : 0;
}

// Where the factors of a tile's scales begin, in bytes from the end of the tiles.
static constexpr std::int64_t factors_of_tile(const FormatInfo& info, std::int64_t tile) {
  return has_factors(info) ? tile / (kBlockInputs / info.tile_inputs) * factor_bytes(info) : 0;
}

// The zero point of codes in a packed matrix, in formats without zero points per group; of the
// numbers of a codebook.
static constexpr int implied_zero_point(const FormatInfo& info) {
  const bool is_plain = !info.is_integer || has_codebook(info);
  if (is_plain || (info.has_minimums && info.weight_bits < 8)) return 0;
  return 1 << (info.weight_bits - 1);
}

}  // namespace pellucid
