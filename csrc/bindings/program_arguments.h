// The operands of a program's ops as Python passes them.
#pragma once

#include <cstdint>
#include <utility>

#include "program.h"

namespace pellucid {

using BufferView = std::pair<int, std::int64_t>;  // buffer, first column

inline View view(const BufferView& pair) { return {pair.first, pair.second}; }

}  // namespace pellucid
