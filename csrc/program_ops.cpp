// Adds the ops to a program as phases, and checks their operands.
#include "program_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "draw.h"
#include "require.h"

namespace pellucid {
namespace {

// Of a row of logits: threads share a row of a large vocabulary.
constexpr std::int64_t kLogitsPerGrab = 8192;

constexpr std::int64_t kMaxVectors = 1 << 16;  // of a row: no product of sizes leaves 64 bits

std::size_t bytes_of(std::int64_t num_floats) {
  return sizeof(float) * static_cast<std::size_t>(num_floats);
}

std::int64_t size_of(const Floats& floats) { return static_cast<std::int64_t>(floats->size()); }

// Checks operands of `num_vectors` vectors of `size` numbers, side by side in a row.
void check_vectors(const Program& program, RowSet rows, View x, std::int64_t size,
                   std::int64_t num_vectors, View y) {
  require(num_vectors >= 1 && num_vectors <= kMaxVectors, "num_vectors=", num_vectors,
          ": allowed are 1 to ", kMaxVectors);
  program.check_view("x", x, rows, num_vectors * size);
  program.check_view("y", y, rows, num_vectors * size);
}

}  // namespace

void add_input(Program& program, int input, std::int64_t width, View y) {
  require(input >= 0, "input=", input, ": must be 0 or more");
  program.check_view("y", y, RowSet::kTokens, width);
  program.add_preparation([=](const Step& step) {
    require(input < static_cast<int>(step.inputs.size()), "inputs: has no array ", input);
    const ConstRows& rows = step.inputs[static_cast<std::size_t>(input)];
    require(rows.num_rows == step.num_tokens && rows.width == width, "inputs: array ", input,
            " must be [", step.num_tokens, ", ", width, "]");
  });
  program.add_row_phase(
      "input", RowSet::kTokens, {y.buffer}, [=, &program](const Step& step, std::int64_t r) {
        const float* const rows = step.inputs[static_cast<std::size_t>(input)].data;
        std::memcpy(program.row(y, r), rows + r * width, bytes_of(width));
      });
}

void add_embed(Program& program, Indices indices, Weights table, float scale, View y,
               const Division& division) {
  const std::int64_t width = table->matrix.num_inputs();
  program.check_view("y", y, RowSet::kTokens, width);
  if (!table->matrix.has_memory()) program.only_plan();
  const bool is_divided = division.is_divided();
  const std::int64_t num_rows = is_divided ? division.starts.back() : table->matrix.num_outputs();
  const std::int64_t first = is_divided ? division.own_begin() : 0;
  division.check("starts", num_rows);
  require(!is_divided || division.own_end() - first == table->matrix.num_outputs(),
          "table: must have this rank's rows");
  const auto ids_of = [indices](const Step& step) {
    return indices == Indices::kTokenIds ? step.token_ids : step.positions;
  };
  program.add_preparation([=](const Step& step) {
    const std::int32_t* const ids = ids_of(step);
    for (std::int64_t t = 0; t < step.num_tokens; ++t) {
      if (ids[t] < 0 || ids[t] >= num_rows) {
        throw std::out_of_range("row " + std::to_string(ids[t]) + " of an embedding of " +
                                std::to_string(num_rows) + " rows");
      }
    }
  });
  program.add_row_phase("embed", RowSet::kTokens, {y.buffer},
                        [=, &program](const Step& step, std::int64_t r) {
                          const std::int64_t index = ids_of(step)[r] - first;
                          if (index < 0 || index >= table->matrix.num_outputs())
                            return;  // another rank's
                          float* const row = program.row(y, r);
                          table->matrix.gather_row(index, row);
                          if (scale != 1.0f)
                            program.kernels().elementwise.scale(row, scale, width, row);
                        });
  if (!is_divided) return;
  const RowExchange exchange(program, division.exchange, width);
  program.add_phase(
      "exchange", {y.buffer, exchange.scratch()},
      [](const Step& step) -> std::int64_t { return step.num_tokens > 0 ? 1 : 0; },
      [](const Step&) -> std::int64_t { return 1; },
      [=, &program](const Step& step, const Share&) {
        exchange.run(
            step.num_tokens, [&](std::int64_t r) { return program.row(y, r); },
            [&](std::int64_t r, auto f) {
              f(RankColumns{division.rank_of(ids_of(step)[r]), 0, width});
            });
      });
}

void add_linear(Program& program, RowSet rows, View x, Weights weights, View y, bool add_to_y,
                bool notes_largest) {
  require(!notes_largest || rows == RowSet::kLogits, "notes_largest: is for logits");
  const PackedMatrix& matrix = weights->matrix;  // alive as long as the phases' copies of weights
  program.check_view("x", x, rows, matrix.num_inputs());
  program.check_view("y", y, rows, matrix.num_outputs());
  program.add_weight_bytes(matrix.num_bytes());
  if (!matrix.has_memory()) program.only_plan();
  const int prepared = program.add_scratch(linear_scratch_bytes(matrix, program.max_rows()));
  program.add_row_phase("prepare", rows, {x.buffer, prepared},
                        [=, &program](const Step&, std::int64_t r) {
                          linear_prepare(program.kernels(), weights->matrix, program.row(x, 0),
                                         program.stride(x), r, r + 1, program.scratch(prepared));
                        });
  program.add_column_phase(
      "linear", rows, {prepared, y.buffer},
      {matrix.view().panels, matrix.view().panel_bytes, matrix.num_panels()},
      {panels_per_grab_of_few_rows(matrix), panels_per_grab(matrix),
       rows_per_block(program.kernels(), matrix)},
      [=, &program](const Step& step, Range block, Range panels) {
        const LinearOutput output{program.row(y, 0), program.stride(y),
                                  weights->bias.empty() ? nullptr : weights->bias.data(), add_to_y};
        linear_compute(program.kernels(), weights->matrix, program.scratch(prepared), block.begin,
                       block.end, panels.begin, panels.end, output);
        if (!notes_largest || step.largest == nullptr) return;
        const std::int64_t begin = panels.begin * kPanelOutputs;
        const std::int64_t end =
            std::min(panels.end * kPanelOutputs, weights->matrix.num_outputs());
        for (std::int64_t r = block.begin; r < block.end; ++r) {
          note_largest(program.kernels(), program.row({y.buffer}, r), y.column + begin,
                       y.column + end, step.largest[r]);
        }
      });
}

void add_rms_norm(Program& program, RowSet rows, View x, Floats weight, float eps,
                  std::int64_t num_vectors, View y) {
  check_vectors(program, rows, x, size_of(weight), num_vectors, y);
  program.add_row_phase(
      "rms_norm", rows, {x.buffer, y.buffer}, [=, &program](const Step&, std::int64_t r) {
        program.kernels().elementwise.rms_norm(program.row(x, r), weight->data(), eps, num_vectors,
                                               size_of(weight), program.row(y, r));
      });
}

void add_layer_norm(Program& program, RowSet rows, View x, Floats weight, Floats bias, float eps,
                    std::int64_t num_vectors, View y) {
  check_vectors(program, rows, x, size_of(weight), num_vectors, y);
  require(bias->size() == weight->size(), "bias: has ", bias->size(), " numbers, weight ",
          weight->size());
  program.add_row_phase(
      "layer_norm", rows, {x.buffer, y.buffer}, [=, &program](const Step&, std::int64_t r) {
        program.kernels().elementwise.layer_norm(program.row(x, r), weight->data(), bias->data(),
                                                 eps, num_vectors, size_of(weight),
                                                 program.row(y, r));
      });
}

void add_rotations(Program& program, int index, std::int64_t dim, float factor, Growth growth,
                   View y) {
  const std::int64_t half = dim / 2;
  require(index >= 0, "index=", index, ": must be 0 or more");
  require(dim >= 2 && dim % 2 == 0, "dim=", dim, ": must be a positive even number");
  require(growth.period >= 1, "period=", growth.period, ": must be at least 1");
  program.check_view("y", y, RowSet::kTokens, dim);
  program.add_preparation([=](const Step& step) {
    require(index < static_cast<int>(step.frequencies.size()), "frequencies: has no array ", index);
    const ConstRows& own = step.frequencies[static_cast<std::size_t>(index)];
    require(own.width == half && (own.num_rows == 1 || own.num_rows == step.num_tokens),
            "frequencies: array ", index, " must be [1 or ", step.num_tokens, ", ", half, "]");
  });
  program.add_row_phase(
      "rotations", RowSet::kTokens, {y.buffer}, [=, &program](const Step& step, std::int64_t r) {
        const ConstRows& frequencies = step.frequencies[static_cast<std::size_t>(index)];
        const float* const own = frequencies.data + (frequencies.num_rows > 1 ? r * half : 0);
        const auto position = static_cast<float>(step.positions[r]);
        float scale = factor;
        if (growth.beta != 0) {
          const auto periods = static_cast<float>(step.positions[r] / growth.period);
          scale *= 1 + growth.beta * std::log1p(periods);
        }
        float* const cos = program.row(y, r);
        float* const sin = cos + half;
        for (std::int64_t i = 0; i < half; ++i) {
          const float angle = position * own[i];
          cos[i] = std::cos(angle) * scale;
          sin[i] = std::sin(angle) * scale;
        }
      });
}

void add_rope(Program& program, RowSet rows, View x, View rotations, std::int64_t num_heads,
              std::int64_t head_dim, std::int64_t dim, View y) {
  require(dim >= 2 && dim % 2 == 0 && dim <= head_dim, "dim=", dim,
          ": must be a positive even number of at most head_dim=", head_dim);
  check_vectors(program, rows, x, head_dim, num_heads, y);
  program.check_view("rotations", rotations, rows, dim);
  program.add_row_phase("rope", rows, {x.buffer, rotations.buffer, y.buffer},
                        [=, &program](const Step&, std::int64_t r) {
                          const float* const cos = program.row(rotations, r);
                          program.kernels().elementwise.rope(program.row(x, r), cos, cos + dim / 2,
                                                             num_heads, head_dim, dim,
                                                             program.row(y, r));
                        });
}

void add_activate(Program& program, RowSet rows, View x, ActivationFunction function,
                  std::int64_t width, View y) {
  program.check_view("x", x, rows, width);
  program.check_view("y", y, rows, width);
  const auto activate = program.kernels().elementwise.activate[static_cast<int>(function)];
  program.add_row_phase("activate", rows, {x.buffer, y.buffer},
                        [=, &program](const Step&, std::int64_t r) {
                          activate(program.row(x, r), width, program.row(y, r));
                        });
}

void add_gated_activate(Program& program, RowSet rows, View x, ActivationFunction function,
                        std::int64_t width, View y) {
  program.check_view("x", x, rows, 2 * width);
  program.check_view("y", y, rows, width);
  const auto activate = program.kernels().elementwise.gated_activate[static_cast<int>(function)];
  program.add_row_phase("gated_activate", rows, {x.buffer, y.buffer},
                        [=, &program](const Step&, std::int64_t r) {
                          activate(program.row(x, r), width, program.row(y, r));
                        });
}

void add_multiply(Program& program, RowSet rows, View x, View gate, bool is_one,
                  GateFunction function, std::int64_t width, View y) {
  program.check_view("x", x, rows, width);
  program.check_view("gate", gate, rows, is_one ? 1 : width);
  program.check_view("y", y, rows, width);
  const auto multiply = program.kernels().elementwise.multiply[static_cast<int>(function)];
  program.add_row_phase("multiply", rows, {x.buffer, gate.buffer, y.buffer},
                        [=, &program](const Step&, std::int64_t r) {
                          multiply(program.row(x, r), program.row(gate, r), is_one, width,
                                   program.row(y, r));
                        });
}

void add_scale(Program& program, RowSet rows, View x, Floats factors, std::int64_t width, View y) {
  const bool is_one = factors->size() == 1;
  require(is_one || size_of(factors) == width, "factors: has ", factors->size(), " numbers, x ",
          width);
  program.check_view("x", x, rows, width);
  program.check_view("y", y, rows, width);
  const auto multiply =
      program.kernels().elementwise.multiply[static_cast<int>(GateFunction::kIdentity)];
  program.add_row_phase(
      "scale", rows, {x.buffer, y.buffer}, [=, &program](const Step&, std::int64_t r) {
        multiply(program.row(x, r), factors->data(), is_one, width, program.row(y, r));
      });
}

void add_sum(Program& program, RowSet rows, View a, View b, std::int64_t width, View y) {
  program.check_view("a", a, rows, width);
  program.check_view("b", b, rows, width);
  program.check_view("y", y, rows, width);
  program.add_row_phase("add", rows, {a.buffer, b.buffer, y.buffer},
                        [=, &program](const Step&, std::int64_t r) {
                          program.kernels().elementwise.add(program.row(a, r), program.row(b, r),
                                                            width, program.row(y, r));
                        });
}

void add_softcap(Program& program, RowSet rows, View x, float cap, std::int64_t width, View y) {
  program.check_view("x", x, rows, width);
  program.check_view("y", y, rows, width);
  program.add_column_phase("softcap", rows, {x.buffer, y.buffer}, {nullptr, 0, width},
                           {kLogitsPerGrab, kLogitsPerGrab},
                           [=, &program](const Step&, Range block, Range columns) {
                             for (std::int64_t r = block.begin; r < block.end; ++r) {
                               program.kernels().elementwise.softcap(
                                   program.row(x, r) + columns.begin, cap,
                                   columns.end - columns.begin, program.row(y, r) + columns.begin);
                             }
                           });
}

void add_largest(Program& program, View x, std::int64_t width) {
  program.check_view("x", x, RowSet::kLogits, width);
  program.add_column_phase("largest", RowSet::kLogits, {x.buffer}, {nullptr, 0, width},
                           {kLogitsPerGrab, kLogitsPerGrab},
                           [=, &program](const Step& step, Range block, Range columns) {
                             if (step.largest == nullptr) return;
                             for (std::int64_t r = block.begin; r < block.end; ++r) {
                               note_largest(program.kernels(), program.row(x, r), columns.begin,
                                            columns.end, step.largest[r]);
                             }
                           });
}

void add_draw(Program& program, View x, std::int64_t width) {
  program.check_view("x", x, RowSet::kLogits, width);
  program.add_preparation([=, &program](const Step& step) {
    require(step.draws.empty() || (step.largest != nullptr && width == program.output_width()),
            "draws: the program draws from other rows than it gives");
  });
  const auto num_threads = static_cast<std::size_t>(program.max_threads());
  const auto scratch = std::make_shared<std::vector<DrawScratch>>(num_threads);
  program.add_own_bytes(num_threads * draw_scratch_bytes(width));
  program.add_phase(
      "draw", {x.buffer},
      [](const Step& step) { return static_cast<std::int64_t>(step.draws.size()); },
      [](const Step&) { return std::int64_t{1}; },
      [=, &program](const Step& step, const Share& share) {
        DrawScratch& own = (*scratch)[static_cast<std::size_t>(share.thread)];
        for (std::int64_t i = share.begin; i < share.end; ++i) {
          const RowDraws& row = step.draws[static_cast<std::size_t>(i)];
          if (step.largest[row.row] == 0) continue;  // the program notes no largest: undrawn
          const std::int64_t largest = column_of(step.largest[row.row]);
          for (std::int64_t d = 0; d < row.count; ++d) {
            row.tokens[d] = draw_token(program.kernels(), program.row(x, row.row), width, largest,
                                       row.draws[d], own);
          }
        }
      });
}

void add_gather(Program& program, View x, std::int64_t width, View y) {
  program.check_view("x", x, RowSet::kTokens, width);
  program.check_view("y", y, RowSet::kLogits, width);
  program.add_preparation([](const Step& step) {
    for (std::int64_t r = 0; r < step.num_logits; ++r) {
      if (step.logits_indices[r] < 0 || step.logits_indices[r] >= step.num_tokens) {
        throw std::out_of_range("row " + std::to_string(step.logits_indices[r]) + " of a step of " +
                                std::to_string(step.num_tokens) + " tokens");
      }
    }
  });
  program.add_row_phase("gather", RowSet::kLogits, {x.buffer, y.buffer},
                        [=, &program](const Step& step, std::int64_t r) {
                          std::memcpy(program.row(y, r), program.row(x, step.logits_indices[r]),
                                      bytes_of(width));
                        });
}

}  // namespace pellucid
