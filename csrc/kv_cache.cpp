// The memory of the KV cache: where layers and blocks lie, and moves of whole blocks.
#include "kv_cache.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "memory_units.h"
#include "rounding.h"

namespace pellucid {
namespace {

struct FormatFacts {
  const char* name;
  int key_bits;
  int value_bits;
  bool has_open_keys = false;
};

// In the order of KVFormat.
constexpr FormatFacts kFormats[kNumKVFormats] = {
    {"f32", 32, 32}, {"bf16", 16, 16}, {"int8", 8, 8}, {"int8,int4", 8, 4}, {"int4", 4, 4, true}};
constexpr std::int64_t kScaleBytes = 2;
constexpr std::int64_t kOpenBytes = 2;  // of a number in bf16

// The sizes and distances of a layer of the group, as if its blocks stood one after the other.
KVView view_of(const KVShape& shape, const KVGroup& group) {
  const FormatFacts& format = kFormats[static_cast<int>(shape.format)];
  const std::int64_t padding = format.key_bits <= 8 ? kKVGroupDims : 16;
  KVView view{};
  view.block_size = shape.block_size;
  view.num_kv_heads = group.num_kv_heads;
  view.head_dim = group.head_dim;
  view.padded_dim = round_up(group.head_dim, padding);
  const std::int64_t num_groups = view.padded_dim / kKVGroupDims;
  if (format.key_bits == 8) view.key_groups = num_groups;
  if (format.value_bits == 8) view.value_groups = 1;
  if (format.value_bits == 4) view.value_groups = num_groups;
  view.value_offset = kTileTokens * view.padded_dim * format.key_bits / 8;
  view.scale_offset = view.value_offset + kTileTokens * view.padded_dim * format.value_bits / 8;
  const std::int64_t num_key_scales =
      format.has_open_keys ? view.padded_dim : kTileTokens * view.key_groups;
  view.value_scale_offset = view.scale_offset + num_key_scales * kScaleBytes;
  view.tile_bytes =
      round_up(view.value_scale_offset + kTileTokens * view.value_groups * kScaleBytes, kCacheLine);
  view.open_tile_bytes = format.has_open_keys ? kTileTokens * view.padded_dim * kOpenBytes : 0;
  view.head_bytes = shape.block_size / kTileTokens * view.tile_bytes;
  view.block_bytes = group.num_kv_heads * view.head_bytes;
  return view;
}

// Of a group of positions in one layer.
std::int64_t open_group_bytes(const KVShape& shape, const KVGroup& group) {
  return group.num_kv_heads * kOpenTiles * view_of(shape, group).open_tile_bytes;
}

// Of a group of positions in all layers.
std::int64_t open_group_bytes(const KVShape& shape) {
  std::int64_t sum = 0;
  for (const KVGroup& group : shape.groups)
    sum += group.num_layers * open_group_bytes(shape, group);
  return sum;
}

// Of a place in all areas.
std::int64_t area_place_bytes(const KVShape& shape, const OpenShape& open) {
  if (open.has_area_for_each_layer) return open_group_bytes(shape);
  std::int64_t most = 0;
  for (const KVGroup& group : shape.groups) most = std::max(most, open_group_bytes(shape, group));
  return most;
}

std::int64_t area_places(const OpenShape& open) { return open.max_step_tokens / kOpenTokens; }

}  // namespace

std::optional<KVFormat> find_kv_format(std::string_view name) {
  for (int i = 0; i < kNumKVFormats; ++i) {
    if (name == kFormats[i].name) return static_cast<KVFormat>(i);
  }
  return std::nullopt;
}

bool has_open_keys(KVFormat format) { return kFormats[static_cast<int>(format)].has_open_keys; }

const char* kv_format_name(KVFormat format) { return kFormats[static_cast<int>(format)].name; }

std::int64_t kv_bytes_per_block(const KVShape& shape) {
  std::int64_t most = 0;
  for (const KVGroup& group : shape.groups) {
    most = std::max(most, group.num_layers * view_of(shape, group).block_bytes);
  }
  return most;
}

KVCache::KVCache(const KVShape& shape, std::int64_t num_blocks, const OpenShape& open)
    : shape_(shape),
      num_blocks_(num_blocks),
      buffer_(static_cast<std::size_t>(num_blocks * kv_bytes_per_block(shape))),
      open_(open),
      slot_bytes_(kOpenGroups * open_group_bytes(shape)),
      open_keys_(static_cast<std::size_t>(open.num_slots * slot_bytes_ +
                                          area_places(open) * area_place_bytes(shape, open))) {
  assert(num_blocks >= 1);
  for ([[maybe_unused]] const KVGroup& group : shape.groups) {
    assert(group.num_layers >= 1 && group.num_kv_heads >= 1);
    assert(group.head_dim >= 8 && group.head_dim % 8 == 0 && group.head_dim <= kMaxHeadDim);
  }
  assert(shape.block_size >= kTileTokens && shape.block_size % kTileTokens == 0);
  assert(!has_open_keys(shape.format) || shape.block_size % kOpenTokens == 0);
}

KVView KVCache::layer(KVPlace place) {
  assert(place.group >= 0 && place.group < shape_.num_groups());
  assert(place.layer >= 0 && place.layer < shape_.group(place.group).num_layers);
  KVView view = view_of(shape_, shape_.group(place.group));
  view.blocks = reinterpret_cast<std::uint8_t*>(buffer_.data()) + place.layer * view.block_bytes;
  view.block_bytes = bytes_per_block();
  if (!has_open_keys(shape_.format)) return view;
  std::int64_t before = 0;  // bytes of a group of positions in the layers before this one
  for (std::int64_t g = 0; g < place.group; ++g) {
    before += shape_.group(g).num_layers * open_group_bytes(shape_, shape_.group(g));
  }
  before += place.layer * open_group_bytes(shape_, shape_.group(place.group));
  auto* const slots = reinterpret_cast<std::uint8_t*>(open_keys_.data());
  view.open_slots = slots + kOpenGroups * before;
  view.open_slot_bytes = slot_bytes_;
  view.open_area = slots + open_.num_slots * slot_bytes_ +
                   (open_.has_area_for_each_layer ? area_places(open_) * before : 0);
  return view;
}

void KVCache::copy_slot(std::int64_t source, std::int64_t target) {
  assert(source >= 0 && source < open_.num_slots && target >= 0 && target < open_.num_slots);
  const auto size = static_cast<std::size_t>(slot_bytes_);
  std::byte* const slots = open_keys_.data();
  std::memmove(slots + target * slot_bytes_, slots + source * slot_bytes_, size);
}

void KVCache::read_slot(std::int64_t slot, std::uint8_t* data) const {
  assert(slot >= 0 && slot < open_.num_slots);
  std::memcpy(data, open_keys_.data() + slot * slot_bytes_, static_cast<std::size_t>(slot_bytes_));
}

void KVCache::write_slot(std::int64_t slot, const std::uint8_t* data) {
  assert(slot >= 0 && slot < open_.num_slots);
  std::memcpy(open_keys_.data() + slot * slot_bytes_, data, static_cast<std::size_t>(slot_bytes_));
}

std::byte* KVCache::block(std::int64_t block) {
  assert(block >= 0 && block < num_blocks_);
  return buffer_.data() + block * bytes_per_block();
}

void KVCache::copy_block(std::int64_t source, std::int64_t target) {
  assert(source != target);
  std::memcpy(block(target), block(source), static_cast<std::size_t>(bytes_per_block()));
}

void KVCache::read_block(std::int64_t source, std::uint8_t* data) {
  std::memcpy(data, block(source), static_cast<std::size_t>(bytes_per_block()));
}

void KVCache::write_block(std::int64_t target, const std::uint8_t* data) {
  std::memcpy(block(target), data, static_cast<std::size_t>(bytes_per_block()));
}

}  // namespace pellucid
