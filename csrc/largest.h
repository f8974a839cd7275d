// Finds the column of a row's largest logit, while several threads each compute some of its
// columns.
#pragma once

#include <cstdint>

#include "kernel_table.h"

namespace pellucid {

// A number and its column. The mark of a larger number is greater; that of a NaN is greater than
// that of any number; of equal numbers the first one has the greatest mark. 0 is less than all
// marks.
using LargestMark = std::uint64_t;

// Raises a row's mark to that of the columns [begin, end), begin < end. Other threads may raise it
// at the same time.
void note_largest(const KernelTable& kernels, const float* row, std::int64_t begin,
                  std::int64_t end, LargestMark& mark);

// The column of a mark that has been raised.
std::int64_t column_of(LargestMark mark);

}  // namespace pellucid
