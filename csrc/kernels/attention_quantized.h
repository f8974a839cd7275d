// Attention over keys and values in codes of 8 or 4 bits, each in a format of its own. Queries and
// probabilities become codes of 8 bits; keys of 4 bits are in bf16 until their group is complete.
#pragma once

#include <cstdint>

#include "attention_kernels.h"
#include "dimension_keys.h"
#include "quantized_keys.h"
#include "quantized_values.h"

namespace pellucid {
namespace {

// Keys are QuantizedKeys or DimensionKeys, Values QuantizedValues.
template <class Keys, class Values>
struct QuantizedAttention : Keys, Values {
  static constexpr int kMaxRows = Values::kRowsAtOnce;
  static constexpr void (*kRotateBack)(std::int64_t, float*) = Values::kAreRotated
                                                                   ? &Values::rotate_back
                                                                   : nullptr;

  // Stores a token's k and v [D].
  static void store(const KVView& kv, const float* k, const float* v, const TokenPlace& place) {
    Keys::store(kv, k, place);
    Values::store(kv, v, place.token, place.tile);
  }

  // Prefetch steps of a block of rows per tile of keys.
  static std::int64_t num_steps(const KVView& kv, std::int64_t num_rows) {
    return Keys::num_steps(kv) + Values::num_steps(kv, num_rows);
  }
};

}  // namespace
}  // namespace pellucid
