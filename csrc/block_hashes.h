// Hashes of the blocks of a text: each is of the block and of everything before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sha256.h"

namespace pellucid {

// A chain of hashes: SHA-256 of the hash before (32 bytes) and of a block's tokens (8 bytes each,
// the lowest first).
class BlockHashes {
 public:
  // `parent`: the hash of the block before the first one. `block_size`: tokens of a block.
  BlockHashes(Sha256Compress compress, const std::uint8_t* parent, std::size_t block_size);

  // Hashes the next block: `hash()` is its hash then.
  void add(const std::int64_t* token_ids);

  const std::uint8_t* hash() const { return message_.data(); }

 private:
  Sha256Compress compress_;
  std::size_t block_size_;
  std::vector<std::uint8_t> message_;  // hash, tokens, padding
};

}  // namespace pellucid
