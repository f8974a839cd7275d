// SHA-256, by instructions and without them: the examples of FIPS 180-4, and each other.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "block_hashes.h"
#include "check.h"
#include "sha256.h"

namespace {

using pellucid::BlockHashes;
using pellucid::Sha256Compress;

std::string hex_digest(Sha256Compress compress, const std::string& text) {
  std::vector<std::uint8_t> message(pellucid::sha256_padded_bytes(text.size()), 0xff);
  std::memcpy(message.data(), text.data(), text.size());
  pellucid::sha256_pad(message.data(), text.size());
  std::uint8_t digest[pellucid::kSha256Bytes];
  pellucid::sha256_of_padded(compress, message.data(), message.size(), digest);
  std::string hex;
  for (const std::uint8_t byte : digest) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", byte);
    hex += two;
  }
  return hex;
}

void check_examples(Sha256Compress compress) {
  CHECK(hex_digest(compress, "") ==
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex_digest(compress, "abc") ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex_digest(compress, "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex_digest(compress, std::string(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Of texts of all lengths around a block, and of chains of blocks.
void check_alike(Sha256Compress one, Sha256Compress other) {
  std::mt19937 random(5);
  for (std::size_t size = 0; size < 200; ++size) {
    std::string text(size, '\0');
    for (char& each : text) each = static_cast<char>(random());
    CHECK(hex_digest(one, text) == hex_digest(other, text));
  }
  const std::vector<std::uint8_t> parent(pellucid::kSha256Bytes, 7);
  for (const std::size_t block_size : {1, 3, 16, 32, 100}) {
    BlockHashes by_one(one, parent.data(), block_size);
    BlockHashes by_other(other, parent.data(), block_size);
    std::vector<std::int64_t> token_ids(block_size);
    for (int block = 0; block < 5; ++block) {
      for (std::int64_t& each : token_ids) each = static_cast<std::int64_t>(random());
      by_one.add(token_ids.data());
      by_other.add(token_ids.data());
      CHECK(std::memcmp(by_one.hash(), by_other.hash(), pellucid::kSha256Bytes) == 0);
    }
  }
}

}  // namespace

int main() {
  check_examples(pellucid::sha256_compress_portable);
  if (const Sha256Compress fast = pellucid::sha256_compress_by_instructions(); fast != nullptr) {
    check_examples(fast);
    check_alike(fast, pellucid::sha256_compress_portable);
  } else {
    std::puts("this processor has no instructions for SHA-256");
  }
  std::puts("ok");
}
