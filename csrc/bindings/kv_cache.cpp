// Python's KVCache: the memory of keys and values, and moves of whole blocks.
#include "kv_cache.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

// With these limits and that of head_dim, the number of bytes of a block fits into 64 bits.
constexpr std::int64_t kMaxLayers = 1 << 12, kMaxHeads = 1 << 16, kMaxBlockSize = 1 << 16;
constexpr std::int64_t kMaxSlots = 1 << 20, kMaxStepTokens = 1 << 20;
constexpr std::int64_t kMaxWindow = std::numeric_limits<std::int32_t>::max();

// Layers, kv-heads, head dim and window of a group.
using Group = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

KVShape kv_shape(const std::string& dtype, const std::vector<Group>& groups,
                 std::int64_t block_size) {
  const auto format = find_kv_format(dtype);
  require(format.has_value(), "kv_cache_dtype='", dtype,
          "': allowed are f32, bf16, int8, int8,int4, int4");
  require(block_size >= 16 && block_size % 16 == 0 && block_size <= kMaxBlockSize,
          "block_size=", block_size, ": must be a multiple of 16, at most ", kMaxBlockSize);
  require(!has_open_keys(*format) || block_size % kOpenTokens == 0, "block_size=", block_size,
          ": must be a multiple of ", kOpenTokens, ", whose keys become codes together");
  require(!groups.empty(), "groups: must be one at least");
  KVShape shape{*format, block_size, {}};
  for (const auto& [num_layers, num_kv_heads, head_dim, window] : groups) {
    require(num_layers >= 1 && num_layers <= kMaxLayers && num_kv_heads >= 1 &&
                num_kv_heads <= kMaxHeads,
            "num_layers, num_kv_heads: must be at least 1, at most ", kMaxLayers, " and ",
            kMaxHeads);
    require(head_dim >= 8 && head_dim <= kMaxHeadDim && head_dim % 8 == 0, "head_dim=", head_dim,
            ": the native kernels take multiples of 8, at most ", kMaxHeadDim,
            "; backend='numpy' takes any");
    require(window >= 0 && window <= kMaxWindow, "window=", window, ": allowed are 0 to ",
            kMaxWindow);
    shape.groups.push_back({num_layers, num_kv_heads, head_dim, window});
  }
  return shape;
}

using BlockBytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstBlockBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_block(const KVCache& cache, std::int64_t block_id) {
  require(block_id >= 0 && block_id < cache.num_blocks(), "block_id=", block_id,
          ": is not in the cache");
}

void check_block_size(const KVCache& cache, std::size_t num_bytes) {
  require(static_cast<std::int64_t>(num_bytes) == cache.bytes_per_block(), "data: has ", num_bytes,
          " bytes, a block ", cache.bytes_per_block());
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

void check_slot(const KVCache& cache, std::int64_t slot) {
  require(slot >= 0 && slot < cache.open().num_slots, "slot=", slot, ": is not in the cache");
}

void check_slot_size(const KVCache& cache, std::size_t num_bytes) {
  require(static_cast<std::int64_t>(num_bytes) == cache.slot_bytes(), "data: has ", num_bytes,
          " bytes, a slot ", cache.slot_bytes());
}

void copy_slot(KVCache& self, std::int64_t source, std::int64_t target) {
  check_slot(self, source);
  check_slot(self, target);
  self.copy_slot(source, target);
}

void read_slot(KVCache& self, std::int64_t slot, const BlockBytes& data) {
  check_slot(self, slot);
  check_slot_size(self, data.size());
  self.read_slot(slot, data.data());
}

void write_slot(KVCache& self, std::int64_t slot, const ConstBlockBytes& data) {
  check_slot(self, slot);
  check_slot_size(self, data.size());
  self.write_slot(slot, data.data());
}

}  // namespace

void bind_kv_cache(nb::module_& m) {
  nb::class_<KVCache>(m, "KVCache", "Keys and values of all layers, in blocks.")
      .def(
          "__init__",
          [](KVCache* self, const std::string& dtype, const std::vector<Group>& groups,
             std::int64_t block_size, std::int64_t num_blocks, std::int64_t num_slots,
             std::int64_t max_step_tokens, bool has_area_for_each_layer) {
            const KVShape shape = kv_shape(dtype, groups, block_size);
            const std::int64_t most =
                std::numeric_limits<std::int64_t>::max() / kv_bytes_per_block(shape);
            require(num_blocks >= 1 && num_blocks <= most, "num_blocks=", num_blocks,
                    ": allowed are 1 to ", most);
            require(num_slots >= 1 && num_slots <= kMaxSlots, "num_slots=", num_slots,
                    ": allowed are 1 to ", kMaxSlots);
            require(max_step_tokens >= 0 && max_step_tokens <= kMaxStepTokens,
                    "max_step_tokens=", max_step_tokens, ": allowed are 0 to ", kMaxStepTokens);
            new (self)
                KVCache(shape, num_blocks, {num_slots, max_step_tokens, has_area_for_each_layer});
          },
          "dtype"_a, "groups"_a, "block_size"_a, "num_blocks"_a, "num_slots"_a = 1,
          "max_step_tokens"_a = 0, "has_area_for_each_layer"_a = false,
          "Each group has its number of layers, kv-heads, head dim and window, 0 where there is "
          "none. Open keys have slots, and an area for the groups of a step.")
      .def_prop_ro("num_bytes", &KVCache::num_bytes)
      .def_prop_ro("num_blocks", &KVCache::num_blocks)
      .def_prop_ro("block_size", [](const KVCache& self) { return self.shape().block_size; })
      .def_prop_ro("bytes_per_block", &KVCache::bytes_per_block,
                   "Of one block in all layers of the largest group, scales and padding included.")
      .def_prop_ro("slot_bytes", &KVCache::slot_bytes,
                   "Of the open keys of a slot in all layers; 0 in formats without.")
      .def("copy_slot", &copy_slot, "source"_a, "target"_a,
           "Makes a slot hold what another one holds.")
      .def("read_slot", &read_slot, "slot"_a, "data"_a,
           "Fills `data` [slot_bytes] with what a slot holds, group after group and layer after "
           "layer.")
      .def("write_slot", &write_slot, "slot"_a, "data"_a,
           "Makes a slot hold what `read_slot` gave, of a cache of the same shape.")
      .def("copy_block", &copy_block, "source_id"_a, "target_id"_a,
           "Makes a block hold what another one holds.")
      .def("read_block", &read_block, "block_id"_a, "data"_a,
           "Fills `data` [bytes_per_block] with what a block holds, layer after layer.")
      .def("write_block", &write_block, "block_id"_a, "data"_a,
           "Makes a block hold what `read_block` gave, of a cache of the same shape.");
  m.def(
      "kv_bytes_per_block",
      [](const std::string& dtype, const std::vector<Group>& groups, std::int64_t block_size) {
        return kv_bytes_per_block(kv_shape(dtype, groups, block_size));
      },
      "dtype"_a, "groups"_a, "block_size"_a,
      "Bytes of one block in all layers of the largest group, scales and padding included.");
}

}  // namespace pellucid
