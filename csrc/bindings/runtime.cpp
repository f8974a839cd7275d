// Python's Kernels (of one instruction set), ThreadPool and Roofline (bandwidth and peak).
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "isa.h"
#include "require.h"
#include "roofline.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

constexpr int kMaxThreads = 1024;

std::vector<std::string> kernel_levels() {
  std::vector<std::string> names;
  for (const KernelTable* table : supported_kernel_tables()) names.push_back(table->isa);
  return names;
}

const KernelTable& find_kernels(const std::string& isa) {
  const KernelTable* const table = find_kernel_table(isa);
  if (table != nullptr) return *table;
  std::string allowed;
  for (const std::string& name : kernel_levels()) allowed += (allowed.empty() ? "" : ", ") + name;
  throw nb::value_error(("isa='" + isa + "': this machine runs " + allowed).c_str());
}

}  // namespace

void bind_runtime(nb::module_& m) {
  nb::class_<KernelTable>(m, "Kernels", "The kernels of one instruction set level.")
      .def_ro("isa", &KernelTable::isa, "\"avx512\", \"avx2\", \"neon\" or \"portable\".");
  m.def("kernel_levels", &kernel_levels,
        "The instruction set levels that were built and that this machine runs, best first.");
  m.def("find_kernels", &find_kernels, nb::rv_policy::reference, "isa"_a = "",
        "The best kernels, or those of one level. ValueError if this machine cannot run that.");

  nb::class_<ThreadPool>(m, "ThreadPool", "Threads that work through a step together.")
      .def(
          "__init__",
          [](ThreadPool* self, int num_threads) {
            require(num_threads >= 1 && num_threads <= kMaxThreads, "num_threads=", num_threads,
                    ": allowed are 1 to ", kMaxThreads);
            new (self) ThreadPool(num_threads);
          },
          "num_threads"_a, "The caller's own thread is one of `num_threads`.")
      .def_prop_ro("num_threads", &ThreadPool::num_threads, "Of the next run.")
      .def_prop_ro("max_threads", &ThreadPool::max_threads, "What the pool was made for.")
      .def(
          "resize",
          [](ThreadPool& self, int num_threads) {
            require(num_threads >= 1 && num_threads <= self.max_threads(),
                    "num_threads=", num_threads, ": allowed are 1 to ", self.max_threads());
            const nb::gil_scoped_release without_gil;
            self.resize(num_threads);
          },
          "num_threads"_a,
          "Ends or starts threads, 1 to max_threads of them. Waits for a run that is under way.");

  nb::class_<Roofline>(m, "Roofline",
                       "What this machine does at best; a multiplication and its addition are two "
                       "operations.")
      .def_ro("read_bytes_per_second", &Roofline::read_bytes_per_second)
      .def_ro("int8_ops_per_second", &Roofline::int8_ops_per_second)
      .def_ro("bf16_flops_per_second", &Roofline::bf16_flops_per_second)
      .def_ro("f32_flops_per_second", &Roofline::f32_flops_per_second);
  m.def(
      "measure_roofline",
      [](const KernelTable& kernels, ThreadPool& pool) { return measure_roofline(kernels, pool); },
      "kernels"_a, "pool"_a, nb::call_guard<nb::gil_scoped_release>(),
      "Reads memory and multiplies on all threads of the pool, for a second or two.");
}

}  // namespace pellucid
