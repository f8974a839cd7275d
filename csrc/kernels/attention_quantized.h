// Attention over keys and values in codes of 8 or 4 bits, each in a format of its own. Queries and
// probabilities become codes of 8 bits.
#pragma once

#include <cstdint>

#include "attention_kernels.h"
#include "quantized_keys.h"
#include "quantized_values.h"

namespace pellucid {
namespace {

// KeyCodes and ValueCodes are Codes8 or Codes4.
template <class S, class KeyCodes, class ValueCodes, int kRows, int kVectors>
struct QuantizedAttention : QuantizedKeys<S, KeyCodes, kVectors>,
                            QuantizedValues<S, ValueCodes, kRows, kVectors> {
 private:
  using Keys = QuantizedKeys<S, KeyCodes, kVectors>;
  using Values = QuantizedValues<S, ValueCodes, kRows, kVectors>;

 public:
  static constexpr int kMaxRows = kRows;
  static constexpr void (*kRotateBack)(std::int64_t, float*) = ValueCodes::kBits == 4
                                                                   ? &Values::rotate_back
                                                                   : nullptr;

  // Stores a token's k and v [D] in its tile.
  static void store(const KVView& kv, const float* k, const float* v, std::int64_t token,
                    std::uint8_t* tile) {
    Keys::store(kv, k, token, tile);
    Values::store(kv, v, token, tile);
  }

  // Prefetch steps of a block of rows per tile of keys.
  static std::int64_t num_steps(const KVView& kv, std::int64_t num_rows) {
    return Keys::num_steps(kv) + Values::num_steps(kv, num_rows);
  }
};

}  // namespace
}  // namespace pellucid
