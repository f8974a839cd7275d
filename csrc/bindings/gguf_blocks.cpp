// Python's unpack_blocks: GGUF blocks into the arrays of a matrix.
#include "gguf_blocks.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

constexpr std::int64_t kBlocksOfPiece = 4096;

using WritableArray = nb::ndarray<nb::c_contig, nb::device::cpu>;
using OptionalArray = std::optional<WritableArray>;

std::vector<std::string> block_types() {
  std::vector<std::string> names;
  for (const BlockType& type : kBlockTypes) names.emplace_back(type.name);
  return names;
}

// The data of an optional array. It must be given exactly if `is_wanted`, and have `num_bytes`.
void* checked(const char* name, const OptionalArray& array, bool is_wanted,
              std::int64_t num_bytes) {
  require(array.has_value() == is_wanted &&
              (!is_wanted || static_cast<std::int64_t>(array->nbytes()) == num_bytes),
          name, ": wrong size");
  return array ? array->data() : nullptr;
}

void unpack_blocks(const std::string& block_type, const AnyMatrix& rows, const WritableArray& codes,
                   const WritableArray& scales, const OptionalArray& minimums,
                   const OptionalArray& scale_factors, const OptionalArray& minimum_factors,
                   ThreadPool& pool) {
  const BlockType& type = block_type_named(block_type);
  const FormatInfo& info = format_info(type.format);
  const auto num_bytes = static_cast<std::int64_t>(rows.nbytes());
  require(static_cast<std::int64_t>(rows.shape(1)) % type.block_bytes == 0,
          "rows: must be whole blocks");
  const std::int64_t num_blocks = num_bytes / type.block_bytes;
  const std::int64_t num_inputs = num_blocks * type.block_inputs;
  const std::int64_t scale_bytes = num_inputs / info.tile_inputs * group_scale_bytes(info);
  const std::int64_t factor_bytes = num_inputs / kBlockInputs * 2;
  const bool has_minimum_factors = has_factors(info) && info.has_minimums;
  const WeightTarget target{
      checked("codes", codes, true, num_inputs * source_bits(info) / 8),
      checked("scales", scales, true, scale_bytes),
      nullptr,
      checked("minimums", minimums, info.has_minimums, scale_bytes),
      static_cast<std::uint16_t*>(
          checked("scale_factors", scale_factors, has_factors(info), factor_bytes)),
      static_cast<std::uint16_t*>(
          checked("minimum_factors", minimum_factors, has_minimum_factors, factor_bytes))};
  const auto* const blocks = static_cast<const std::uint8_t*>(rows.data());
  const nb::gil_scoped_release without_gil;
  pool.run([&](Worker& worker) {
    worker.parallel_for(num_blocks, kBlocksOfPiece, [&](std::int64_t begin, std::int64_t end) {
      type.unpack(blocks + begin * type.block_bytes, begin, end - begin, target);
    });
  });
}

bool blocks_are_finite(const std::string& block_type, const AnyMatrix& rows) {
  const BlockType& type = block_type_named(block_type);
  const nb::gil_scoped_release without_gil;
  return are_finite(type, static_cast<const std::uint8_t*>(rows.data()),
                    static_cast<std::int64_t>(rows.nbytes()) / type.block_bytes);
}

}  // namespace

void bind_gguf_blocks(nb::module_& m) {
  m.def("block_types", &block_types, "The types that `unpack_blocks` knows, by GGUF's names.");
  m.def(
      "unpack_blocks", &unpack_blocks, "block_type"_a, "rows"_a, "codes"_a, "scales"_a,
      "minimums"_a = nb::none(), "scale_factors"_a = nb::none(), "minimum_factors"_a = nb::none(),
      nb::kw_only(), "pool"_a,
      "Fills the arrays of a matrix, of the shapes that `pack_weights` takes, with the numbers in "
      "`rows` of blocks [N, bytes].");
  m.def("blocks_are_finite", &blocks_are_finite, "block_type"_a, "rows"_a,
        "Whether the f16 scales, minimums and factors of `rows` of blocks [N, bytes] are finite.");
}

}  // namespace pellucid
