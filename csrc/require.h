// require(): checks of callers' arguments, which stay in optimized builds. Asserts check our own
// invariants.
#pragma once

#include <sstream>
#include <stdexcept>

namespace pellucid {

// Throws std::invalid_argument, Python's ValueError, unless `condition` holds. The message consists
// of the strings and numbers `what`, which are joined only then, because a step checks thousands of
// numbers.
template <class... Parts>
void require(bool condition, const Parts&... what) {
  if (condition) return;
  std::ostringstream text;
  (text << ... << what);
  throw std::invalid_argument(text.str());
}

}  // namespace pellucid
