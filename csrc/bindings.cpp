// The extension module pellucid._native: the only file that knows Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cpu_info.h"
#include "isa.h"
#include "kv_cache.h"
#include "program.h"
#include "program_attention.h"
#include "program_ops.h"
#include "quantize.h"
#include "roofline.h"
#include "thread_pool.h"
#include "weight_memory.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using pellucid::CacheLevel;
using pellucid::CpuThreads;
using pellucid::ThreadLimit;

struct CpuInfo {
  std::vector<std::string> features;
  std::vector<CacheLevel> caches;
  CpuThreads threads;
};

CpuInfo cpu_info(const std::string& root) {
  return {pellucid::cpu_features(), pellucid::cpu_caches(root), pellucid::cpu_threads(root)};
}

const char* thread_limit_name(ThreadLimit limit) {
  switch (limit) {
    case ThreadLimit::kCores:
      return "cores";
    case ThreadLimit::kAffinity:
      return "affinity";
    case ThreadLimit::kQuota:
      return "quota";
  }
  return "";
}

nb::frozenset feature_set(const CpuInfo& self) {
  nb::list names;
  for (const std::string& name : self.features) names.append(name);
  return nb::frozenset(names);
}

nb::tuple cache_tuple(const CpuInfo& self) {
  nb::list caches;
  for (const CacheLevel& cache : self.caches) caches.append(cache);
  return nb::tuple(caches);
}

void bind_cpu_info(nb::module_& m) {
  nb::class_<CacheLevel>(m, "CacheLevel", "One data or unified cache of a CPU.")
      .def_ro("level", &CacheLevel::level, "1 for L1d, 2 for L2, 3 for L3.")
      .def_ro("size_bytes", &CacheLevel::size_bytes, "Bytes in one instance of this cache.")
      .def_ro("num_sharing_cpus", &CacheLevel::num_sharing_cpus,
              "Logical CPUs that share one instance.")
      .def("__repr__", [](const CacheLevel& self) {
        return nb::str("CacheLevel(level={}, size_bytes={}, num_sharing_cpus={})")
            .format(self.level, self.size_bytes, self.num_sharing_cpus);
      });

  // The members of the struct's own `threads` read as the class's: Python sees one flat object.
  const auto thread_count = [](int CpuThreads::* member) {
    return [member](const CpuInfo& self) { return self.threads.*member; };
  };
  nb::class_<CpuInfo>(m, "CpuInfo",
                      "What this process may use of the processor, read when cpu_info() is called.")
      .def_prop_ro("features", &feature_set, nb::sig("def features(self) -> frozenset[str]"),
                   "Instruction set extensions that processor and operating system both support, "
                   "by Linux's names on x86 (\"avx2\", \"avx512_vnni\") and as \"neon\", "
                   "\"dotprod\", \"i8mm\", \"bf16\", \"fp16\", \"sve\" on Arm.")
      .def_prop_ro("caches", &cache_tuple, nb::sig("def caches(self) -> tuple[CacheLevel, ...]"),
                   "Data and unified caches of one CPU, L1 first; empty if the system hides them.")
      .def_prop_ro("num_logical_cpus", thread_count(&CpuThreads::num_logical_cpus),
                   "Logical CPUs online in the machine.")
      .def_prop_ro("num_physical_cores", thread_count(&CpuThreads::num_physical_cores),
                   "Distinct cores among the logical CPUs of the machine.")
      .def_prop_ro("num_allowed_cpus", thread_count(&CpuThreads::num_allowed_cpus),
                   "Logical CPUs in the calling thread's affinity mask.")
      .def_prop_ro("num_allowed_cores", thread_count(&CpuThreads::num_allowed_cores),
                   "Distinct cores in the affinity mask (macOS: the fast cores).")
      .def_prop_ro(
          "cpu_quota", [](const CpuInfo& self) { return self.threads.cpu_quota; },
          "CPUs' worth of time that the process's cgroups grant, the tightest limit on the way to "
          "the root (1.5 is 150 ms in each 100 ms); None without a limit.")
      .def_prop_ro("num_threads", thread_count(&CpuThreads::num_threads),
                   "Compute threads to start: min(num_allowed_cores, ceil(cpu_quota)), at least 1.")
      .def_prop_ro(
          "thread_limit",
          [](const CpuInfo& self) { return thread_limit_name(self.threads.thread_limit); },
          nb::sig("def thread_limit(self) -> typing.Literal['cores', 'affinity', 'quota']"),
          "What num_threads is bounded by: the machine's cores, the affinity mask or the quota.")
      .def("__repr__", [](const CpuInfo& self) {
        return nb::str("CpuInfo(num_threads={}, thread_limit={!r}, caches={}, features={})")
            .format(self.threads.num_threads, thread_limit_name(self.threads.thread_limit),
                    cache_tuple(self), feature_set(self));
      });

  m.def(
      "cpu_info", &cpu_info, "root"_a = "",
      "Look at the processor, the affinity mask and the cgroups as they are now. `root` stands in "
      "front of every path read below /proc and /sys, so that tests can describe a machine.");
}

// -- kernels and threads ------------------------------------------------------------------------

using pellucid::KernelTable;
using pellucid::Roofline;
using pellucid::ThreadPool;

std::vector<std::string> kernel_levels() {
  std::vector<std::string> names;
  for (const KernelTable* table : pellucid::supported_kernel_tables()) names.push_back(table->isa);
  return names;
}

const KernelTable& find_kernels(const std::string& isa) {
  const KernelTable* const table = pellucid::find_kernel_table(isa);
  if (table != nullptr) return *table;
  std::string allowed;
  for (const std::string& name : kernel_levels()) allowed += (allowed.empty() ? "" : ", ") + name;
  throw nb::value_error(("isa='" + isa + "': this machine runs " + allowed).c_str());
}

void bind_runtime(nb::module_& m) {
  nb::class_<KernelTable>(m, "Kernels", "The kernels of one instruction set level.")
      .def_ro("isa", &KernelTable::isa, "\"avx512\", \"avx2\", \"neon\" or \"portable\".");
  m.def("kernel_levels", &kernel_levels,
        "The instruction set levels that were built and that this machine runs, best first.");
  m.def("find_kernels", &find_kernels, nb::rv_policy::reference, "isa"_a = "",
        "The best kernels, or those of one level. ValueError if this machine cannot run that.");

  nb::class_<ThreadPool>(m, "ThreadPool", "Threads that work through a step together.")
      .def(nb::init<int>(), "num_threads"_a, "The caller's own thread is one of `num_threads`.")
      .def_prop_ro("num_threads", &ThreadPool::num_threads);

  nb::class_<Roofline>(m, "Roofline",
                       "What this machine does at best; a multiplication and its addition are two "
                       "operations.")
      .def_ro("read_bytes_per_second", &Roofline::read_bytes_per_second)
      .def_ro("int8_ops_per_second", &Roofline::int8_ops_per_second)
      .def_ro("bf16_flops_per_second", &Roofline::bf16_flops_per_second)
      .def_ro("f32_flops_per_second", &Roofline::f32_flops_per_second);
  m.def("measure_roofline", &pellucid::measure_roofline, "kernels"_a, "pool"_a,
        nb::call_guard<nb::gil_scoped_release>(),
        "Reads memory and multiplies on all threads of the pool, for a second or two.");
}

// -- weights ------------------------------------------------------------------------------------

using pellucid::Activations;
using pellucid::Format;
using pellucid::FormatInfo;
using pellucid::LinearWeights;
using pellucid::PackedMatrix;
using pellucid::WeightMemory;

using AnyMatrix = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using AnyArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatVector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using AnyOptional = std::optional<AnyArray>;

void require(bool condition, const std::string& what) {
  if (!condition) throw nb::value_error(what.c_str());
}

Format format_named(const std::string& name) {
  std::string allowed;
  for (int i = 0; i < pellucid::kNumFormats; ++i) {
    const auto format = static_cast<Format>(i);
    if (name == pellucid::format_info(format).name) return format;
    allowed += std::string(allowed.empty() ? "" : ", ") + pellucid::format_info(format).name;
  }
  throw nb::value_error(("format='" + name + "': allowed are " + allowed).c_str());
}

std::size_t item_bytes(const AnyArray& array) { return (array.dtype().bits + 7u) / 8u; }

// Whether an array of numbers of `num_bytes` is there exactly if it is wanted, and has `size` of
// them.
void check_part(const char* name, const FormatInfo& info, const AnyOptional& part, bool is_wanted,
                std::int64_t size, std::size_t num_bytes) {
  const std::string format = "format='" + std::string(info.name) + "'";
  require(part.has_value() == is_wanted,
          std::string(name) + ": " + format + " has " + (is_wanted ? "them" : "none"));
  require(!is_wanted ||
              (static_cast<std::int64_t>(part->size()) == size && item_bytes(*part) == num_bytes),
          std::string(name) + ": " + format + " needs " + std::to_string(size) + " of " +
              std::to_string(num_bytes) + " bytes each");
}

template <class T = void>
const T* data_of(const AnyOptional& part) {
  return part ? static_cast<const T*>(part->data()) : nullptr;
}

std::shared_ptr<LinearWeights> pack_weights(
    const std::string& format_name, const AnyMatrix& weights, const AnyOptional& scales,
    const AnyOptional& zero_points, const AnyOptional& minimums, const AnyOptional& scale_factors,
    const AnyOptional& minimum_factors, std::optional<std::int64_t> num_inputs,
    const std::optional<FloatVector>& bias, const std::string& activations, ThreadPool& pool,
    std::shared_ptr<WeightMemory> memory) {
  const Format format = format_named(format_name);
  const FormatInfo& info = pellucid::format_info(format);
  require(activations == "native" || activations == "f32",
          "activations='" + activations + "': allowed are native, f32");
  const auto num_outputs = static_cast<std::int64_t>(weights.shape(0));
  const auto num_columns = static_cast<std::int64_t>(weights.shape(1));
  const std::int64_t k = num_inputs.value_or(info.weight_bits == 4 ? 2 * num_columns : num_columns);
  require(num_outputs >= 1 && k >= 1, "weights: must not be empty");
  require(num_columns == (info.weight_bits == 4 ? (k + 1) / 2 : k),
          "num_inputs=" + std::to_string(k) + " does not fit weights of " +
              std::to_string(num_columns) + " columns");
  require((weights.dtype().bits + 7) / 8 == (info.weight_bits == 4 ? 1 : info.weight_bits / 8),
          "weights: numbers of another size than format='" + format_name + "' has");

  const std::int64_t num_groups = (k + info.tile_inputs - 1) / info.tile_inputs;
  const std::int64_t num_blocks = (k + pellucid::kBlockInputs - 1) / pellucid::kBlockInputs;
  const std::int64_t all_groups = num_outputs * num_groups, all_blocks = num_outputs * num_blocks;
  const auto scale_bytes = static_cast<std::size_t>(pellucid::group_scale_bytes(info));
  require(!info.is_integer || k <= 65536,
          "num_inputs=" + std::to_string(k) + ": integer formats allow up to 65536");
  if (pellucid::has_channel_scales(info)) {
    check_part("scales", info, scales, true, num_outputs, sizeof(float));
  } else {
    check_part("scales", info, scales, info.has_group_scales, all_groups, scale_bytes);
  }
  check_part("zero_points", info, zero_points, info.has_zero_points, all_groups, 1);
  check_part("minimums", info, minimums, info.has_minimums, all_groups, scale_bytes);
  check_part("scale_factors", info, scale_factors, info.has_factors, all_blocks, 2);
  check_part("minimum_factors", info, minimum_factors, info.has_factors && info.has_minimums,
             all_blocks, 2);
  require(!bias || static_cast<std::int64_t>(bias->size()) == num_outputs,
          "bias: must have one number per row of weights");

  const auto kind = activations == "f32" ? Activations::kF32 : Activations::kNative;
  auto packed = std::make_shared<LinearWeights>(
      LinearWeights{PackedMatrix(format, num_outputs, k, kind, std::move(memory)), {}});
  if (bias) packed->bias.assign(bias->data(), bias->data() + bias->size());
  const pellucid::WeightSource source{weights.data(),
                                      data_of(scales),
                                      data_of<std::uint8_t>(zero_points),
                                      data_of(minimums),
                                      data_of<std::uint16_t>(scale_factors),
                                      data_of<std::uint16_t>(minimum_factors)};
  const nb::gil_scoped_release without_gil;
  pool.run([&](pellucid::Worker& worker) {
    worker.parallel_for(packed->matrix.num_panels(), 4, [&](std::int64_t begin, std::int64_t end) {
      packed->matrix.pack(source, begin, end);
    });
  });
  return packed;
}

using WritableArray = nb::ndarray<nb::c_contig, nb::device::cpu>;

void quantize_weights(const std::string& format_name, const std::string& float_format_name,
                      const AnyMatrix& weights, const WritableArray& codes,
                      const WritableArray& scales, const std::optional<WritableArray>& zero_points,
                      const KernelTable& kernels, ThreadPool& pool) {
  const Format format = format_named(format_name), from = format_named(float_format_name);
  const FormatInfo& info = pellucid::format_info(format);
  const FormatInfo& from_info = pellucid::format_info(from);
  require(info.is_integer && !info.has_minimums && !info.has_factors,
          "format='" + format_name + "': nothing is quantized to it");
  const auto num_outputs = static_cast<std::int64_t>(weights.shape(0));
  const auto k = static_cast<std::int64_t>(weights.shape(1));
  require(num_outputs >= 1 && k >= 1, "weights: must not be empty");
  require(!from_info.is_integer && (weights.dtype().bits + 7) / 8 == from_info.weight_bits / 8,
          "float_format='" + float_format_name + "': does not fit the weights");
  const std::int64_t num_groups =
      num_outputs *
      (info.has_group_scales ? (k + info.tile_inputs - 1) / info.tile_inputs : std::int64_t{1});
  const auto has_bytes = [](const WritableArray& array, std::int64_t num_bytes) {
    return static_cast<std::int64_t>(array.nbytes()) == num_bytes;
  };
  require(has_bytes(codes, num_outputs * ((k * info.weight_bits + 7) / 8)), "codes: wrong size");
  require(has_bytes(scales, num_groups * (info.has_group_scales ? 2 : 4)), "scales: wrong size");
  require(zero_points.has_value() == info.has_zero_points &&
              (!zero_points || has_bytes(*zero_points, num_groups)),
          "zero_points: wrong size");

  const pellucid::FloatMatrixView matrix{weights.data(), from, num_outputs, k};
  pellucid::WeightTarget target{codes.data(), scales.data()};
  if (zero_points) target.zero_points = static_cast<std::uint8_t*>(zero_points->data());
  std::vector<pellucid::Quantizer> quantizers;
  for (int i = 0; i < pool.num_threads(); ++i) {
    quantizers.emplace_back(kernels, matrix, format, target);
  }
  const nb::gil_scoped_release without_gil;
  pool.run([&](pellucid::Worker& worker) {
    pellucid::Quantizer& own = quantizers[static_cast<std::size_t>(worker.index())];
    worker.parallel_for(own.num_pieces(), 64,
                        [&](std::int64_t begin, std::int64_t end) { own.run(begin, end); });
  });
}

void bind_weights(nb::module_& m) {
  nb::class_<WeightMemory>(
      m, "WeightMemory", "Memory for all matrices of a model, which is being made ready meanwhile.")
      .def(nb::init<std::size_t>(), "num_bytes"_a);
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
        return pellucid::format_info(self.matrix.format()).name;
      });
  m.def(
      "pack_weights", &pack_weights, "format"_a, "weights"_a, "scales"_a = nb::none(),
      "zero_points"_a = nb::none(), "minimums"_a = nb::none(), "scale_factors"_a = nb::none(),
      "minimum_factors"_a = nb::none(), "num_inputs"_a = nb::none(), "bias"_a = nb::none(),
      nb::kw_only(), "activations"_a = "native", "pool"_a, "memory"_a = nb::none(),
      "Packs a matrix without changing a value. `weights` is row-major: f32, bits of f16 or bf16, "
      "int8 codes [N, K], or two 4-bit codes to a byte [N, ceil(K / 2)], the even input in the low "
      "half. `scales` are f16 [N, groups], for \"int8-channel\" f32 [N]; `zero_points` u8 and "
      "`minimums` f16 [N, groups]. In formats with factors, scales and minimums are s8, to be "
      "multiplied with f16 [N, ceil(K / 256)]. activations=\"f32\" multiplies dequantized weights "
      "with x as it comes.");
  m.def("quantize_weights", &quantize_weights, "format"_a, "float_format"_a, "weights"_a, "codes"_a,
        "scales"_a, "zero_points"_a.none(), nb::kw_only(), "kernels"_a, "pool"_a,
        "Quantizes `weights` [N, K], f32 or bits of f16 or bf16, all finite, into arrays of the "
        "shapes that `pack_weights` takes. Scales that f16 cannot hold become infinite.");
}

// -- the cache ----------------------------------------------------------------------------------

using pellucid::KVCache;
using pellucid::KVShape;

KVShape kv_shape(const std::string& dtype, std::int64_t num_layers, std::int64_t num_kv_heads,
                 std::int64_t head_dim, std::int64_t block_size) {
  const auto format = pellucid::find_kv_format(dtype);
  require(format.has_value(), "kv_cache_dtype='" + dtype + "': allowed are f32, bf16, int8, int4");
  require(num_layers >= 1 && num_kv_heads >= 1, "num_layers, num_kv_heads: must be at least 1");
  require(head_dim >= 8 && head_dim <= 512 && head_dim % 8 == 0,
          "head_dim=" + std::to_string(head_dim) +
              ": the native kernels take multiples of 8, at most 512; backend='numpy' takes any");
  require(block_size >= 16 && block_size % 16 == 0,
          "block_size=" + std::to_string(block_size) + ": must be a multiple of 16");
  return {*format, num_layers, num_kv_heads, head_dim, block_size};
}

using BlockBytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstBlockBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_block(const KVCache& cache, std::int64_t block_id) {
  require(block_id >= 0 && block_id < cache.num_blocks(),
          "block_id=" + std::to_string(block_id) + ": is not in the cache");
}

void check_block_size(const KVCache& cache, std::size_t num_bytes) {
  require(static_cast<std::int64_t>(num_bytes) == cache.bytes_per_block(),
          "data: has " + std::to_string(num_bytes) + " bytes, a block " +
              std::to_string(cache.bytes_per_block()));
}

void copy_block(KVCache& self, std::int64_t source_id, std::int64_t target_id) {
  check_block(self, source_id);
  check_block(self, target_id);
  require(source_id != target_id, "target_id: must not be source_id");
  const nb::gil_scoped_release without_gil;
  self.copy_block(source_id, target_id);
}

void read_block(KVCache& self, std::int64_t block_id, const BlockBytes& data) {
  check_block(self, block_id);
  check_block_size(self, data.size());
  const nb::gil_scoped_release without_gil;
  self.read_block(block_id, data.data());
}

void write_block(KVCache& self, std::int64_t block_id, const ConstBlockBytes& data) {
  check_block(self, block_id);
  check_block_size(self, data.size());
  const nb::gil_scoped_release without_gil;
  self.write_block(block_id, data.data());
}

void bind_kv_cache(nb::module_& m) {
  nb::class_<KVCache>(m, "KVCache", "Keys and values of all layers, in blocks.")
      .def(
          "__init__",
          [](KVCache* self, const std::string& dtype, std::int64_t num_layers,
             std::int64_t num_kv_heads, std::int64_t head_dim, std::int64_t block_size,
             std::int64_t num_blocks) {
            require(num_blocks >= 1, "num_blocks: must be at least 1");
            new (self) KVCache(kv_shape(dtype, num_layers, num_kv_heads, head_dim, block_size),
                               num_blocks);
          },
          "dtype"_a, "num_layers"_a, "num_kv_heads"_a, "head_dim"_a, "block_size"_a, "num_blocks"_a)
      .def_prop_ro("num_bytes", &KVCache::num_bytes)
      .def_prop_ro("num_blocks", &KVCache::num_blocks)
      .def_prop_ro("block_size", [](const KVCache& self) { return self.shape().block_size; })
      .def_prop_ro("num_kv_heads", [](const KVCache& self) { return self.shape().num_kv_heads; })
      .def_prop_ro("head_dim", [](const KVCache& self) { return self.shape().head_dim; })
      .def_prop_ro("bytes_per_block", &KVCache::bytes_per_block,
                   "Of one block in all layers, scales and padding included.")
      .def("copy_block", &copy_block, "source_id"_a, "target_id"_a,
           "Makes a block hold what another one holds, in all layers.")
      .def("read_block", &read_block, "block_id"_a, "data"_a,
           "Fills `data` [bytes_per_block] with what a block holds, layer after layer.")
      .def("write_block", &write_block, "block_id"_a, "data"_a,
           "Makes a block hold what `read_block` gave, of a cache of the same shape.");
  m.def(
      "kv_bytes_per_block",
      [](const std::string& dtype, std::int64_t num_layers, std::int64_t num_kv_heads,
         std::int64_t head_dim, std::int64_t block_size) {
        return pellucid::kv_bytes_per_block(
            kv_shape(dtype, num_layers, num_kv_heads, head_dim, block_size));
      },
      "dtype"_a, "num_layers"_a, "num_kv_heads"_a, "head_dim"_a, "block_size"_a,
      "Bytes of one block in all layers, scales and padding included.");
}

// -- programs -----------------------------------------------------------------------------------

using pellucid::ActivationFunction;
using pellucid::Floats;
using pellucid::Indices;
using pellucid::Program;
using pellucid::ProgramAttention;
using pellucid::RowSet;
using pellucid::Step;
using pellucid::View;

using BufferView = std::pair<int, std::int64_t>;  // buffer, first column
using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntMatrix = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Slots = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Seconds = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

View view(const BufferView& pair) { return {pair.first, pair.second}; }

Floats floats(const FloatVector& vector) {
  return std::make_shared<const std::vector<float>>(vector.data(), vector.data() + vector.size());
}

ActivationFunction activation_named(const std::string& name) {
  if (name == "silu") return ActivationFunction::kSilu;
  if (name == "gelu") return ActivationFunction::kGelu;
  if (name == "gelu_tanh") return ActivationFunction::kGeluTanh;
  throw nb::value_error(("activation='" + name + "': allowed are silu, gelu, gelu_tanh").c_str());
}

std::vector<pellucid::ConstRows> const_rows(const std::vector<FloatMatrix>& arrays) {
  std::vector<pellucid::ConstRows> rows;
  for (const FloatMatrix& array : arrays) {
    rows.push_back({array.data(), static_cast<std::int64_t>(array.shape(0)),
                    static_cast<std::int64_t>(array.shape(1))});
  }
  return rows;
}

// What a wrong number in them would make the kernels read or write out of bounds.
void check_cache_arrays(const Step& step, const KVCache& cache) {
  const std::int64_t block_size = cache.shape().block_size;
  const std::int64_t num_slots = cache.num_blocks() * block_size;
  for (std::int64_t t = 0; t < step.num_tokens; ++t) {
    require(step.slot_mapping[t] >= 0 && step.slot_mapping[t] < num_slots,
            "slot_mapping: " + std::to_string(step.slot_mapping[t]) + " is not in the cache");
  }
  if (step.num_requests == 0) return;
  require(step.query_start[0] == 0 && step.query_start[step.num_requests] == step.num_tokens,
          "query_start: must go from 0 to the number of tokens");
  for (std::int64_t b = 0; b < step.num_requests; ++b) {
    const std::int64_t q_len = step.query_start[b + 1] - step.query_start[b];
    const std::int64_t num_blocks = (step.seq_lens[b] + block_size - 1) / block_size;
    require(q_len >= 1 && q_len <= step.seq_lens[b] && num_blocks <= step.max_blocks,
            "seq_lens: do not fit query_start and block_tables");
    for (std::int64_t i = 0; i < num_blocks; ++i) {
      const std::int32_t block = step.block_tables[b * step.max_blocks + i];
      require(block >= 0 && block < cache.num_blocks(),
              "block_tables: " + std::to_string(block) + " is not in the cache");
    }
  }
}

void run_program(Program& self, const Output& output, const Ints& token_ids, const Ints& positions,
                 const Slots& slot_mapping, const Ints& query_start, const Ints& seq_lens,
                 const IntMatrix& block_tables, const Ints& logits_indices,
                 const std::vector<FloatMatrix>& frequencies,
                 const std::vector<FloatMatrix>& inputs, KVCache* kv_cache,
                 const std::optional<Seconds>& stage_seconds) {
  Step step;
  step.num_tokens = static_cast<std::int64_t>(token_ids.size());
  step.num_requests = static_cast<std::int64_t>(seq_lens.size());
  step.num_logits = static_cast<std::int64_t>(logits_indices.size());
  step.max_blocks = static_cast<std::int64_t>(block_tables.shape(1));
  step.token_ids = token_ids.data();
  step.positions = positions.data();
  step.slot_mapping = slot_mapping.data();
  step.query_start = query_start.data();
  step.seq_lens = seq_lens.data();
  step.block_tables = block_tables.data();
  step.logits_indices = logits_indices.data();
  step.frequencies = const_rows(frequencies);
  step.inputs = const_rows(inputs);
  step.kv_cache = kv_cache;
  step.output = output.data();
  step.stage_seconds = stage_seconds ? stage_seconds->data() : nullptr;

  const std::size_t num_tokens = token_ids.size();
  require(step.num_tokens <= self.max_rows(), "token_ids: more rows than the program was made for");
  require(positions.size() == num_tokens && slot_mapping.size() == num_tokens,
          "positions, slot_mapping: must be as long as token_ids");
  require(query_start.size() == seq_lens.size() + 1 && block_tables.shape(0) == seq_lens.size(),
          "query_start, block_tables: must have a row for each of seq_lens");
  require(!stage_seconds || stage_seconds->size() == self.stage_names().size(),
          "stage_seconds: must have one number per stage");
  const std::int64_t output_rows =
      self.output_rows() == RowSet::kTokens ? step.num_tokens : step.num_logits;
  require(static_cast<std::int64_t>(output.shape(0)) == output_rows &&
              static_cast<std::int64_t>(output.shape(1)) == self.output_width(),
          "output: must be [" + std::to_string(output_rows) + ", " +
              std::to_string(self.output_width()) + "]");
  if (kv_cache != nullptr) check_cache_arrays(step, *kv_cache);
  const nb::gil_scoped_release without_gil;
  self.run(step);
}

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
             const BufferView& y) { add_embed(self, indices, std::move(table), scale, view(y)); },
          "indices"_a, "table"_a, "scale"_a, "y"_a)
      .def(
          "linear",
          [](Program& self, RowSet rows, const BufferView& x,
             std::shared_ptr<LinearWeights> weights, const BufferView& y, bool add_to_y) {
            add_linear(self, rows, view(x), std::move(weights), view(y), add_to_y);
          },
          "rows"_a, "x"_a, "weights"_a, "y"_a, "add_to_y"_a)
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
          [](Program& self, int index, std::int64_t dim, float factor, const BufferView& y) {
            add_rotations(self, index, dim, factor, view(y));
          },
          "index"_a, "dim"_a, "factor"_a, "y"_a)
      .def(
          "rope",
          [](Program& self, const BufferView& x, const BufferView& rotations,
             std::int64_t num_heads, std::int64_t head_dim, std::int64_t dim, const BufferView& y) {
            add_rope(self, view(x), view(rotations), num_heads, head_dim, dim, view(y));
          },
          "x"_a, "rotations"_a, "num_heads"_a, "head_dim"_a, "dim"_a, "y"_a)
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
          "gather",
          [](Program& self, const BufferView& x, std::int64_t width, const BufferView& y) {
            add_gather(self, view(x), width, view(y));
          },
          "x"_a, "width"_a, "y"_a)
      .def(
          "store_kv",
          [](Program& self, std::int64_t layer, const BufferView& k, const BufferView& v,
             std::int64_t num_kv_heads) {
            add_store_kv(self, layer, view(k), view(v), num_kv_heads);
          },
          "layer"_a, "k"_a, "v"_a, "num_kv_heads"_a)
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
           "query_start"_a, "seq_lens"_a, "block_tables"_a, "logits_indices"_a, "frequencies"_a,
           "inputs"_a, "kv_cache"_a.none() = nb::none(), "stage_seconds"_a = nb::none(),
           "One step. `stage_seconds` is filled if given.");

  nb::class_<ProgramAttention>(m, "ProgramAttention",
                               "Adds attention over the paged cache to a program.")
      .def(
          "__init__",
          [](ProgramAttention* self, Program& program, std::int64_t max_requests,
             std::int64_t max_seq_len, std::int64_t num_heads, std::int64_t num_kv_heads,
             std::int64_t head_dim) {
            new (self)
                ProgramAttention(program, {program.max_rows(), max_requests, max_seq_len, num_heads,
                                           num_kv_heads, head_dim, program.num_threads()});
          },
          nb::keep_alive<1, 2>(), "program"_a, "max_requests"_a, "max_seq_len"_a, "num_heads"_a,
          "num_kv_heads"_a, "head_dim"_a)
      .def(
          "paged_attention",
          [](ProgramAttention& self, std::int64_t layer, const BufferView& q, float scale,
             std::optional<std::int64_t> sliding_window, std::optional<float> softcap,
             const BufferView& y) {
            self.add_attention(layer, view(q),
                               {scale, softcap.value_or(0.0f), sliding_window.value_or(0)},
                               view(y));
          },
          "layer"_a, "q"_a, "scale"_a, "sliding_window"_a.none(), "softcap"_a.none(), "y"_a);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "pellucid's native kernels and what they need to know about the machine.";
  bind_cpu_info(m);
  bind_runtime(m);
  bind_weights(m);
  bind_kv_cache(m);
  bind_program(m);
}
