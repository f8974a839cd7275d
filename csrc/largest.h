// The position of a row's largest logit, found by threads that each compute some of its columns.
#pragma once

#include <cstdint>

#include "kernel_table.h"

namespace pellucid {

// A number and its column. A mark is greater for a larger number, for a NaN than for any number,
// and for the first of equals; 0 is less than all.
using LargestMark = std::uint64_t;

// Raises a row's mark, which others raise at the same time, to that of its columns [begin, end),
// begin < end.
void note_largest(const KernelTable& kernels, const float* row, std::int64_t begin,
                  std::int64_t end, LargestMark& mark);

// The column of a mark that has been raised.
std::int64_t column_of(LargestMark mark);

}  // namespace pellucid
