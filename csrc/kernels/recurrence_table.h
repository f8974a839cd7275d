// The kernels of recurrent layers (recurrence_kernels.h), written once for all levels.
#pragma once

#include <cstdint>

#include "lanes.h"
#include "recurrence_kernels.h"

namespace pellucid {
namespace {
namespace recurrence {

using elementwise::Lanes;
using elementwise::WholeVector;

inline void convolve(InputRows x, std::int64_t num_rows, InputRows weight, const float* bias,
                     std::int64_t kernel_size, std::int64_t num_columns, StateRows state,
                     StateRows y) {
  const std::int64_t num_before = kernel_size - 1;
  const auto row = [&](std::int64_t t) -> const float* {  // rows of the state, then those of x
    return t < num_before ? state.data + t * state.stride : x.data + (t - num_before) * x.stride;
  };
  for (std::int64_t t = 0; t < num_rows; ++t) {
    float* const to = y.data + t * y.stride;
    elementwise::map(num_columns, to, [&](auto at) {
      Lanes sum = bias == nullptr ? Lanes(0.0f) : at(bias);
      for (std::int64_t k = 0; k < kernel_size; ++k) {
        sum += at(row(t + k)) * at(weight.data + k * weight.stride);
      }
      return sum;
    });
  }
  for (std::int64_t t = 0; t < num_before; ++t) {
    float* const to = state.data + t * state.stride;
    const float* const from = row(t + num_rows);  // a later row of the state, or one of x
    elementwise::map(num_columns, to, [&](auto at) { return at(from); });
  }
}

// Calls f(i, sums) for the rows of a state, with the first of two sums for even rows and the second
// for odd ones, so that an addition need not wait for the one before it.
template <int Width, class F>
inline __attribute__((always_inline)) void for_each_row(std::int64_t num_rows,
                                                        Lanes (&sums)[2][Width], F f) {
  for (int w = 0; w < Width; ++w) sums[0][w] = sums[1][w] = Lanes(0.0f);
  std::int64_t i = 0;
  for (; i + 2 <= num_rows; i += 2) {
    f(i, sums[0]);
    f(i + 1, sums[1]);
  }
  if (i < num_rows) f(i, sums[0]);
}

// `Width` vectors of columns at a time.
template <int Width>
inline void delta_columns(float* state, std::int64_t stride, std::int64_t key_dim,
                          const DeltaToken& token, std::int64_t column, float* y) {
  const auto place = [](int w) { return WholeVector{w * elementwise::kLanes}; };
  Lanes sums[2][Width];
  const Lanes decay = token.decay;
  for_each_row(key_dim, sums, [&](std::int64_t i, Lanes(&own)[Width]) {
    float* const row = state + i * stride;
    const Lanes k = token.k[i];
#pragma GCC unroll 4
    for (int w = 0; w < Width; ++w) {
      const Lanes s = place(w)(row) * decay;
      place(w).store(row, s);
      own[w] += s * k;
    }
  });
  Lanes errors[Width];
  for (int w = 0; w < Width; ++w) {
    errors[w] = Lanes(token.beta) * (place(w)(token.v + column) - (sums[0][w] + sums[1][w]));
  }
  for_each_row(key_dim, sums, [&](std::int64_t i, Lanes(&own)[Width]) {
    float* const row = state + i * stride;
    const Lanes k = token.k[i], q = token.q[i];
#pragma GCC unroll 4
    for (int w = 0; w < Width; ++w) {
      const Lanes s = place(w)(row) + k * errors[w];
      place(w).store(row, s);
      own[w] += s * q;
    }
  });
  for (int w = 0; w < Width; ++w) place(w).store(y + column, sums[0][w] + sums[1][w]);
}

inline void delta(StateRows state, std::int64_t key_dim, std::int64_t num_columns,
                  const DeltaToken& token, float* y) {
  constexpr int kWidth = 2;
  constexpr std::int64_t kColumns = kWidth * elementwise::kLanes;
  std::int64_t column = 0;
  for (; column + kColumns <= num_columns; column += kColumns) {
    delta_columns<kWidth>(state.data + column, state.stride, key_dim, token, column, y);
  }
  if (column < num_columns) {
    delta_columns<1>(state.data + column, state.stride, key_dim, token, column, y);
  }
}

constexpr RecurrenceKernels kernels() { return {&convolve, &delta}; }

}  // namespace recurrence
}  // namespace
}  // namespace pellucid
