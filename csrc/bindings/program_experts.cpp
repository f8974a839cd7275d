// Python's ProgramExperts: mixtures of experts as ops of a Program.
#include "program_experts.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/program_arguments.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

using WeightList = std::vector<std::shared_ptr<LinearWeights>>;

std::vector<Weights> weight_list(const WeightList& list) { return {list.begin(), list.end()}; }

}  // namespace

void bind_program_experts(nb::module_& m) {
  nb::class_<ProgramExperts>(m, "ProgramExperts", "Adds mixtures of experts to a program.")
      .def(
          "__init__",
          [](ProgramExperts* self, Program& program, std::int64_t num_experts,
             std::int64_t num_chosen, std::shared_ptr<Exchange> exchange,
             std::vector<std::int64_t> starts) {
            new (self) ProgramExperts(program, num_experts, num_chosen,
                                      {std::move(exchange), std::move(starts)});
          },
          nb::keep_alive<1, 2>(), "program"_a, "num_experts"_a, "num_chosen"_a,
          "exchange"_a.none() = nb::none(), "starts"_a = std::vector<std::int64_t>(),
          "With an `exchange`, rank r computes the experts from starts[r] to starts[r + 1].")
      .def(
          "expert_mlp",
          [](ProgramExperts& self, RowSet rows, const BufferView& x, const BufferView& weights,
             const WeightList& gate, const WeightList& up, const WeightList& down,
             const std::string& activation, const BufferView& y, bool add_to_y) {
            self.add_expert_mlp(rows, view(x), view(weights),
                                {weight_list(gate), weight_list(up), weight_list(down)},
                                activation_named(activation), view(y), add_to_y);
          },
          "rows"_a, "x"_a, "weights"_a, "gate"_a, "up"_a, "down"_a, "activation"_a, "y"_a,
          "add_to_y"_a);
}

}  // namespace pellucid
