// A chain of hashes of blocks.
#include "block_hashes.h"

#include <cstring>

namespace pellucid {
namespace {

constexpr std::size_t kTokenBytes = sizeof(std::int64_t);

std::size_t text_bytes(std::size_t block_size) { return kSha256Bytes + kTokenBytes * block_size; }

}  // namespace

BlockHashes::BlockHashes(Sha256Compress compress, const std::uint8_t* parent,
                         std::size_t block_size)
    : compress_(compress),
      block_size_(block_size),
      message_(sha256_padded_bytes(text_bytes(block_size))) {
  std::memcpy(message_.data(), parent, kSha256Bytes);
  sha256_pad(message_.data(), text_bytes(block_size));
}

void BlockHashes::add(const std::int64_t* token_ids) {
  // As they are in memory: all processors that kernels are built for have the lowest byte first.
  std::memcpy(message_.data() + kSha256Bytes, token_ids, kTokenBytes * block_size_);
  sha256_of_padded(compress_, message_.data(), message_.size(), message_.data());
}

}  // namespace pellucid
