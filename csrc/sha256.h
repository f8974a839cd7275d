// SHA-256 (FIPS 180-4), for texts of a length that is known before: callers lay out whole messages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pellucid {

constexpr std::size_t kSha256Bytes = 32;       // of a digest
constexpr std::size_t kSha256BlockBytes = 64;  // that the compression takes at a time

using Sha256State = std::array<std::uint32_t, 8>;

// Takes `num_blocks` blocks of kSha256BlockBytes bytes into the state.
using Sha256Compress = void (*)(Sha256State& state, const std::uint8_t* blocks,
                                std::size_t num_blocks);

void sha256_compress_portable(Sha256State& state, const std::uint8_t* blocks,
                              std::size_t num_blocks);

// With the instructions for it (x86's SHA extensions); null: this processor has none.
Sha256Compress sha256_compress_by_instructions();

// Of a message with its padding: the bytes after the text are `sha256_pad`'s.
void sha256_of_padded(Sha256Compress compress, const std::uint8_t* message, std::size_t num_bytes,
                      std::uint8_t* digest);

// Bytes of a text of `num_bytes` bytes with its padding.
std::size_t sha256_padded_bytes(std::size_t num_bytes);

// Writes the padding behind the text of `num_bytes` bytes at the beginning of `message`.
void sha256_pad(std::uint8_t* message, std::size_t num_bytes);

}  // namespace pellucid
