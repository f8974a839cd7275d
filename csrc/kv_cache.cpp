// The memory of the KV cache: where layers and blocks lie, and moves of whole blocks.
#include "kv_cache.h"

#include <cassert>
#include <cstring>

namespace pellucid {
namespace {

constexpr const char* kFormatNames[kNumKVFormats] = {"f32", "bf16", "int8", "int4"};
constexpr int kNumberBits[kNumKVFormats] = {32, 16, 8, 4};
constexpr std::int64_t kScaleBytes = 2;

// A view's sizes and distances; its address is set later.
KVView view_of(const KVShape& shape) {
  const int bits = kNumberBits[static_cast<int>(shape.format)];
  const std::int64_t padding = shape.format == KVFormat::kInt4 ? kInt4GroupDims : 16;
  KVView view{};
  view.block_size = shape.block_size;
  view.num_kv_heads = shape.num_kv_heads;
  view.head_dim = shape.head_dim;
  view.padded_dim = (shape.head_dim + padding - 1) / padding * padding;
  view.num_groups = 0;
  if (shape.format == KVFormat::kInt8) view.num_groups = 1;
  if (shape.format == KVFormat::kInt4) view.num_groups = view.padded_dim / kInt4GroupDims;
  view.value_offset = kTileTokens * view.padded_dim * bits / 8;
  view.scale_offset = 2 * view.value_offset;
  view.tile_bytes = view.scale_offset + 2 * view.num_groups * kTileTokens * kScaleBytes;
  view.head_bytes = shape.block_size / kTileTokens * view.tile_bytes;
  view.block_bytes = shape.num_kv_heads * view.head_bytes;
  return view;
}

}  // namespace

std::optional<KVFormat> find_kv_format(std::string_view name) {
  for (int i = 0; i < kNumKVFormats; ++i) {
    if (name == kFormatNames[i]) return static_cast<KVFormat>(i);
  }
  return std::nullopt;
}

const char* kv_format_name(KVFormat format) { return kFormatNames[static_cast<int>(format)]; }

std::int64_t kv_bytes_per_block(const KVShape& shape) {
  return shape.num_layers * view_of(shape).block_bytes;
}

KVCache::KVCache(const KVShape& shape, std::int64_t num_blocks)
    : shape_(shape),
      num_blocks_(num_blocks),
      buffer_(static_cast<std::size_t>(num_blocks * kv_bytes_per_block(shape))) {
  assert(shape.num_kv_heads >= 1 && num_blocks >= 1);
  assert(shape.head_dim >= 8 && shape.head_dim % 8 == 0 && shape.head_dim <= kMaxHeadDim);
  assert(shape.block_size >= kTileTokens && shape.block_size % kTileTokens == 0);
}

KVView KVCache::layer(std::int64_t index) {
  assert(index >= 0 && index < shape_.num_layers);
  KVView view = view_of(shape_);
  view.blocks =
      reinterpret_cast<std::uint8_t*>(buffer_.data()) + index * num_blocks_ * view.block_bytes;
  return view;
}

template <class F>
void KVCache::for_each_layer(std::int64_t block, F visit) {
  assert(block >= 0 && block < num_blocks_);
  for (std::int64_t index = 0; index < shape_.num_layers; ++index) {
    const KVView view = layer(index);
    visit(view.blocks + block * view.block_bytes, static_cast<std::size_t>(view.block_bytes));
  }
}

void KVCache::copy_block(std::int64_t source, std::int64_t target) {
  assert(source >= 0 && source < num_blocks_ && source != target);
  for_each_layer(target, [&](std::uint8_t* bytes, std::size_t size) {
    std::memcpy(bytes, bytes + (source - target) * static_cast<std::int64_t>(size), size);
  });
}

void KVCache::read_block(std::int64_t block, std::uint8_t* data) {
  for_each_layer(block, [&](const std::uint8_t* bytes, std::size_t size) {
    std::memcpy(data, bytes, size);
    data += size;
  });
}

void KVCache::write_block(std::int64_t block, const std::uint8_t* data) {
  for_each_layer(block, [&](std::uint8_t* bytes, std::size_t size) {
    std::memcpy(bytes, data, size);
    data += size;
  });
}

}  // namespace pellucid
