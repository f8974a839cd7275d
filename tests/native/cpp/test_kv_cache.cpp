// Blocks moved whole: copied within a cache, read out of it and written into another one. What is
// stored in them has known bytes on every level.
#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "attention.h"
#include "check.h"
#include "isa.h"
#include "kv_cache.h"
#include "open_groups.h"

namespace {

using namespace pellucid;

constexpr std::int64_t kNumBlocks = 5;

using Bytes = std::vector<std::uint8_t>;

Bytes read(KVCache& cache, std::int64_t block) {
  Bytes bytes(static_cast<std::size_t>(cache.bytes_per_block()));
  cache.read_block(block, bytes.data());
  return bytes;
}

// Bytes of one block in one layer of a group.
std::int64_t layer_bytes(const KVShape& shape, const KVGroup& group) {
  return kv_bytes_per_block(
      {shape.format, shape.block_size, {{1, group.num_kv_heads, group.head_dim}}});
}

Bytes random_bytes(std::mt19937& random, std::int64_t count) {
  Bytes bytes(static_cast<std::size_t>(count));
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::uint8_t>(random()); });
  return bytes;
}

// Writes a layer's part of a block, as `store_kv` reaches it.
void write(KVCache& cache, KVPlace place, std::int64_t block, const Bytes& bytes) {
  const KVView layer = cache.layer(place);
  std::copy(bytes.begin(), bytes.end(), layer.blocks + block * layer.block_bytes);
}

// A cache in whose blocks every byte is random.
KVCache filled(const KVShape& shape, unsigned seed) {
  std::mt19937 random(seed);
  KVCache cache(shape, kNumBlocks);
  for (std::int64_t block = 0; block < kNumBlocks; ++block) {
    cache.write_block(block, random_bytes(random, cache.bytes_per_block()).data());
  }
  return cache;
}

std::vector<Bytes> contents(KVCache& cache) {
  std::vector<Bytes> blocks;
  for (std::int64_t block = 0; block < kNumBlocks; ++block) blocks.push_back(read(cache, block));
  return blocks;
}

// Blocks of different groups stand side by side, each in one piece; each layer's part of a block is
// where it belongs in the block's bytes, and writing it changes nothing else.
void a_block_is_all_layers_of_its_group(const KVShape& shape) {
  KVCache cache = filled(shape, 1);
  CHECK(cache.bytes_per_block() * kNumBlocks + cache.slot_bytes() ==
        static_cast<std::int64_t>(cache.num_bytes()));
  std::mt19937 random(4);
  std::vector<Bytes> expected = contents(cache);
  for (std::int64_t block = 0; block < kNumBlocks; ++block) {
    const std::int64_t index = block % shape.num_groups();
    const KVGroup& group = shape.group(index);
    const std::int64_t size = layer_bytes(shape, group);
    CHECK(group.num_layers * size <= cache.bytes_per_block());
    for (std::int64_t layer = 0; layer < group.num_layers; ++layer) {
      CHECK(cache.layer({layer, index}).blocks == cache.layer({0, 0}).blocks + layer * size);
      const Bytes own = random_bytes(random, size);
      write(cache, {layer, index}, block, own);
      std::copy(own.begin(), own.end(),
                expected[static_cast<std::size_t>(block)].begin() + layer * size);
      CHECK(contents(cache) == expected);
    }
  }
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

// Places of slots and of the area, in all layers and kv-heads: each is its own memory, and a slot
// moves with all of its own. Layers share an area or do not.
void open_groups_do_not_overlap(const KVShape& shape) {
  constexpr std::int64_t kSlots = 3, kAreaPlaces = 2;
  for (const bool has_area_for_each_layer : {false, true}) {
    KVCache cache(shape, kNumBlocks,
                  {kSlots, kAreaPlaces * kOpenTokens + 31, has_area_for_each_layer});
    std::uint8_t mark = 0;
    const auto for_each_group = [&](bool has_areas, auto visit) {
      mark = 0;
      for (std::int64_t group = 0; group < shape.num_groups(); ++group) {
        for (std::int64_t layer = 0; layer < shape.group(group).num_layers; ++layer) {
          const KVView view = cache.layer({layer, group});
          for (std::int64_t head = 0; head < view.num_kv_heads; ++head) {
            for (std::int64_t p = has_areas ? -kAreaPlaces : 0; p < kSlots * kOpenGroups; ++p) {
              visit(view.open_group(p, head), kOpenTiles * view.open_tile_bytes, p, ++mark);
            }
          }
        }
      }
    };
    for_each_group(has_area_for_each_layer,
                   [](std::uint8_t* bytes, std::int64_t size, std::int64_t, std::uint8_t own) {
                     std::fill_n(bytes, size, own);
                   });
    Bytes slot(static_cast<std::size_t>(cache.slot_bytes()));
    cache.read_slot(0, slot.data());
    cache.write_slot(1, slot.data());
    cache.copy_slot(1, 2);
    for_each_group(has_area_for_each_layer, [](std::uint8_t* bytes, std::int64_t size,
                                               std::int64_t place, std::uint8_t own) {
      // All slots hold what slot 0 held.
      const std::int64_t from = place < 0 ? place : place % kOpenGroups;
      const auto expected = static_cast<std::uint8_t>(own - place + from);
      CHECK(std::all_of(bytes, bytes + size, [&](std::uint8_t x) { return x == expected; }));
    });
  }
}

// Normal numbers; every fourth one is halfway between two in bf16, and there are zeros, numbers so
// small that codes are zeros, and a large one.
std::vector<float> numbers_to_store(std::size_t size) {
  std::mt19937 random(5);
  std::vector<float> numbers(size);
  for (std::size_t i = 0; i < size; ++i) {
    std::uint32_t bits = (static_cast<std::uint32_t>(random()) & 0x81ffffffu) | 0x3e000000u;
    if (i % 4 == 0) bits = (bits & 0xffff0000u) | 0x8000u;
    if (i / 40 % 7 == 5) bits = i % 3 == 0 ? 0x80000000u : bits & 0x007fffffu;
    if (i % 997 == 996) bits = 0x7149f2cau;
    std::memcpy(&numbers[i], &bits, sizeof(bits));
  }
  return numbers;
}

void stored_rows_have_known_bytes() {
  constexpr std::int64_t kTokens = 64, kHeads = 2, kHeadDim = 40, kSize = kHeads * kHeadDim;
  constexpr std::uint64_t kKnown[] = {0x3a35c698fb37755c, 0x5264e6d34165c3e3, 0x8a019bf3e1c8acdb,
                                      0x6ca15e7a51c17bbd, 0x062328c50b1feb5a};
  static_assert(sizeof(kKnown) == kNumKVFormats * sizeof(std::uint64_t));
  const std::vector<float> k = numbers_to_store(2 * kTokens * kSize);
  const std::int32_t query_start[] = {0, kTokens}, seq_lens[] = {kTokens}, slots[] = {0};
  const std::vector<OpenGroups> groups = plan_open_groups({1, query_start, seq_lens, slots});
  std::vector<std::int64_t> places(kTokens);
  std::iota(places.begin(), places.end(), 0);
  bool are_known = true;
  for (const KernelTable* kernels : supported_kernel_tables()) {
    for (int format = 0; format < kNumKVFormats; ++format) {
      const KVShape shape{static_cast<KVFormat>(format), kTokens, {{1, kHeads, kHeadDim}}};
      KVCache cache(shape, 1, {1, kTokens, true});
      store_kv(*kernels, shape.format, cache.layer({0}),
               {k.data(), k.data() + kTokens * kSize, kSize, places.data(), groups.data()}, kTokens,
               0, kHeads);
      std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
      for (const std::uint8_t byte : read(cache, 0)) hash = (hash ^ byte) * 0x100000001b3u;
      if (hash == kKnown[format]) continue;
      std::fprintf(stderr, "%s: %s gives 0x%016" PRIx64 "\n", kernels->isa,
                   kv_format_name(shape.format), hash);
      are_known = false;
    }
  }
  CHECK(are_known);
}

// Whatever its payload, which rounding must not carry into the exponent.
void what_is_no_number_stays_so_in_bf16() {
  constexpr std::int64_t kTokens = 16, kHeadDim = 16;
  const std::uint32_t bits[] = {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu};
  std::vector<float> k(kTokens * kHeadDim);
  for (std::size_t i = 0; i < k.size(); ++i) std::memcpy(&k[i], bits + i % 5, sizeof(float));
  std::vector<std::int64_t> places(kTokens);
  std::iota(places.begin(), places.end(), 0);
  for (const KernelTable* kernels : supported_kernel_tables()) {
    KVCache cache({KVFormat::kBF16, kTokens, {{1, 1, kHeadDim}}}, 1);
    store_kv(*kernels, KVFormat::kBF16, cache.layer({0}),
             {k.data(), k.data(), kHeadDim, places.data()}, kTokens, 0, 1);
    const Bytes bytes = read(cache, 0);
    for (std::size_t i = 0; i < bytes.size(); i += 2) {
      CHECK((bytes[i + 1] & 0x7f) == 0x7f && bytes[i] > 0x80);
    }
  }
}

}  // namespace

int main() {
  stored_rows_have_known_bytes();
  what_is_no_number_stays_so_in_bf16();
  const std::vector<std::vector<KVGroup>> all_groups = {
      {{3, 2, 40}},
      {{2, 2, 40}, {3, 2, 40, 16}},             // of one shape
      {{3, 1, 64}, {4, 2, 40, 16}, {1, 3, 8}},  // of several, which fill their blocks differently
  };
  for (int format = 0; format < kNumKVFormats; ++format) {
    const bool is_open = has_open_keys(static_cast<KVFormat>(format));
    for (const std::int64_t block_size : {is_open ? 32 : 16, 64}) {
      for (const std::vector<KVGroup>& groups : all_groups) {
        const KVShape shape{static_cast<KVFormat>(format), block_size, groups};
        if (has_open_keys(shape.format)) open_groups_do_not_overlap(shape);
        a_block_is_all_layers_of_its_group(shape);
        only_the_target_changes(shape);
      }
    }
  }
  std::puts("ok");
}
