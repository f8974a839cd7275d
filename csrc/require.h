// Checks of what callers hand over, which stay in optimized builds; asserts are for our own
// invariants.
#pragma once

#include <sstream>
#include <stdexcept>

namespace pellucid {

// Throws std::invalid_argument, Python's ValueError, that says `what`: strings and numbers one
// after the other, put together only then, for a step checks thousands of numbers.
template <class... Parts>
void require(bool condition, const Parts&... what) {
  if (condition) return;
  std::ostringstream text;
  (text << ... << what);
  throw std::invalid_argument(text.str());
}

}  // namespace pellucid
