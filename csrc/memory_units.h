// The sizes of cache lines and huge pages, in bytes.
#pragma once

#include <cstddef>

namespace pellucid {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace pellucid
