// The operands of a program's ops as Python passes them.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "kernels/elementwise_kernels.h"
#include "program.h"

namespace pellucid {

using BufferView = std::pair<int, std::int64_t>;  // buffer, first column

inline std::shared_ptr<const std::vector<float>> floats(const FloatVector& vector) {
  return std::make_shared<const std::vector<float>>(vector.data(), vector.data() + vector.size());
}

inline View view(const BufferView& pair) { return {pair.first, pair.second}; }

inline ActivationFunction activation_named(const std::string& name) {
  if (name == "silu") return ActivationFunction::kSilu;
  if (name == "gelu") return ActivationFunction::kGelu;
  if (name == "gelu_tanh") return ActivationFunction::kGeluTanh;
  if (name == "clamped_swish") return ActivationFunction::kClampedSwish;
  throw std::invalid_argument("activation='" + name +
                              "': allowed are silu, gelu, gelu_tanh, clamped_swish");
}

}  // namespace pellucid
