// shuffle(): lanes of two vectors in another order, for gcc and clang.
#pragma once

namespace pellucid {
namespace {

// Lane i of the result is lane kIndices[i] of a, then of b.
template <int... kIndices, class Vector>
inline __attribute__((always_inline)) Vector shuffle(Vector a, Vector b) {
#if defined(__clang__) || __GNUC__ >= 12
  return __builtin_shufflevector(a, b, kIndices...);
#else
  using IndexVector = decltype(a == b);  // integers of the same number and size
  return __builtin_shuffle(a, b, IndexVector{kIndices...});
#endif
}

}  // namespace
}  // namespace pellucid
