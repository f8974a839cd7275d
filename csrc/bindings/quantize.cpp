// Python's quantize_weights: quantizes a matrix in NumPy arrays on all threads of a pool.
#include "quantize.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "isa.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

using WritableArray = nb::ndarray<nb::c_contig, nb::device::cpu>;

void quantize_weights(const std::string& format_name, const std::string& float_format_name,
                      const AnyMatrix& weights, const WritableArray& codes,
                      const WritableArray& scales, const std::optional<WritableArray>& zero_points,
                      const KernelTable& kernels, ThreadPool& pool) {
  const Format format = format_named(format_name), from = format_named(float_format_name);
  const FormatInfo& info = format_info(format);
  const FormatInfo& from_info = format_info(from);
  require(info.is_integer && !info.has_minimums && !has_factors(info) && !has_codebook(info),
          "format='", format_name, "': nothing is quantized to it");
  const auto num_outputs = static_cast<std::int64_t>(weights.shape(0));
  const auto k = static_cast<std::int64_t>(weights.shape(1));
  require(num_outputs >= 1 && k >= 1, "weights: must not be empty");
  require(!from_info.is_integer && (weights.dtype().bits + 7) / 8 == from_info.weight_bits / 8,
          "float_format='", float_format_name, "': does not fit the weights");
  const std::int64_t num_groups =
      num_outputs *
      (has_group_scales(info) ? (k + info.tile_inputs - 1) / info.tile_inputs : std::int64_t{1});
  const auto has_bytes = [](const WritableArray& array, std::int64_t num_bytes) {
    return static_cast<std::int64_t>(array.nbytes()) == num_bytes;
  };
  require(has_bytes(codes, num_outputs * ((k * info.weight_bits + 7) / 8)), "codes: wrong size");
  require(has_bytes(scales, num_groups * (has_group_scales(info) ? 2 : 4)), "scales: wrong size");
  require(zero_points.has_value() == info.has_zero_points &&
              (!zero_points || has_bytes(*zero_points, num_groups)),
          "zero_points: wrong size");

  const FloatMatrixView matrix{weights.data(), from, num_outputs, k};
  WeightTarget target{codes.data(), scales.data()};
  if (zero_points) target.zero_points = static_cast<std::uint8_t*>(zero_points->data());
  std::vector<MatrixQuantizer> quantizers;
  for (int i = 0; i < pool.max_threads(); ++i) {
    quantizers.emplace_back(kernels, matrix, format, target);
  }
  const nb::gil_scoped_release without_gil;
  pool.run([&](Worker& worker) {
    MatrixQuantizer& own = quantizers[static_cast<std::size_t>(worker.index())];
    worker.parallel_for(own.num_pieces(), 64,
                        [&](std::int64_t begin, std::int64_t end) { own.run(begin, end); });
  });
}

}  // namespace

void bind_quantize(nb::module_& m) {
  m.def("quantize_weights", &quantize_weights, "format"_a, "float_format"_a, "weights"_a, "codes"_a,
        "scales"_a, "zero_points"_a.none(), nb::kw_only(), "kernels"_a, "pool"_a,
        "Quantizes `weights` [N, K], f32 or bits of f16 or bf16, all finite, into arrays of the "
        "shapes that `pack_weights` takes. Scales that f16 cannot hold become infinite.");
}

}  // namespace pellucid
