// Products of attention in register tiles: rows times columns in the layout of a packed matrix,
// [steps][columns][cell]. For scores, rows are queries, inputs are dimensions and columns are keys.
// For values, rows are probabilities, inputs are tokens and columns are dimensions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention_kernels.h"
#include "float_weights.h"
#include "quantized_tile.h"
#include "tile_prefetcher.h"

namespace pellucid {
namespace {

// Weights is a struct of float_weights.h that needs no scale. before_step(step) runs beside the
// products, while they wait for their latency.
template <class S, class Weights, int kRows, int kVectors, class F>
inline __attribute__((always_inline)) void add_float_products(
    const std::uint8_t* const (&columns)[kVectors], std::int64_t step_bytes, std::int64_t num_steps,
    const typename Weights::Input* x, std::int64_t x_stride, F before_step,
    typename S::F32 (&sums)[kRows][kVectors]) {
  for (std::int64_t step = 0; step < num_steps; ++step) {
    before_step(step);
    typename Weights::Factor w[kVectors][Weights::kStepFactors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) Weights::load(columns[v] + step * step_bytes, 0, {}, w[v]);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename Weights::Factor factor =
          Weights::broadcast(x + r * x_stride + step * Weights::kFactorInputs);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = Weights::multiply_add(sums[r][v], w[v][0], factor);
      }
    }
  }
}

// Codes is Codes8 or Codes4 of quantized_tile.h, x codes of 8 bits.
template <class S, class Codes, int kRows, int kVectors>
inline __attribute__((always_inline)) void add_code_products(
    const std::uint8_t* const (&columns)[kVectors], std::int64_t step_bytes, std::int64_t num_steps,
    const std::int8_t* x, std::int64_t x_stride, TilePrefetcher& prefetcher,
    typename S::I32 (&sums)[kRows][kVectors]) {
  for (std::int64_t step = 0; step < num_steps; ++step) {
    prefetcher.step();
    typename S::Quads w[kVectors][Codes::kQuads];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) Codes::load(columns[v] + step * step_bytes, w[v]);
#pragma GCC unroll 2
    for (int q = 0; q < Codes::kQuads; ++q) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const typename S::Quads quad =
            S::broadcast_quad(x + r * x_stride + 4 * (step * Codes::kQuads + q));
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = S::template dot<Codes::kBits>(sums[r][v], w[v][q], quad);
        }
      }
    }
  }
}

// Rows of queries at a distance that the compiler knows, so that one register addresses them all.
template <class Input, int kRows>
struct LocalQueries {
  // `scales_per_row`: in queries.scales.
  LocalQueries(const QueryRows& queries, std::int64_t padded_dim, std::int64_t row,
               std::int64_t scales_per_row)
      : scales(queries.scales + row * scales_per_row) {
    const Input* const from = static_cast<const Input*>(queries.values) + row * padded_dim;
    for (int r = 0; r < kRows; ++r) {
      __builtin_memcpy(values[r], from + r * padded_dim,
                       sizeof(Input) * static_cast<std::size_t>(padded_dim));
    }
  }

  const float* const scales;  // [kRows, scales_per_row]
  alignas(64) Input values[kRows][kMaxHeadDim];
};

// Calls f.template run<kRows, kVectors>(...) so that `num_rows` becomes a constant.
template <class F, int kRows, class... Arguments>
inline void with_rows(std::int64_t num_rows, Arguments&&... arguments) {
  if constexpr (kRows > 1) {
    if (num_rows < kRows) return with_rows<F, kRows - 1>(num_rows, arguments...);
  }
  F::template run<kRows>(arguments...);
}

}  // namespace
}  // namespace pellucid
