// Finds the column of a row's largest logit, for greedy tokens.
#include "largest.h"

#include <cassert>
#include <cmath>
#include <cstring>

namespace pellucid {
namespace {

constexpr std::uint32_t kGreatest = 0xffffffff;

// Maps floats to unsigned integers in the same order; a NaN is the greatest. 0 and -0 are equal.
std::uint32_t order_of(float x) {
  if (std::isnan(x)) return kGreatest;
  constexpr std::uint32_t kSign = 0x80000000;
  const float number = x + 0.0f;
  std::uint32_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

LargestMark mark_of(float x, std::int64_t column) {
  return LargestMark{order_of(x)} << 32 | (kGreatest - static_cast<std::uint32_t>(column));
}

}  // namespace

void note_largest(const KernelTable& kernels, const float* row, std::int64_t begin,
                  std::int64_t end, LargestMark& mark) {
  assert(0 <= begin && begin < end && end <= std::int64_t{kGreatest});
  const float largest = kernels.elementwise.largest(row + begin, end - begin);
  LargestMark noted = __atomic_load_n(&mark, __ATOMIC_RELAXED);
  if (mark_of(largest, begin) <= noted) return;  // whatever its column
  std::int64_t column = begin;
  while (row[column] != largest && !std::isnan(row[column])) ++column;
  const LargestMark own = mark_of(largest, column);
  while (own > noted && !__atomic_compare_exchange_n(&mark, &noted, own, true, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
  }
}

std::int64_t column_of(LargestMark mark) {
  return static_cast<std::int64_t>(kGreatest - static_cast<std::uint32_t>(mark));
}

}  // namespace pellucid
