// Python's ProgramAttention: attention over the paged cache as an op of a Program.
#include "program_attention.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <cstdint>
#include <optional>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/program_arguments.h"
#include "program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {

void bind_program_attention(nb::module_& m) {
  nb::class_<ProgramAttention>(m, "ProgramAttention",
                               "Adds attention over the paged cache to a program.")
      .def(
          "__init__",
          [](ProgramAttention* self, Program& program, std::int64_t max_requests,
             std::int64_t max_seq_len, std::int64_t num_heads, std::int64_t num_kv_heads,
             std::int64_t head_dim) {
            new (self)
                ProgramAttention(program, {program.max_rows(), max_requests, max_seq_len, num_heads,
                                           num_kv_heads, head_dim, program.max_threads()});
          },
          nb::keep_alive<1, 2>(), "program"_a, "max_requests"_a, "max_seq_len"_a, "num_heads"_a,
          "num_kv_heads"_a, "head_dim"_a)
      .def(
          "paged_attention",
          [](ProgramAttention& self, RowSet rows, std::int64_t layer, const BufferView& q,
             float scale, std::optional<std::int64_t> sliding_window, std::optional<float> softcap,
             const std::optional<FloatVector>& sinks, const BufferView& y, std::int64_t group) {
            self.add_attention(rows, {layer, group}, view(q),
                               {scale, softcap.value_or(0.0f), sliding_window.value_or(0)}, view(y),
                               sinks ? floats(*sinks) : nullptr);
          },
          "rows"_a, "layer"_a, "q"_a, "scale"_a, "sliding_window"_a.none(), "softcap"_a.none(),
          "sinks"_a.none(), "y"_a, "group"_a = 0);
}

}  // namespace pellucid
