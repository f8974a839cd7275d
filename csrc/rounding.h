// Integer division that rounds up, and rounding up to a multiple.
#pragma once

#include <type_traits>

namespace pellucid {

// Of a >= 0 and b >= 1, in the type of a.
template <class Int>
constexpr Int ceil_div(Int a, std::common_type_t<Int> b) {
  return (a + b - 1) / b;
}

template <class Int>
constexpr Int round_up(Int n, std::common_type_t<Int> multiple) {
  return ceil_div(n, multiple) * multiple;
}

}  // namespace pellucid
