// The interface of the elementwise kernels of one level (norms, rotations, activations, routers,
// sums): plain data and pointers. A kernel computes one row, so a row's bits depend on that row
// alone; y may be x, except where experts are chosen and weighted.
#pragma once

#include <cstdint>

namespace pellucid {

enum class ActivationFunction : std::uint8_t { kSilu, kGelu, kGeluTanh, kClampedSwish };

constexpr int kNumActivationFunctions = 4;

// What a gate passes through before it multiplies: Ops.multiply in backends/ops.py.
enum class GateFunction : std::uint8_t { kIdentity, kSigmoid, kSilu, kGeluTanh };

constexpr int kNumGateFunctions = 4;

// What a router makes of its logits: Ops.route in backends/ops.py.
enum class RouterScores : std::uint8_t { kSoftmax, kSoftmaxChosen, kSigmoid };

struct Router {
  RouterScores scores;
  std::int64_t num_experts;  // at most kMaxExperts
  std::int64_t num_chosen;   // 1 to num_experts
  bool normalize;
  float scale;
};

constexpr std::int64_t kMaxExperts = 1024;

struct ElementwiseKernels {
  // x / sqrt(mean(x^2) + eps) * weight for each of `num_vectors` vectors [size].
  void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t num_vectors,
                   std::int64_t size, float* y);
  // (x - mean) / sqrt(variance + eps) * weight + bias, likewise.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps,
                     std::int64_t num_vectors, std::int64_t size, float* y);
  // Rotates the first `dim` components of each head: component i with component i + dim / 2, by the
  // angle whose cosine and sine are cos[i] and sin[i].
  void (*rope)(const float* x, const float* cos, const float* sin, std::int64_t num_heads,
               std::int64_t head_dim, std::int64_t dim, float* y);
  // f(x) [size].
  void (*activate[kNumActivationFunctions])(const float* x, std::int64_t size, float* y);
  // f(gate) * up of x = [gate | up], [2 size] -> [size].
  void (*gated_activate[kNumActivationFunctions])(const float* x, std::int64_t size, float* y);
  // x * f(gate), both [size]; the gate is one number for all if `is_one`.
  void (*multiply[kNumGateFunctions])(const float* x, const float* gate, bool is_one,
                                      std::int64_t size, float* y);
  // The sum of the squares of x [size].
  float (*square_sum)(const float* x, std::int64_t size);
  void (*add)(const float* a, const float* b, std::int64_t size, float* y);
  void (*scale)(const float* x, float factor, std::int64_t size, float* y);
  // cap * tanh(x / cap).
  void (*softcap)(const float* x, float cap, std::int64_t size, float* y);
  // The largest of x [size], size >= 1; NaN if any is NaN.
  float (*largest)(const float* x, std::int64_t size);
  // Weights [num_experts] of logits [num_experts]; `bias` likewise, or null.
  void (*route)(const float* logits, const float* bias, const Router& router, float* weights);
  // y = the sum of weights[i] * rows[i] [size] in order, added to y if `add_to_y`.
  void (*weighted_sum)(const float* const* rows, const float* weights, std::int64_t count,
                       std::int64_t size, bool add_to_y, float* y);
};

}  // namespace pellucid
