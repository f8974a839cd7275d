// The interface of the kernels that draw tokens from rows of logits: plain data and pointers.
#pragma once

#include <cstdint>

namespace pellucid {

// Tokens of a group: their noise is in neighbouring blocks (philox.h), and kernels process whole
// groups.
constexpr std::int64_t kGroupTokens = 128;

// What the noise is a function of: the request's seed, the completion's stream, and the position of
// the token to be drawn.
struct NoiseKey {
  std::uint32_t seed_low;
  std::uint32_t seed_high;
  std::uint32_t stream;
  std::uint32_t position;
};

// Tokens [begin, end) of a row of logits; begin is the first of a group, and so is end, unless it
// is the row's.
struct Columns {
  const float* logits;
  const std::uint32_t* allowed;  // a bit for each token of the row, the lowest first; or null: all
  std::int64_t begin;
  std::int64_t end;
  const float* above;  // [kGroupTokens] bounds: only greater logits of a group take part; null: all
  float* weights;      // of the row's groups: `race` leaves its weights here, and `mass` reads them
};

// The conversion of logits to weights: 2^((logit - peak) * sharpness).
struct Weighing {
  float peak;
  float sharpness;
};

// The first to arrive so far, at noise / weight; of equals the lower token.
struct Arrival {
  double time;
  std::int64_t token;  // -1: none yet
};

struct SamplingKernels {
  // The greatest logit that takes part; -infinity if none does.
  float (*peak)(const Columns& columns);
  // Returns the mass of all tokens that take part. Tokens with a weight of at least `min_weight`
  // race against `first`.
  std::int64_t (*race)(const Columns& columns, const Weighing& weighing, float min_weight,
                       const NoiseKey& key, Arrival& first);
  // Returns the mass alone.
  std::int64_t (*mass)(const Columns& columns);
};

}  // namespace pellucid
