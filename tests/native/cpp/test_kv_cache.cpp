// Blocks moved whole: copied within a cache, read out of it and written into another one.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "check.h"
#include "kv_cache.h"

namespace {

using namespace pellucid;

constexpr std::int64_t kNumBlocks = 5;

using Bytes = std::vector<std::uint8_t>;

Bytes read(KVCache& cache, std::int64_t block) {
  Bytes bytes(static_cast<std::size_t>(cache.bytes_per_block()));
  cache.read_block(block, bytes.data());
  return bytes;
}

// A cache whose every byte is random, as far as layers reach.
KVCache filled(const KVShape& shape, unsigned seed) {
  std::mt19937 random(seed);
  KVCache cache(shape, kNumBlocks);
  for (std::int64_t index = 0; index < shape.num_layers; ++index) {
    const KVView layer = cache.layer(index);
    std::generate_n(layer.blocks, kNumBlocks * layer.block_bytes,
                    [&] { return static_cast<std::uint8_t>(random()); });
  }
  return cache;
}

std::vector<Bytes> contents(KVCache& cache) {
  std::vector<Bytes> blocks;
  for (std::int64_t block = 0; block < kNumBlocks; ++block) blocks.push_back(read(cache, block));
  return blocks;
}

void a_block_is_all_of_its_layers(const KVShape& shape) {
  KVCache cache = filled(shape, 1);
  CHECK(cache.bytes_per_block() * kNumBlocks == static_cast<std::int64_t>(cache.num_bytes()));
  const Bytes block = read(cache, 3);
  auto own = block.begin();
  for (std::int64_t index = 0; index < shape.num_layers; ++index) {
    const KVView layer = cache.layer(index);
    CHECK(std::equal(own, own + layer.block_bytes, layer.blocks + 3 * layer.block_bytes));
    own += layer.block_bytes;
  }
  CHECK(own == block.end());
}

void only_the_target_changes(const KVShape& shape) {
  for (const auto& [source, target] : {std::pair{0, 4}, std::pair{4, 0}, std::pair{2, 3}}) {
    KVCache cache = filled(shape, 2), other = filled(shape, 3);
    std::vector<Bytes> expected = contents(cache);
    cache.copy_block(source, target);
    expected[static_cast<std::size_t>(target)] = expected[static_cast<std::size_t>(source)];
    CHECK(contents(cache) == expected);

    expected = contents(other);
    expected[static_cast<std::size_t>(target)] = read(cache, source);
    other.write_block(target, read(cache, source).data());
    CHECK(contents(other) == expected);
  }
}

}  // namespace

int main() {
  for (int format = 0; format < kNumKVFormats; ++format) {
    for (const std::int64_t block_size : {16, 64}) {
      const KVShape shape{static_cast<KVFormat>(format), 3, 2, 40, block_size};
      a_block_is_all_of_its_layers(shape);
      only_the_target_changes(shape);
    }
  }
  std::puts("ok");
}
