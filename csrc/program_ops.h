// Adds the ops of backends/ops.py to a Program as phases. An op reads x and writes y: `width`
// floats of each row, from the view's column on. Adding an op throws std::invalid_argument if the
// operands do not fit their buffers; running a step throws it if the step lacks an array that an op
// reads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "linear.h"
#include "packed_matrix.h"
#include "program.h"
#include "program_exchange.h"

namespace pellucid {

using Floats = std::shared_ptr<const std::vector<float>>;

// The weights of `linear`, `logits` and `embed`.
struct LinearWeights {
  PackedMatrix matrix;
  std::vector<float> bias;  // [N], or empty
};

using Weights = std::shared_ptr<const LinearWeights>;

// The indices of an embedding's rows: token ids or positions.
enum class Indices : std::uint8_t { kTokenIds, kPositions };

// y = the rows of step.inputs[input].
void add_input(Program& program, int input, std::int64_t width, View y);

// Of a table whose rows are divided, `table` has this rank's.
void add_embed(Program& program, Indices indices, Weights table, float scale, View y,
               const Division& division = {});

// y = x W^T + b, or y += x W^T + b. For logits it may also record in step.largest where they are
// largest, because the thread that writes them has them in its cache.
void add_linear(Program& program, RowSet rows, View x, Weights weights, View y, bool add_to_y,
                bool notes_largest = false);

void add_rms_norm(Program& program, RowSet rows, View x, Floats weight, float eps,
                  std::int64_t num_vectors, View y);

void add_layer_norm(Program& program, RowSet rows, View x, Floats weight, Floats bias, float eps,
                    std::int64_t num_vectors, View y);

// What else multiplies cos and sin at a position: 1 + beta ln(1 + floor(position / period)).
struct Growth {
  float beta = 0;
  std::int64_t period = 1;
};

// cos [dim / 2] and sin [dim / 2], one after the other in y, of the angles
// position * step.frequencies[index], times `factor` and `growth`.
void add_rotations(Program& program, int index, std::int64_t dim, float factor, Growth growth,
                   View y);

// Rotates num_heads heads [head_dim] by the rotations that add_rotations computed.
void add_rope(Program& program, RowSet rows, View x, View rotations, std::int64_t num_heads,
              std::int64_t head_dim, std::int64_t dim, View y);

void add_activate(Program& program, RowSet rows, View x, ActivationFunction function,
                  std::int64_t width, View y);

// x = [gate | up], 2 width -> width.
void add_gated_activate(Program& program, RowSet rows, View x, ActivationFunction function,
                        std::int64_t width, View y);

// y = x * f(gate), gate of the same width or of one column.
void add_multiply(Program& program, RowSet rows, View x, View gate, bool is_one,
                  GateFunction function, std::int64_t width, View y);

// y = x * factors, one for each column or one for all.
void add_scale(Program& program, RowSet rows, View x, Floats factors, std::int64_t width, View y);

void add_sum(Program& program, RowSet rows, View a, View b, std::int64_t width, View y);

void add_softcap(Program& program, RowSet rows, View x, float cap, std::int64_t width, View y);

// Records in step.largest where the logits x are largest.
void add_largest(Program& program, View x, std::int64_t width);

// Makes the draws of step.draws from the logits x. step.largest must have their largest columns.
void add_draw(Program& program, View x, std::int64_t width);

// The rows step.logits_indices of x, [T] -> [R].
void add_gather(Program& program, View x, std::int64_t width, View y);

}  // namespace pellucid
