// Python's LinearWeights and pack_weights, WeightBuffer, WeightFile and WeightPacker.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
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
#include "gguf_blocks.h"
#include "packed_matrix.h"
#include "program_ops.h"
#include "thread_pool.h"
#include "weight_file.h"
#include "weight_memory.h"
#include "weight_packer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

using AnyArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using AnyOptional = std::optional<AnyArray>;
using RowOrder = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::size_t item_bytes(const AnyArray& array) { return (array.dtype().bits + 7u) / 8u; }

// Checks that an optional array is given exactly if `is_wanted`, and then has `size` numbers of
// `num_bytes` each.
void check_part(const char* name, const FormatInfo& info, const AnyOptional& part, bool is_wanted,
                std::int64_t size, std::size_t num_bytes) {
  require(part.has_value() == is_wanted, name, ": format='", info.name, "' has ",
          is_wanted ? "them" : "none");
  require(!is_wanted ||
              (static_cast<std::int64_t>(part->size()) == size && item_bytes(*part) == num_bytes),
          name, ": format='", info.name, "' needs ", size, " of ", num_bytes, " bytes each");
}

template <class T = void>
const T* data_of(const AnyOptional& part) {
  return part ? static_cast<const T*>(part->data()) : nullptr;
}

Activations activations_named(const std::string& name) {
  require(name == "native" || name == "f32", "activations='", name, "': allowed are native, f32");
  return name == "f32" ? Activations::kF32 : Activations::kNative;
}

// A handle of these facts, and zeros for the bias.
std::shared_ptr<LinearWeights> plan_weights(const std::string& format, std::int64_t num_outputs,
                                            std::int64_t num_inputs, bool has_bias,
                                            const std::string& activations) {
  require(num_outputs >= 1, "num_outputs=", num_outputs, ": must be at least 1");
  require(num_inputs >= 1, "num_inputs=", num_inputs, ": must be at least 1");
  return std::make_shared<LinearWeights>(
      LinearWeights{PackedMatrix::without_memory(format_named(format), num_outputs, num_inputs,
                                                 activations_named(activations)),
                    std::vector<float>(has_bias ? static_cast<std::size_t>(num_outputs) : 0)});
}

// Packs a matrix on all threads. `pack` takes a range of panels.
template <class Pack>
void pack_now(const LinearWeights& weights, ThreadPool& pool, const Pack& pack) {
  const nb::gil_scoped_release without_gil;
  pool.run([&](Worker& worker) { worker.parallel_for(weights.matrix.num_panels(), 4, pack); });
}

// The arrays that must live until a matrix is packed.
struct PackingOwner {
  std::shared_ptr<LinearWeights> weights;
  AnyMatrix rows;
  std::vector<AnyOptional> parts;
};

std::shared_ptr<LinearWeights> pack_weights(
    const std::string& format_name, const AnyMatrix& weights, const AnyOptional& scales,
    const AnyOptional& zero_points, const AnyOptional& minimums, const AnyOptional& scale_factors,
    const AnyOptional& minimum_factors, std::optional<std::int64_t> num_inputs,
    const std::optional<FloatVector>& bias, const std::string& activations, ThreadPool& pool,
    std::shared_ptr<WeightMemory> memory, WeightPacker* packer) {
  const Format format = format_named(format_name);
  const FormatInfo& info = format_info(format);
  const auto num_outputs = static_cast<std::int64_t>(weights.shape(0));
  const auto num_columns = static_cast<std::int64_t>(weights.shape(1));
  const std::int64_t k =
      num_inputs.value_or(source_bits(info) == 4 ? 2 * num_columns : num_columns);
  require(num_outputs >= 1 && k >= 1, "weights: must not be empty");
  require(num_columns == (source_bits(info) == 4 ? (k + 1) / 2 : k), "num_inputs=", k,
          " does not fit weights of ", num_columns, " columns");
  require((weights.dtype().bits + 7) / 8 == (source_bits(info) == 4 ? 1 : source_bits(info) / 8),
          "weights: numbers of another size than format='", format_name, "' has");

  const std::int64_t num_groups = (k + info.tile_inputs - 1) / info.tile_inputs;
  const std::int64_t num_blocks = (k + kBlockInputs - 1) / kBlockInputs;
  const std::int64_t all_groups = num_outputs * num_groups, all_blocks = num_outputs * num_blocks;
  const auto scale_bytes = static_cast<std::size_t>(group_scale_bytes(info));
  require(!info.is_integer || k <= 65536, "num_inputs=", k, ": integer formats allow up to 65536");
  if (has_channel_scales(info)) {
    check_part("scales", info, scales, true, num_outputs, sizeof(float));
  } else {
    check_part("scales", info, scales, has_group_scales(info), all_groups, scale_bytes);
  }
  check_part("zero_points", info, zero_points, info.has_zero_points, all_groups, 1);
  check_part("minimums", info, minimums, info.has_minimums, all_groups, scale_bytes);
  check_part("scale_factors", info, scale_factors, has_factors(info), all_blocks, 2);
  check_part("minimum_factors", info, minimum_factors, has_factors(info) && info.has_minimums,
             all_blocks, 2);
  require(!bias || static_cast<std::int64_t>(bias->size()) == num_outputs,
          "bias: must have one number per row of weights");

  auto packed = std::make_shared<LinearWeights>(LinearWeights{
      PackedMatrix(format, num_outputs, k, activations_named(activations), std::move(memory)), {}});
  if (bias) packed->bias.assign(bias->data(), bias->data() + bias->size());
  const WeightSource source{weights.data(),
                            data_of(scales),
                            data_of<std::uint8_t>(zero_points),
                            data_of(minimums),
                            data_of<std::uint16_t>(scale_factors),
                            data_of<std::uint16_t>(minimum_factors)};
  if (packer != nullptr) {
    const std::vector<AnyOptional> parts = {scales, zero_points, minimums, scale_factors,
                                            minimum_factors};
    std::vector<Packing::Bytes> files = {{weights.data(), weights.nbytes()}};
    for (const AnyOptional& part : parts) {
      if (part) files.push_back({part->data(), part->nbytes()});
    }
    const auto pack = [matrix = &packed->matrix, source](std::int64_t begin, std::int64_t end) {
      matrix->pack(source, begin, end);
    };
    packer->add({packed->matrix.num_panels(), pack, std::move(files),
                 std::make_shared<PackingOwner>(PackingOwner{packed, weights, parts})});
    return packed;
  }
  pack_now(*packed, pool,
           [&](std::int64_t begin, std::int64_t end) { packed->matrix.pack(source, begin, end); });
  return packed;
}

// Rows of blocks: the type, the blocks, and which rows of them.
using BlocksArgument = std::tuple<std::string, AnyMatrix, std::optional<RowOrder>>;

struct BlocksOwner {
  std::shared_ptr<LinearWeights> weights;
  std::vector<BlocksArgument> parts;
};

BlockRows block_rows(const BlocksArgument& argument) {
  const auto& [name, blocks, order] = argument;
  const BlockType& type = block_type_named(name);
  const auto num_stored = static_cast<std::int64_t>(blocks.shape(0));
  require(blocks.dtype().bits == 8 && blocks.shape(1) > 0 &&
              static_cast<std::int64_t>(blocks.shape(1)) % type.block_bytes == 0,
          "parts: rows of block_type='", name, "' must be whole blocks");
  BlockRows rows{&type, static_cast<const std::uint8_t*>(blocks.data()),
                 static_cast<std::int64_t>(blocks.shape(1)), num_stored, nullptr};
  if (!order) return rows;
  rows.order = order->data();
  rows.num_rows = static_cast<std::int64_t>(order->size());
  for (std::int64_t i = 0; i < rows.num_rows; ++i) {
    require(rows.order[i] >= 0 && rows.order[i] < num_stored, "parts: row ", rows.order[i], " of ",
            num_stored);
  }
  return rows;
}

std::int64_t inputs_of(const BlockRows& rows) {
  return rows.row_bytes / rows.type->block_bytes * rows.type->block_inputs;
}

std::shared_ptr<LinearWeights> pack_block_weights(const std::vector<BlocksArgument>& parts,
                                                  const std::optional<FloatVector>& bias,
                                                  const std::string& activations, ThreadPool& pool,
                                                  std::shared_ptr<WeightMemory> memory,
                                                  WeightPacker* packer) {
  require(!parts.empty(), "parts: must not be empty");
  std::vector<BlockRows> rows;
  std::vector<Packing::Bytes> files;
  std::int64_t num_outputs = 0;
  for (const BlocksArgument& part : parts) {
    rows.push_back(block_rows(part));
    files.push_back({std::get<1>(part).data(), std::get<1>(part).nbytes()});
    num_outputs += rows.back().num_rows;
    require(rows.back().type->format == rows.front().type->format &&
                inputs_of(rows.back()) == inputs_of(rows.front()),
            "parts: must have one format, and rows of one length");
  }
  const std::int64_t k = inputs_of(rows.front());
  require(num_outputs >= 1, "parts: must not be empty");
  require(k <= 65536, "num_inputs=", k, ": integer formats allow up to 65536");
  require(!bias || static_cast<std::int64_t>(bias->size()) == num_outputs,
          "bias: must have one number per row of weights");
  auto packed = std::make_shared<LinearWeights>(
      LinearWeights{PackedMatrix(rows.front().type->format, num_outputs, k,
                                 activations_named(activations), std::move(memory)),
                    {}});
  if (bias) packed->bias.assign(bias->data(), bias->data() + bias->size());
  const auto pack = [matrix = &packed->matrix, rows = std::move(rows)](std::int64_t begin,
                                                                       std::int64_t end) {
    pack_blocks(rows, *matrix, begin, end);
  };
  if (packer != nullptr) {
    packer->add({packed->matrix.num_panels(), pack, std::move(files),
                 std::make_shared<BlocksOwner>(BlocksOwner{packed, parts})});
  } else {
    pack_now(*packed, pool, pack);
  }
  return packed;
}

}  // namespace

void bind_weights(nb::module_& m) {
  nb::class_<WeightMemory>(m, "WeightMemory", "Memory for matrices.");
  nb::class_<WeightBuffer, WeightMemory>(m, "WeightBuffer", "Memory for all matrices of a model.")
      .def(nb::init<std::size_t>(), "num_bytes"_a);
  nb::class_<WeightFile, WeightMemory>(
      m, "WeightFile", "A nameless file for matrices, of which the system keeps what is read.")
      .def(nb::init<const std::string&>(), "directory"_a)
      .def_prop_ro("num_bytes", &WeightFile::num_bytes)
      .def_prop_ro("bytes_read", &WeightFile::bytes_read, "What steps have read of it.")
      .def_prop_ro("bytes_found", &WeightFile::bytes_found,
                   "How much of `bytes_read` was in memory when a step asked for it.");
  nb::class_<WeightPacker>(m, "WeightPacker", "Packs matrices on a thread of its own.")
      .def(nb::init<std::size_t>(), "num_bytes"_a)
      .def_prop_ro("waiting_bytes", &WeightPacker::waiting_bytes,
                   "Bytes of files that are yet to be packed.")
      .def("help", &WeightPacker::help, "pool"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Packs some tens of megabytes on all threads of `pool`. Returns the bytes of files that "
           "are yet to be packed; 0: all matrices are ready.");
  nb::class_<LinearWeights>(m, "LinearWeights",
                            "A weight matrix [N, K] in the kernels' layout, and its bias [N].")
      .def_prop_ro("num_outputs",
                   [](const LinearWeights& self) { return self.matrix.num_outputs(); })
      .def_prop_ro("num_inputs", [](const LinearWeights& self) { return self.matrix.num_inputs(); })
      .def_prop_ro("num_bytes",
                   [](const LinearWeights& self) {
                     return self.matrix.num_bytes() + sizeof(float) * self.bias.size();
                   })
      .def_prop_ro("format", [](const LinearWeights& self) {
        return format_info(self.matrix.format()).name;
      });
  m.def("plan_weights", &plan_weights, "format"_a, "num_outputs"_a, "num_inputs"_a, "bias"_a,
        nb::kw_only(), "activations"_a = "native",
        "The shape of a matrix, without memory: a program with it has `scratch_bytes`, and does "
        "not run.");
  m.def(
      "pack_weights", &pack_weights, "format"_a, "weights"_a, "scales"_a = nb::none(),
      "zero_points"_a = nb::none(), "minimums"_a = nb::none(), "scale_factors"_a = nb::none(),
      "minimum_factors"_a = nb::none(), "num_inputs"_a = nb::none(), "bias"_a = nb::none(),
      nb::kw_only(), "activations"_a = "native", "pool"_a, "memory"_a = nb::none(),
      "packer"_a = nb::none(),
      "Packs a matrix without changing a value. `weights` is row-major: f32, bits of f16 or bf16, "
      "int8 codes [N, K], or two 4-bit codes to a byte [N, ceil(K / 2)], the even input in the low "
      "half. `scales` are f16 [N, groups], for \"int8-channel\" f32 [N]; `zero_points` u8 and "
      "`minimums` f16 [N, groups]. In formats with factors, scales and minimums are s8, to be "
      "multiplied with f16 [N, ceil(K / 256)]. activations=\"f32\" multiplies dequantized weights "
      "with x as it comes. With a `packer` the arrays are views of mapped files, and the matrix is "
      "ready when its `help` says so.");
  m.def("pack_block_weights", &pack_block_weights, "parts"_a, "bias"_a = nb::none(), nb::kw_only(),
        "activations"_a = "native", "pool"_a, "memory"_a = nb::none(), "packer"_a = nb::none(),
        "Packs the rows of GGUF blocks of all parts: a type, its blocks [rows, bytes], and which "
        "rows of them; None: all. Other arguments are those of `pack_weights`.");
}

}  // namespace pellucid
