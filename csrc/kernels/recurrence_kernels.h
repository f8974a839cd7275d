// The interface of the kernels of recurrent layers: plain data and pointers. A sequence is computed
// token by token, and each column of a state from that column alone, so its bits depend on the
// sequence, not on how a step cuts it or shares its columns out.
#pragma once

#include <cstdint>

namespace pellucid {

// Rows of floats at a distance of `stride`.
struct InputRows {
  const float* data;
  std::int64_t stride;
};

struct StateRows {
  float* data;
  std::int64_t stride;
};

// One token of a head with a matrix as its state.
struct DeltaToken {
  const float* q;  // [key_dim]
  const float* k;  // [key_dim]
  const float* v;  // [num_columns]
  float decay;
  float beta;
};

struct RecurrenceKernels {
  // Depthwise convolution of `num_columns` channels over `num_rows` rows x that follow the
  // `kernel_size - 1` rows of the state; y[t] = bias + sum over k of weight[k] * row t + k, in
  // order of k. `weight` has a row for each k; `bias` is null or [num_columns]. The state then
  // holds the last rows. y is not x.
  void (*convolve)(InputRows x, std::int64_t num_rows, InputRows weight, const float* bias,
                   std::int64_t kernel_size, std::int64_t num_columns, StateRows state,
                   StateRows y);
  // S *= decay; S += k (beta (v - S^T k))^T; y = S^T q, for `num_columns` columns of S, a multiple
  // of kDeltaColumns. S has key_dim rows.
  void (*delta)(StateRows state, std::int64_t key_dim, std::int64_t num_columns,
                const DeltaToken& token, float* y);
};

constexpr std::int64_t kDeltaColumns = 16;

}  // namespace pellucid
