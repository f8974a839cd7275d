// The elementwise kernels (elementwise_kernels.h), written once for all levels.
#pragma once

#include <cstdint>

#include "elementwise_kernels.h"
#include "lanes.h"

namespace pellucid {
namespace {
namespace elementwise {

inline void rms_norm(const float* x, const float* weight, float eps, std::int64_t num_vectors,
                     std::int64_t size, float* y) {
  for (std::int64_t v = 0; v < num_vectors; ++v, x += size, y += size) {
    const float squares = sum(size, [&](auto at) { return at(x) * at(x); });
    const float factor = 1.0f / __builtin_sqrtf(squares / static_cast<float>(size) + eps);
    map(size, y, [&](auto at) { return at(x) * factor * at(weight); });
  }
}

inline void layer_norm(const float* x, const float* weight, const float* bias, float eps,
                       std::int64_t num_vectors, std::int64_t size, float* y) {
  for (std::int64_t v = 0; v < num_vectors; ++v, x += size, y += size) {
    const float mean = sum(size, [&](auto at) { return at(x); }) / static_cast<float>(size);
    const float squares = sum(size, [&](auto at) {
      const Lanes centered = at(x) - mean;
      return centered * centered;
    });
    const float factor = 1.0f / __builtin_sqrtf(squares / static_cast<float>(size) + eps);
    map(size, y, [&](auto at) { return (at(x) - mean) * factor * at(weight) + at(bias); });
  }
}

inline void rope(const float* x, const float* cos, const float* sin, std::int64_t num_heads,
                 std::int64_t head_dim, std::int64_t dim, float* y) {
  const std::int64_t half = dim / 2;
  const auto rotate = [&](const float* head, float* rotated, auto at) {
    const Lanes first = at(head), second = at(head + half);
    at.store(rotated, first * at(cos) - second * at(sin));
    at.store(rotated + half, second * at(cos) + first * at(sin));
  };
  for (std::int64_t h = 0; h < num_heads; ++h, x += head_dim, y += head_dim) {
    std::int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) rotate(x, y, WholeVector{i});
    if (i < half) rotate(x, y, PartOfVector{i, half - i});
    map(head_dim - dim, y + dim, [&](auto at) { return at(x + dim); });
  }
}

struct Silu {
  inline __attribute__((always_inline)) Lanes operator()(Lanes x) const { return x * sigmoid(x); }
};

struct Gelu {
  inline __attribute__((always_inline)) Lanes operator()(Lanes x) const {
    return x * normal_cdf(x);
  }
};

// Hendrycks, Gimpel 2016. (1 + tanh(u)) / 2 is the sigmoid of 2 u.
struct GeluTanh {
  inline __attribute__((always_inline)) Lanes operator()(Lanes x) const {
    constexpr float kTwiceRootOfTwoOverPi = 1.59576912f;
    return x * sigmoid(kTwiceRootOfTwoOverPi * (x + 0.044715f * x * x * x));
  }
};

// min(a, b) and max(a, b) where neither is a NaN; a NaN in x stays one.
inline __attribute__((always_inline)) Lanes at_most(Lanes x, float limit) {
  return where_less(limit, x, limit, x);
}
inline __attribute__((always_inline)) Lanes at_least(Lanes x, float limit) {
  return where_less(x, limit, limit, x);
}

// The activation of gpt-oss: f(x) = g sigmoid(1.702 g), g = min(x, 7), and gated f(gate) times
// 1 + up, where up is clamped to -7 .. 7.
constexpr float kSwishLimit = 7.0f;

struct ClampedSwish {
  inline __attribute__((always_inline)) Lanes operator()(Lanes x) const {
    const Lanes g = at_most(x, kSwishLimit);
    return g * sigmoid(1.702f * g);
  }
};

template <class F>
struct Gated {
  inline __attribute__((always_inline)) Lanes operator()(Lanes gate, Lanes up) const {
    return F{}(gate)*up;
  }
};

template <>
struct Gated<ClampedSwish> {
  inline __attribute__((always_inline)) Lanes operator()(Lanes gate, Lanes up) const {
    const Lanes clamped = at_least(at_most(up, kSwishLimit), -kSwishLimit);
    return ClampedSwish{}(gate) * (clamped + 1.0f);
  }
};

template <class F>
void activate(const float* x, std::int64_t size, float* y) {
  map(size, y, [&](auto at) { return F{}(at(x)); });
}

template <class F>
void gated_activate(const float* x, std::int64_t size, float* y) {
  map(size, y, [&](auto at) { return Gated<F>{}(at(x), at(x + size)); });
}

struct Identity {
  inline __attribute__((always_inline)) Lanes operator()(Lanes x) const { return x; }
};

struct Sigmoid {
  inline __attribute__((always_inline)) Lanes operator()(Lanes x) const { return sigmoid(x); }
};

template <class F>
void multiply(const float* x, const float* gate, bool is_one, std::int64_t size, float* y) {
  if (is_one) {
    const Lanes factor = F{}(Lanes(gate[0]));
    map(size, y, [&](auto at) { return at(x) * factor; });
  } else {
    map(size, y, [&](auto at) { return at(x) * F{}(at(gate)); });
  }
}

inline float square_sum(const float* x, std::int64_t size) {
  return sum(size, [&](auto at) { return at(x) * at(x); });
}

inline void add(const float* a, const float* b, std::int64_t size, float* y) {
  map(size, y, [&](auto at) { return at(a) + at(b); });
}

inline void scale(const float* x, float factor, std::int64_t size, float* y) {
  map(size, y, [&](auto at) { return at(x) * factor; });
}

inline void softcap(const float* x, float cap, std::int64_t size, float* y) {
  map(size, y, [&](auto at) { return cap * tanh(at(x) / cap); });
}

inline float largest(const float* x, std::int64_t size) {
  constexpr float kInfinity = __builtin_inff();
  Lanes peaks = -kInfinity, nans = 0.0f;
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Lanes own = WholeVector{i}(x);
    peaks = max(own, peaks);  // a NaN does not change it
    nans += where_equal(own, own, 0.0f, 1.0f);
  }
  float peak = -kInfinity, num_nans = 0.0f;
  for (; i < size; ++i) {
    peak = x[i] > peak ? x[i] : peak;
    num_nans += x[i] == x[i] ? 0.0f : 1.0f;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    peak = peaks[lane] > peak ? peaks[lane] : peak;
    num_nans += nans[lane];
  }
  return num_nans == 0.0f ? peak : __builtin_nanf("");
}

// exp(x - largest of x) of x [size], and the sum of these, in place.
inline float exponentials(std::int64_t size, float* x) {
  const float peak = largest(x, size);
  map(size, x, [&](auto at) { return exp_of_negative(at(x) - peak); });
  return sum(size, [&](auto at) { return at(x); });
}

inline void route(const float* logits, const float* bias, const Router& router, float* weights) {
  const std::int64_t size = router.num_experts;
  bool is_finite = true;
  for (std::int64_t i = 0; i < size; ++i) is_finite &= logits[i] - logits[i] == 0.0f;

  float scores[kMaxExperts], ranked[kMaxExperts];
  for (std::int64_t i = 0; i < size; ++i) scores[i] = is_finite ? logits[i] : 0.0f;
  if (router.scores == RouterScores::kSigmoid) {
    map(size, scores, [&](auto at) { return sigmoid(at(scores)); });
  }
  for (std::int64_t i = 0; i < size; ++i) {
    ranked[i] = bias == nullptr ? scores[i] : scores[i] + bias[i];
  }
  constexpr float kTaken = -__builtin_inff();
  for (std::int64_t n = 0; n < router.num_chosen; ++n) {
    std::int64_t best = 0;
    for (std::int64_t i = 1; i < size; ++i) best = ranked[i] > ranked[best] ? i : best;
    ranked[best] = kTaken;
  }

  float factor = 1.0f;
  if (router.scores == RouterScores::kSoftmax) factor = 1.0f / exponentials(size, scores);
  float chosen[kMaxExperts];
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    if (ranked[i] == kTaken) chosen[count++] = scores[i] * factor;
  }
  if (router.scores == RouterScores::kSoftmaxChosen) {
    const float total = exponentials(count, chosen);
    map(count, chosen, [&](auto at) { return at(chosen) / total; });
  }
  if (router.normalize) {
    const float total = sum(count, [&](auto at) { return at(chosen); });
    map(count, chosen, [&](auto at) { return at(chosen) / total; });
  }
  count = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    const bool is_chosen = ranked[i] == kTaken;
    weights[i] = is_chosen ? chosen[count] * router.scale : 0.0f;
    if (is_chosen && !is_finite) weights[i] = __builtin_nanf("");
    count += is_chosen ? 1 : 0;
  }
}

inline void weighted_sum(const float* const* rows, const float* weights, std::int64_t count,
                         std::int64_t size, bool add_to_y, float* y) {
  map(size, y, [&](auto at) {
    Lanes total = 0.0f;
    for (std::int64_t i = 0; i < count; ++i) total += at(rows[i]) * weights[i];
    return add_to_y ? at(y) + total : total;
  });
}

constexpr ElementwiseKernels kernels() {
  return {&rms_norm,
          &layer_norm,
          &rope,
          {&activate<Silu>, &activate<Gelu>, &activate<GeluTanh>, &activate<ClampedSwish>},
          {&gated_activate<Silu>, &gated_activate<Gelu>, &gated_activate<GeluTanh>,
           &gated_activate<ClampedSwish>},
          {&multiply<Identity>, &multiply<Sigmoid>, &multiply<Silu>, &multiply<GeluTanh>},
          &square_sum,
          &add,
          &scale,
          &softcap,
          &largest,
          &route,
          &weighted_sum};
}

}  // namespace elementwise
}  // namespace
}  // namespace pellucid
