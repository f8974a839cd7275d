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
      .def(nb::init<Program&, std::int64_t, std::int64_t>(), nb::keep_alive<1, 2>(), "program"_a,
           "num_experts"_a, "num_chosen"_a)
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
