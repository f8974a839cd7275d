// The parameters by which a token is drawn, and the Python arrays that they borrow.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "draw.h"

namespace pellucid {

using TokenIds = nanobind::ndarray<const std::int32_t, nanobind::ndim<1>, nanobind::c_contig,
                                   nanobind::device::cpu>;
using Biases =
    nanobind::ndarray<const double, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using TokenMask = nanobind::ndarray<const std::uint32_t, nanobind::ndim<1>, nanobind::c_contig,
                                    nanobind::device::cpu>;

struct DrawArrays {
  std::optional<TokenMask> allowed;
  std::optional<TokenIds> forbidden;
  std::optional<TokenIds> bias_ids;
  std::optional<Biases> biases;
  std::optional<TokenIds> text;
};

class TokenDraw {
 public:
  TokenDraw(const Draw& draw, DrawArrays arrays);

  const Draw& draw() const { return draw_; }

  // Raises ValueError if an array does not fit a vocabulary of that size.
  void check(std::int64_t vocab_size) const;

 private:
  Draw draw_;
  DrawArrays arrays_;
};

// A row of a step's logits, and the parameters of a draw from it.
using RowDraw = std::pair<std::int64_t, const TokenDraw*>;

}  // namespace pellucid
