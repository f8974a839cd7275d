// Python's Program: ops are added, its memory is planned, steps are run.
#include "program.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/program_arguments.h"
#include "bindings/run_program.h"
#include "program_attention.h"
#include "program_exchange.h"
#include "program_experts.h"
#include "program_ops.h"
#include "program_states.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

RouterScores router_named(const std::string& name) {
  if (name == "softmax") return RouterScores::kSoftmax;
  if (name == "softmax_chosen") return RouterScores::kSoftmaxChosen;
  if (name == "sigmoid") return RouterScores::kSigmoid;
  throw nb::value_error(
      ("router='" + name + "': allowed are softmax, softmax_chosen, sigmoid").c_str());
}

GateFunction gate_named(const std::string& name) {
  if (name == "identity") return GateFunction::kIdentity;
  if (name == "sigmoid") return GateFunction::kSigmoid;
  if (name == "silu") return GateFunction::kSilu;
  if (name == "gelu_tanh") return GateFunction::kGeluTanh;
  throw nb::value_error(
      ("function='" + name + "': allowed are identity, sigmoid, silu, gelu_tanh").c_str());
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::enum_<RowSet>(m, "RowSet", "Which rows a buffer has.")
      .value("TOKENS", RowSet::kTokens, "All of the step.")
      .value("LOGITS", RowSet::kLogits, "Those whose logits are wanted.");
  nb::enum_<Indices>(m, "Indices", "Where an embedding finds its rows' numbers.")
      .value("TOKEN_IDS", Indices::kTokenIds)
      .value("POSITIONS", Indices::kPositions);

  nb::class_<Program>(
      m, "Program",
      "A decoder's forward as a flat list of ops over buffers of rows. Operands are "
      "(buffer, first column).")
      .def(
          "__init__",
          [](Program* self, const KernelTable& kernels, std::shared_ptr<ThreadPool> pool,
             std::int64_t max_rows, std::size_t small_step_bytes) {
            new (self) Program(kernels, std::move(pool), max_rows, small_step_bytes);
          },
          "kernels"_a, "pool"_a, "max_rows"_a, "small_step_bytes"_a,
          "Steps that read fewer bytes of weights than `small_step_bytes` (more, the more rows "
          "they "
          "have) stay on the caller's thread.")
      .def("add_buffer", &Program::add_buffer, "rows"_a, "width"_a)
      .def(
          "input",
          [](Program& self, int input, std::int64_t width, const BufferView& y) {
            add_input(self, input, width, view(y));
          },
          "input"_a, "width"_a, "y"_a)
      .def(
          "embed",
          [](Program& self, Indices indices, std::shared_ptr<LinearWeights> table, float scale,
             const BufferView& y, std::shared_ptr<Exchange> exchange,
             std::vector<std::int64_t> starts) {
            add_embed(self, indices, std::move(table), scale, view(y),
                      {std::move(exchange), std::move(starts)});
          },
          "indices"_a, "table"_a, "scale"_a, "y"_a, "exchange"_a.none() = nb::none(),
          "starts"_a = std::vector<std::int64_t>(),
          "With an `exchange`, `table` has the rows of this rank, and rank r those from starts[r] "
          "to starts[r + 1].")
      .def(
          "exchange",
          [](Program& self, RowSet rows, const BufferView& y, std::shared_ptr<Exchange> exchange,
             const std::vector<std::tuple<int, std::int64_t, std::int64_t>>& parts) {
            std::vector<RankColumns> columns;
            for (const auto& [rank, column, width] : parts)
              columns.push_back({rank, column, width});
            add_exchange(self, rows, view(y), std::move(exchange), std::move(columns));
          },
          "rows"_a, "y"_a, "exchange"_a, "parts"_a,
          "Gives all ranks the columns (rank, first column from y's own on, width) that each has "
          "computed.")
      .def(
          "linear",
          [](Program& self, RowSet rows, const BufferView& x,
             std::shared_ptr<LinearWeights> weights, const BufferView& y, bool add_to_y,
             bool notes_largest) {
            add_linear(self, rows, view(x), std::move(weights), view(y), add_to_y, notes_largest);
          },
          "rows"_a, "x"_a, "weights"_a, "y"_a, "add_to_y"_a, "notes_largest"_a = false)
      .def(
          "rms_norm",
          [](Program& self, RowSet rows, const BufferView& x, const FloatVector& weight, float eps,
             std::int64_t num_vectors, const BufferView& y) {
            add_rms_norm(self, rows, view(x), floats(weight), eps, num_vectors, view(y));
          },
          "rows"_a, "x"_a, "weight"_a, "eps"_a, "num_vectors"_a, "y"_a)
      .def(
          "layer_norm",
          [](Program& self, RowSet rows, const BufferView& x, const FloatVector& weight,
             const FloatVector& bias, float eps, std::int64_t num_vectors, const BufferView& y) {
            add_layer_norm(self, rows, view(x), floats(weight), floats(bias), eps, num_vectors,
                           view(y));
          },
          "rows"_a, "x"_a, "weight"_a, "bias"_a, "eps"_a, "num_vectors"_a, "y"_a)
      .def(
          "rotations",
          [](Program& self, int index, std::int64_t dim, float factor, float beta,
             std::int64_t period, const BufferView& y) {
            add_rotations(self, index, dim, factor, {beta, period}, view(y));
          },
          "index"_a, "dim"_a, "factor"_a, "beta"_a, "period"_a, "y"_a)
      .def(
          "rope",
          [](Program& self, RowSet rows, const BufferView& x, const BufferView& rotations,
             std::int64_t num_heads, std::int64_t head_dim, std::int64_t dim, const BufferView& y) {
            add_rope(self, rows, view(x), view(rotations), num_heads, head_dim, dim, view(y));
          },
          "rows"_a, "x"_a, "rotations"_a, "num_heads"_a, "head_dim"_a, "dim"_a, "y"_a)
      .def(
          "activate",
          [](Program& self, RowSet rows, const BufferView& x, const std::string& activation,
             std::int64_t width, const BufferView& y) {
            add_activate(self, rows, view(x), activation_named(activation), width, view(y));
          },
          "rows"_a, "x"_a, "activation"_a, "width"_a, "y"_a)
      .def(
          "gated_activate",
          [](Program& self, RowSet rows, const BufferView& x, const std::string& activation,
             std::int64_t width, const BufferView& y) {
            add_gated_activate(self, rows, view(x), activation_named(activation), width, view(y));
          },
          "rows"_a, "x"_a, "activation"_a, "width"_a, "y"_a)
      .def(
          "route",
          [](Program& self, RowSet rows, const BufferView& x,
             const std::optional<FloatVector>& bias, std::int64_t num_experts,
             std::int64_t num_chosen, const std::string& router, bool normalize, float scale,
             const BufferView& y) {
            add_route(self, rows, view(x), bias ? floats(*bias) : nullptr,
                      {router_named(router), num_experts, num_chosen, normalize, scale}, view(y));
          },
          "rows"_a, "x"_a, "bias"_a.none(), "num_experts"_a, "num_chosen"_a, "router"_a,
          "normalize"_a, "scale"_a, "y"_a)
      .def(
          "multiply",
          [](Program& self, RowSet rows, const BufferView& x, const BufferView& gate, bool is_one,
             const std::string& function, std::int64_t width, const BufferView& y) {
            add_multiply(self, rows, view(x), view(gate), is_one, gate_named(function), width,
                         view(y));
          },
          "rows"_a, "x"_a, "gate"_a, "is_one"_a, "function"_a, "width"_a, "y"_a)
      .def(
          "scale",
          [](Program& self, RowSet rows, const BufferView& x, const FloatVector& factors,
             std::int64_t width, const BufferView& y) {
            add_scale(self, rows, view(x), floats(factors), width, view(y));
          },
          "rows"_a, "x"_a, "factors"_a, "width"_a, "y"_a)
      .def(
          "causal_convolution",
          [](Program& self, const BufferView& x, const FloatVector& weight,
             const std::optional<FloatVector>& bias, std::int64_t num_channels, std::int64_t first,
             const BufferView& y) {
            add_causal_convolution(self, view(x), floats(weight), bias ? floats(*bias) : nullptr,
                                   num_channels, first, view(y));
          },
          "x"_a, "weight"_a, "bias"_a.none(), "num_channels"_a, "first"_a, "y"_a)
      .def(
          "gated_delta_net",
          [](Program& self, const BufferView& qkv, const BufferView& b, const BufferView& a,
             const FloatVector& log_decay, const FloatVector& step_bias, std::int64_t num_key_heads,
             std::int64_t num_value_heads, std::int64_t key_dim, std::int64_t value_dim, bool tiled,
             std::int64_t first, const BufferView& y) {
            add_gated_delta_net(
                self, view(qkv), view(b), view(a), floats(log_decay), floats(step_bias),
                {num_key_heads, num_value_heads, key_dim, value_dim, tiled}, first, view(y));
          },
          "qkv"_a, "b"_a, "a"_a, "log_decay"_a, "step_bias"_a, "num_key_heads"_a,
          "num_value_heads"_a, "key_dim"_a, "value_dim"_a, "tiled"_a, "first"_a, "y"_a)
      .def(
          "add",
          [](Program& self, RowSet rows, const BufferView& a, const BufferView& b,
             std::int64_t width,
             const BufferView& y) { add_sum(self, rows, view(a), view(b), width, view(y)); },
          "rows"_a, "a"_a, "b"_a, "width"_a, "y"_a)
      .def(
          "softcap",
          [](Program& self, RowSet rows, const BufferView& x, float cap, std::int64_t width,
             const BufferView& y) { add_softcap(self, rows, view(x), cap, width, view(y)); },
          "rows"_a, "x"_a, "cap"_a, "width"_a, "y"_a)
      .def(
          "largest",
          [](Program& self, const BufferView& x, std::int64_t width) {
            add_largest(self, view(x), width);
          },
          "x"_a, "width"_a)
      .def(
          "draw",
          [](Program& self, const BufferView& x, std::int64_t width) {
            add_draw(self, view(x), width);
          },
          "x"_a, "width"_a)
      .def(
          "gather",
          [](Program& self, const BufferView& x, std::int64_t width, const BufferView& y) {
            add_gather(self, view(x), width, view(y));
          },
          "x"_a, "width"_a, "y"_a)
      .def(
          "store_kv",
          [](Program& self, std::int64_t layer, const BufferView& k, const BufferView& v,
             std::int64_t num_kv_heads, std::int64_t head_dim, std::int64_t group) {
            add_store_kv(self, {layer, group}, view(k), view(v), num_kv_heads, head_dim);
          },
          "layer"_a, "k"_a, "v"_a, "num_kv_heads"_a, "head_dim"_a, "group"_a = 0,
          "Stores keys and values of a layer of a group of the cache.")
      .def(
          "finish",
          [](Program& self, std::optional<int> output) {
            if (output) self.set_output(*output);
            self.finish();
          },
          "output"_a.none(), "Plans the memory; `output` is the buffer that callers get, if any.")
      .def_prop_ro("max_rows", &Program::max_rows)
      .def_prop_ro("output_width", &Program::output_width)
      .def_prop_ro("output_rows", &Program::output_rows)
      .def_prop_ro("scratch_bytes", &Program::scratch_bytes)
      .def_prop_ro("stage_names", &Program::stage_names, "What runs between two barriers.")
      .def("run", &run_program, "output"_a, "token_ids"_a, "positions"_a, "slot_mapping"_a,
           "query_start"_a, "seq_lens"_a, "block_tables"_a, "logits_indices"_a, "state_slots"_a,
           "frequencies"_a, "inputs"_a, "kv_cache"_a.none() = nb::none(),
           "states"_a.none() = nb::none(), "stage_seconds"_a = nb::none(),
           "draws"_a = std::vector<RowDraw>(),
           "One step. `stage_seconds` is filled if given. Returns where each row of logits is "
           "largest, the first of equals, the first NaN if there is one (nothing if the program "
           "does not note it); and the token of each of `draws`, pairs of a row of logits and a "
           "Draw in order of rows: -1 where the request's parameters or logits leave none; and the "
           "bytes of experts' weights that the step read.");
}

}  // namespace pellucid
