// The numbers of a codebook as bytes for table lookups.
#pragma once

#include <cstdint>

#include "../format.h"

namespace pellucid {
namespace {

struct LookupTable {
  alignas(kCodebookSize) std::uint8_t byte[kCodebookSize];
};

constexpr LookupTable lookup_table(Codebook codebook, int zero_point) {
  LookupTable table{};
  for (int code = 0; code < kCodebookSize; ++code) {
    table.byte[code] =
        static_cast<std::uint8_t>(kCodebooks[static_cast<int>(codebook)][code] + zero_point);
  }
  return table;
}

// The bytes that codes of 4 bits select: signed numbers, or numbers + 128 for dot products that
// take unsigned weights.
template <Codebook kCodebook, bool kIsUnsigned>
struct CodebookBytes {
  static constexpr int kZeroPoint = kIsUnsigned ? 128 : 0;
  static constexpr LookupTable kTable = lookup_table(kCodebook, kZeroPoint);
};

}  // namespace
}  // namespace pellucid
