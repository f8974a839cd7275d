// The units in which processors and operating systems handle memory.
#pragma once

#include <cstddef>

namespace pellucid {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace pellucid
