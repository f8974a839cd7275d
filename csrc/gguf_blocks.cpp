// Unpacks the blocks of GGUF's quantized types into codes, scales and minimums.
#include "gguf_blocks.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace pellucid {
namespace {

constexpr int kSmallBlock = 32, kLargeBlock = 256;  // inputs
constexpr int kScaleBytes = 2;                      // f16
constexpr int kPackedScaleBytes = 12;               // of Q4_K and Q5_K
constexpr std::uint16_t kF16Sign = 0x8000, kF16Exponent = 0x7c00;

// Two neighbouring inputs: the low halves of both bytes as a byte of two codes, and the high
// halves.
std::uint8_t low_pair(std::uint16_t two) {
  return static_cast<std::uint8_t>((two & 0x0f) | (two >> 4 & 0xf0));
}
std::uint8_t high_pair(std::uint16_t two) {
  return static_cast<std::uint8_t>((two >> 4 & 0x0f) | (two >> 8 & 0xf0));
}

// Codes of 4 bits in `size` bytes: all low halves come first, then all high ones.
template <int size>
void pack_halves(const std::uint8_t* halves, std::uint8_t* codes) {
  for (int i = 0; i < size / 2; ++i) {
    const auto two = static_cast<std::uint16_t>(halves[2 * i] | halves[2 * i + 1] << 8);
    codes[i] = low_pair(two);
    codes[size / 2 + i] = high_pair(two);
  }
}

void copy_f16(const std::uint8_t* from, std::uint16_t* to, std::uint16_t flipped = 0) {
  std::uint16_t number;
  std::memcpy(&number, from, sizeof(number));
  *to = number ^ flipped;
}

std::uint16_t* f16(void* array) { return static_cast<std::uint16_t*>(array); }
std::uint8_t* bytes(void* array) { return static_cast<std::uint8_t*>(array); }

// Unpacks the scales and minimums of the 8 groups of a block: 16 numbers of 6 bits in 12 bytes. The
// 12 bytes are three rows of four: scales 0..3, minimums 0..3, and the low 4 bits of scales and
// minimums 4..7, whose upper two bits are the upper two bits of the first two rows.
void unpack_k_scales(const std::uint8_t* packed, std::uint8_t* scales, std::uint8_t* minimums) {
  for (int i = 0; i < 4; ++i) {
    const int scale = packed[i], minimum = packed[4 + i], low = packed[8 + i];
    scales[i] = static_cast<std::uint8_t>(scale & 63);
    minimums[i] = static_cast<std::uint8_t>(minimum & 63);
    scales[4 + i] = static_cast<std::uint8_t>((low & 15) | (scale >> 2 & 48));
    minimums[4 + i] = static_cast<std::uint8_t>(low >> 4 | (minimum >> 2 & 48));
  }
}

// Each function unpacks one block, the `index`-th of all.

void q8_0(const std::uint8_t* block, std::int64_t index, const WeightTarget& target) {
  copy_f16(block, f16(target.scales) + index);
  std::memcpy(bytes(target.weights) + index * kSmallBlock, block + kScaleBytes, kSmallBlock);
}

void q4_0(const std::uint8_t* block, std::int64_t index, const WeightTarget& target) {
  copy_f16(block, f16(target.scales) + index);
  pack_halves<16>(block + kScaleBytes, bytes(target.weights) + index * 16);
}

void q4_1(const std::uint8_t* block, std::int64_t index, const WeightTarget& target) {
  copy_f16(block, f16(target.scales) + index);
  copy_f16(block + kScaleBytes, f16(target.minimums) + index);
  pack_halves<16>(block + 2 * kScaleBytes, bytes(target.weights) + index * 16);
}

// Codes of 5 bits: 32 fifth bits, then 16 bytes of halves.
void unpack_fifth_bits(const std::uint8_t* block, int zero_point, std::uint8_t* codes) {
  std::uint32_t fifth;
  std::memcpy(&fifth, block, sizeof(fifth));
  const std::uint8_t* const halves = block + sizeof(fifth);
  for (int i = 0; i < 16; ++i) {
    const int low = (halves[i] & 15) | static_cast<int>(fifth >> i & 1) << 4;
    const int high = halves[i] >> 4 | static_cast<int>(fifth >> (16 + i) & 1) << 4;
    codes[i] = static_cast<std::uint8_t>(low - zero_point);
    codes[16 + i] = static_cast<std::uint8_t>(high - zero_point);
  }
}

void q5_0(const std::uint8_t* block, std::int64_t index, const WeightTarget& target) {
  copy_f16(block, f16(target.scales) + index);
  unpack_fifth_bits(block + kScaleBytes, 16, bytes(target.weights) + index * kSmallBlock);
}

void q5_1(const std::uint8_t* block, std::int64_t index, const WeightTarget& target) {
  copy_f16(block, f16(target.scales) + index);
  copy_f16(block + kScaleBytes, f16(target.minimums) + index);
  unpack_fifth_bits(block + 2 * kScaleBytes, 0, bytes(target.weights) + index * kSmallBlock);
}

// Unpacks the header of a Q4_K or Q5_K block, and returns the address after it. GGUF subtracts
// minimums, so their sign changes here.
const std::uint8_t* unpack_k_head(const std::uint8_t* block, std::int64_t index,
                                  const WeightTarget& target) {
  copy_f16(block, target.scale_factors + index);
  copy_f16(block + kScaleBytes, target.minimum_factors + index, kF16Sign);
  const std::uint8_t* const packed = block + 2 * kScaleBytes;
  unpack_k_scales(packed, bytes(target.scales) + 8 * index, bytes(target.minimums) + 8 * index);
  return packed + kPackedScaleBytes;
}

void q4_k(const std::uint8_t* block, std::int64_t index, const WeightTarget& target) {
  const std::uint8_t* const halves = unpack_k_head(block, index, target);
  std::uint8_t* const codes = bytes(target.weights) + index * kLargeBlock / 2;
  for (int run = 0; run < 128; run += 32) pack_halves<32>(halves + run, codes + run);
}

void q5_k(const std::uint8_t* block, std::int64_t index, const WeightTarget& target) {
  const std::uint8_t* const fifth = unpack_k_head(block, index, target);
  const std::uint8_t* const halves = fifth + 32;
  std::uint8_t* codes = bytes(target.weights) + index * kLargeBlock;
  for (int group = 0; group < 8; ++group, codes += 32) {
    const std::uint8_t* const run = halves + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      codes[i] = static_cast<std::uint8_t>((run[i] >> shift & 15) | (fifth[i] >> group & 1) << 4);
    }
  }
}

void q6_k(const std::uint8_t* block, std::int64_t index, const WeightTarget& target) {
  const std::uint8_t* const halves = block;
  const std::uint8_t* const upper = block + 128;
  const std::uint8_t* const scales = block + 192;
  std::memcpy(bytes(target.scales) + 16 * index, scales, 16);
  copy_f16(scales + 16, target.scale_factors + index);
  std::uint8_t* codes = bytes(target.weights) + index * kLargeBlock;
  for (int group = 0; group < 8; ++group, codes += 32) {  // four of each half of the block
    const int half = group / 4, part = group % 4;
    const std::uint8_t* const run = halves + half * 64 + part % 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int low = run[i] >> (part / 2 * 4) & 15;
      codes[i] =
          static_cast<std::uint8_t>((low | (upper[half * 32 + i] >> (2 * part) & 3) << 4) - 32);
    }
  }
}

// The codebook has twice the numbers of MXFP4, so exponents are one less.
void mxfp4(const std::uint8_t* block, std::int64_t index, const WeightTarget& target) {
  const int exponent = block[0] == 0 ? 0 : block[0] - 1;
  bytes(target.scales)[index] = static_cast<std::uint8_t>(exponent);
  pack_halves<16>(block + 1, bytes(target.weights) + index * 16);
}

// A factor, 16 bits with the upper two bits of 8 scales, 4 bytes with their lower halves.
void iq4_xs(const std::uint8_t* block, std::int64_t index, const WeightTarget& target) {
  copy_f16(block, target.scale_factors + index);
  const int upper = block[2] | block[3] << 8;
  const std::uint8_t* const lower = block + 4;
  const std::uint8_t* const halves = block + 8;
  std::uint8_t* const codes = bytes(target.weights) + index * kLargeBlock / 2;
  for (int group = 0; group < 8; ++group) {
    const int low = lower[group / 2] >> (group % 2 * 4) & 15;
    const int scale = (low | (upper >> (2 * group) & 3) << 4) - 32;
    bytes(target.scales)[8 * index + group] = static_cast<std::uint8_t>(scale);
    pack_halves<16>(halves + 16 * group, codes + 16 * group);
  }
}

template <int kBlockBytes, void (*kUnpack)(const std::uint8_t*, std::int64_t, const WeightTarget&)>
void unpack_all(const std::uint8_t* blocks, std::int64_t first, std::int64_t count,
                const WeightTarget& target) {
  for (std::int64_t i = 0; i < count; ++i) kUnpack(blocks + i * kBlockBytes, first + i, target);
}

// The arrays of 32 rows of a matrix.
class PanelArrays {
 public:
  PanelArrays(const FormatInfo& info, std::int64_t num_inputs)
      : weights_(size(num_inputs * source_bits(info) / 8)),
        scales_(size(num_inputs / info.tile_inputs * group_scale_bytes(info))),
        minimums_(info.has_minimums ? scales_.size() : 0),
        scale_factors_(has_factors(info) ? size(num_inputs / kBlockInputs) : 0),
        minimum_factors_(info.has_minimums ? scale_factors_.size() : 0) {}

  WeightTarget target() {
    return {weights_.data(),  scales_.data(),        nullptr,
            minimums_.data(), scale_factors_.data(), minimum_factors_.data()};
  }
  WeightSource source() const {
    return {weights_.data(),  scales_.data(),        nullptr,
            minimums_.data(), scale_factors_.data(), minimum_factors_.data()};
  }

 private:
  static std::size_t size(std::int64_t of_row) {
    return static_cast<std::size_t>(kPanelOutputs * of_row);
  }

  std::vector<std::uint8_t> weights_, scales_, minimums_;
  std::vector<std::uint16_t> scale_factors_, minimum_factors_;
};

}  // namespace

const BlockType kBlockTypes[kNumBlockTypes] = {
    {"Q8_0", Format::kInt8, kSmallBlock, 34, &unpack_all<34, q8_0>, 1, {0}},
    {"Q4_0", Format::kInt4, kSmallBlock, 18, &unpack_all<18, q4_0>, 1, {0}},
    {"Q4_1", Format::kInt4Min, kSmallBlock, 20, &unpack_all<20, q4_1>, 2, {0, 2}},
    {"Q5_0", Format::kInt8, kSmallBlock, 22, &unpack_all<22, q5_0>, 1, {0}},
    {"Q5_1", Format::kInt8Min, kSmallBlock, 24, &unpack_all<24, q5_1>, 2, {0, 2}},
    {"Q4_K", Format::kInt4K, kLargeBlock, 144, &unpack_all<144, q4_k>, 2, {0, 2}},
    {"Q5_K", Format::kInt5K, kLargeBlock, 176, &unpack_all<176, q5_k>, 2, {0, 2}},
    {"Q6_K", Format::kInt6K16, kLargeBlock, 210, &unpack_all<210, q6_k>, 1, {208}},
    {"IQ4_NL", Format::kIq4Nl, kSmallBlock, 18, &unpack_all<18, q4_0>, 1, {0}},
    {"IQ4_XS", Format::kIq4Xs, kLargeBlock, 136, &unpack_all<136, iq4_xs>, 1, {0}},
    {"MXFP4", Format::kMxfp4, kSmallBlock, 17, &unpack_all<17, mxfp4>, 0, {}},
};

bool are_finite(const BlockType& type, const std::uint8_t* blocks, std::int64_t count) {
  bool finite = true;
  for (int number = 0; number < type.num_f16; ++number) {
    const std::uint8_t* at = blocks + type.f16_at[number];
    for (std::int64_t i = 0; i < count; ++i, at += type.block_bytes) {
      std::uint16_t bits;
      std::memcpy(&bits, at, sizeof(bits));
      finite &= (bits & kF16Exponent) != kF16Exponent;
    }
  }
  return finite;
}

void pack_blocks(const std::vector<BlockRows>& parts, PackedMatrix& matrix,
                 std::int64_t panel_begin, std::int64_t panel_end) {
  PanelArrays arrays(format_info(matrix.format()), matrix.num_inputs());
  const WeightTarget target = arrays.target();
  const WeightSource source = arrays.source();
  std::size_t part = 0;
  std::int64_t part_begin = 0;  // the first row of the part
  for (std::int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const std::int64_t first = panel * kPanelOutputs;
    const std::int64_t last = std::min(first + kPanelOutputs, matrix.num_outputs());
    for (std::int64_t row = first; row < last; ++row) {
      while (row - part_begin >= parts[part].num_rows) part_begin += parts[part++].num_rows;
      const BlockRows& rows = parts[part];
      const std::int64_t within = row - part_begin;
      const std::int64_t stored = rows.order == nullptr ? within : rows.order[within];
      const std::int64_t num_blocks = rows.row_bytes / rows.type->block_bytes;
      rows.type->unpack(rows.blocks + stored * rows.row_bytes, (row - first) * num_blocks,
                        num_blocks, target);
    }
    matrix.pack_panel(source, panel);
  }
}

}  // namespace pellucid
