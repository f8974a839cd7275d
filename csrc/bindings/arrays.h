// NumPy arrays as arguments of the bindings, and the names of weight formats and block types.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "format.h"
#include "gguf_blocks.h"
#include "require.h"

namespace pellucid {

using AnyMatrix =
    nanobind::ndarray<nanobind::ro, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using FloatVector =
    nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using FloatMatrix =
    nanobind::ndarray<const float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using Flags =
    nanobind::ndarray<const bool, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

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

// ValueError if blocks of this type are not unpacked natively.
inline const BlockType& block_type_named(const std::string& name) {
  for (const BlockType& type : kBlockTypes) {
    if (name == type.name) return type;
  }
  throw nanobind::value_error(("block_type='" + name + "': is not unpacked here").c_str());
}

}  // namespace pellucid
