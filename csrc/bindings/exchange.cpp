// Python's Exchange: numbers that several processes compute together.
#include "exchange.h"

#include <nanobind/nanobind.h>

#include <cstdint>

#include "bindings/bindings.h"
#include "require.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {

void bind_exchange(nb::module_& m) {
  nb::class_<Exchange>(m, "Exchange",
                       "Gathers, on each of several processes, what each of them has computed.")
      .def(
          "__init__",
          [](Exchange* self, int rank, int num_ranks, std::uintptr_t gather, std::uintptr_t test,
             std::uintptr_t communicator, std::uintptr_t number_type) {
            require(num_ranks >= 1 && rank >= 0 && rank < num_ranks, "rank=", rank,
                    ": must be below num_ranks=", num_ranks);
            require(gather != 0 && test != 0, "gather, test: must be addresses");
            new (self) Exchange(rank, num_ranks, {gather, test, communicator, number_type});
          },
          "rank"_a, "num_ranks"_a, "gather"_a, "test"_a, "communicator"_a, "number_type"_a,
          "`gather` and `test` are the addresses of MPI_Iallgatherv and MPI_Test, `communicator` "
          "and `number_type` (MPI_FLOAT) handles, as integers.")
      .def_prop_ro("rank", &Exchange::rank)
      .def_prop_ro("num_ranks", &Exchange::num_ranks)
      .def("fail", &Exchange::fail,
           "Ends a step that waits for other ranks, and all later ones, with a RuntimeError.")
      .def_prop_ro("has_failed", &Exchange::has_failed)
      .def_prop_ro("num_calls", &Exchange::num_calls, "How often numbers were gathered.")
      .def_prop_ro("seconds", &Exchange::seconds,
                   "What that took, with the time in which this rank waited for others.");
}

}  // namespace pellucid
