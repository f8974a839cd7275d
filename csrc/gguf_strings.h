// The strings of an array in a GGUF file, which stand one behind the other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "text_list.h"

namespace pellucid {

struct PassedStrings {
  std::size_t count;
  std::size_t end;  // byte behind the last one
};

// Passes over strings, each behind its length of 8 bytes: up to `count` of them, or to the first
// one that does not end by the byte `limit`.
PassedStrings pass_strings(const std::uint8_t* data, std::size_t begin, std::size_t count,
                           std::size_t limit);

// The strings from the byte `begin` to `passed.end`, which pass_strings has found.
TextList read_strings(const std::uint8_t* data, std::size_t begin, PassedStrings passed);

}  // namespace pellucid
