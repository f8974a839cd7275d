// Cells of codes in a tile, and how vectors become codes.
#pragma once

#include <cstdint>

#include "attention_kernels.h"
#include "kv_quantizer.h"

namespace pellucid {
namespace {

constexpr int kCodeCellBytes = 4;

// Puts the code of `input` of a cell of kBits-bit codes, moved to be at least 0 if it must be.
template <int kBits>
inline void put_code(std::uint8_t* cell, std::int64_t input, int code) {
  std::uint8_t& byte = cell[input % 4];
  if constexpr (kBits == 8) {
    byte = static_cast<std::uint8_t>(code);
  } else {
    const int shift = input < 4 ? 0 : 4;
    byte = static_cast<std::uint8_t>((byte & (0xf0 >> shift)) | code << shift);
  }
}

// Quantizes x [size], of whole groups with 4 bits, in groups of `group_dims`. Calls put(d, code)
// for every dimension [0, padded) and sets scales[group * kTileTokens].
template <class S, int kBits, class F>
inline void quantize_vector(const float* x, std::int64_t size, std::int64_t padded,
                            std::int64_t group_dims, std::uint16_t* scales, F put) {
  for (std::int64_t first = 0; first < padded; first += group_dims, scales += kTileTokens) {
    const std::int64_t dims = padded - first < group_dims ? padded - first : group_dims;
    alignas(64) std::int8_t codes[kMaxHeadDim];
    if constexpr (kBits == 4) {
      *scales = KVQuantizer<S, 4>::quantize(x + first, codes);
    } else {
      const std::int64_t rest = size - first;
      *scales = KVQuantizer<S, 8>::quantize(x + first, rest < dims ? rest : dims, dims, codes);
    }
    for (std::int64_t d = 0; d < dims; ++d) put(first + d, codes[d]);
  }
}

// bf16 [key_groups][16 tokens], or [padded_dim] factors of dimensions; and [value_groups][16
// tokens].
inline const std::uint16_t* key_scales(const KVView& kv, const std::uint8_t* tile) {
  return reinterpret_cast<const std::uint16_t*>(tile + kv.scale_offset);
}
inline const std::uint16_t* value_scales(const KVView& kv, const std::uint8_t* tile) {
  return reinterpret_cast<const std::uint16_t*>(tile + kv.value_scale_offset);
}
inline std::uint16_t* key_scales(const KVView& kv, std::uint8_t* tile) {
  return reinterpret_cast<std::uint16_t*>(tile + kv.scale_offset);
}
inline std::uint16_t* value_scales(const KVView& kv, std::uint8_t* tile) {
  return reinterpret_cast<std::uint16_t*>(tile + kv.value_scale_offset);
}

}  // namespace
}  // namespace pellucid
