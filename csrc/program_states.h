// Recurrent layers as phases of a Program (backends/ops.py: causal_convolution, gated_delta_net).
// Their states stand in step.states: for each slot the numbers of all layers, one layer after the
// other. Operands that do not fit are std::invalid_argument as in program_ops.h.
#pragma once

#include <cstdint>

#include "program.h"
#include "program_ops.h"

namespace pellucid {

// Each of the `num_channels` of x [T, C] convolved over the rows of its request: y [T, C], not x.
// `weight` [kernel_size * C], `bias` [C] or null. The state, kernel_size - 1 rows [C], begins with
// number `first` of a slot's.
void add_causal_convolution(Program& program, View x, Floats weight, Floats bias,
                            std::int64_t num_channels, std::int64_t first, View y);

// The heads of a gated delta net.
struct DeltaHeads {
  std::int64_t num_key_heads;
  std::int64_t num_value_heads;  // a multiple of num_key_heads
  std::int64_t key_dim;
  std::int64_t value_dim;  // a multiple of kDeltaColumns
  bool tiled;              // v-head h goes with k-head h mod Hk, else h / (Hv / Hk)
};

// qkv [T, 2 Hk dk + Hv dv], b and a [T, Hv] -> y [T, Hv dv]. `log_decay` and `step_bias` are [Hv].
// The state, Hv matrices [dk, dv], begins with number `first` of a slot's.
void add_gated_delta_net(Program& program, View qkv, View b, View a, Floats log_decay,
                         Floats step_bias, const DeltaHeads& heads, std::int64_t first, View y);

}  // namespace pellucid
