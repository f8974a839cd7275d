// The formats in which a weight matrix is kept in memory, and the facts about each that packing and
// kernels share.
#pragma once

#include <cstdint>

namespace pellucid {

// Integer codes stand for scale * (code - zero point). The names are those of
// EngineConfig.quantization and of files.
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
};

constexpr int kNumFormats = 9;

// What a kernel multiplies the weights with.
enum class Activations : std::uint8_t {
  kNative,  // int8 for integer formats, bf16 for bf16, f32 for f16 and f32
  kF32,     // as they come: slower, for comparing
};

constexpr int kNumActivations = 2;

// Outputs that lie side by side in a packed matrix: the unit of work of a thread.
constexpr int kPanelOutputs = 32;

struct FormatInfo {
  const char* name;
  int weight_bits;        // of one weight or code
  bool is_integer;        // codes with scales
  int tile_inputs;        // inputs per tile; for integer formats with group scales the group
  int cell_bytes;         // one column's share of a step: the inputs that lie side by side
  bool has_group_scales;  // 32 f16 scales at the end of each tile
  bool has_zero_points;   // 32 u8 zero points after the scales
};

// Internal linkage, so that files compiled for one instruction set keep their copy to themselves.
static constexpr FormatInfo kFormatInfo[kNumFormats] = {
    {"f32", 32, false, 1, 4, false, false},         {"f16", 16, false, 1, 2, false, false},
    {"bf16", 16, false, 2, 4, false, false},        {"int8", 8, true, 32, 4, true, false},
    {"int8-channel", 8, true, 32, 4, false, false}, {"int4", 4, true, 32, 4, true, false},
    {"int4-g128", 4, true, 128, 4, true, false},    {"int4-zp", 4, true, 32, 4, true, true},
    {"int4-g128-zp", 4, true, 128, 4, true, true},
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

static constexpr std::int64_t tile_bytes(const FormatInfo& info) {
  return tile_weight_bytes(info) + (info.has_group_scales ? 2 * kPanelOutputs : 0) +
         (info.has_zero_points ? kPanelOutputs : 0);
}

}  // namespace pellucid
