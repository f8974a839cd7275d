// Arrays as Python hands them over, and checks of arguments.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <sstream>
#include <string>

#include "format.h"

namespace pellucid {

using AnyMatrix =
    nanobind::ndarray<nanobind::ro, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using FloatVector =
    nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using FloatMatrix =
    nanobind::ndarray<const float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

// ValueError that says `what`, strings and numbers one after the other: put together only then, for
// a step checks thousands of numbers.
template <class... Parts>
void require(bool condition, const Parts&... what) {
  if (condition) return;
  std::ostringstream text;
  (text << ... << what);
  throw nanobind::value_error(text.str().c_str());
}

// ValueError if there is no such format.
inline Format format_named(const std::string& name) {
  std::string allowed;
  for (int i = 0; i < kNumFormats; ++i) {
    const auto format = static_cast<Format>(i);
    if (name == format_info(format).name) return format;
    allowed += std::string(allowed.empty() ? "" : ", ") + format_info(format).name;
  }
  throw nanobind::value_error(("format='" + name + "': allowed are " + allowed).c_str());
}

}  // namespace pellucid
