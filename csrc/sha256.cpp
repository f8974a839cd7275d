// SHA-256 in portable C++ and by the SHA extensions of x86.
#include "sha256.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "cpu_info.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pellucid {
namespace {

constexpr Sha256State kInitial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

constexpr int kRounds = 64;
alignas(16) constexpr std::uint32_t kConstants[kRounds] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t rotated(std::uint32_t x, int bits) { return (x >> bits) | (x << (32 - bits)); }

std::uint32_t read_big_endian(const std::uint8_t* bytes) {
  return (std::uint32_t{bytes[0]} << 24) | (std::uint32_t{bytes[1]} << 16) |
         (std::uint32_t{bytes[2]} << 8) | std::uint32_t{bytes[3]};
}

void write_big_endian(std::uint64_t value, std::size_t num_bytes, std::uint8_t* bytes) {
  for (std::size_t i = num_bytes; i-- > 0; value >>= 8) bytes[i] = value & 0xff;
}

#if defined(__x86_64__)

// Intel's order of the state: each register has two rows of the working variables. An instruction
// computes two rounds.
__attribute__((target("sha,sse4.1,ssse3"))) void compress_by_instructions(
    Sha256State& state, const std::uint8_t* blocks, std::size_t num_blocks) {
  const __m128i reverse = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  auto* const words = reinterpret_cast<__m128i*>(state.data());
  const __m128i low = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xb1);       // C D A B
  const __m128i high = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1b);  // E F G H
  __m128i abef = _mm_alignr_epi8(low, high, 8);
  __m128i cdgh = _mm_blend_epi16(high, low, 0xf0);
  for (; num_blocks > 0; --num_blocks, blocks += kSha256BlockBytes) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i schedule[4];  // the 16 newest words of the message schedule, the oldest four first
    for (int i = 0; i < kRounds / 4; ++i) {
      __m128i& next = schedule[i % 4];
      if (i < 4) {
        const auto* const source = reinterpret_cast<const __m128i*>(blocks) + i;
        next = _mm_shuffle_epi8(_mm_loadu_si128(source), reverse);
      } else {
        const __m128i newest = schedule[(i + 3) % 4];
        const __m128i seventh = _mm_alignr_epi8(newest, schedule[(i + 2) % 4], 4);
        next = _mm_add_epi32(_mm_sha256msg1_epu32(next, schedule[(i + 1) % 4]), seventh);
        next = _mm_sha256msg2_epu32(next, newest);
      }
      const auto* const constants = reinterpret_cast<const __m128i*>(kConstants) + i;
      const __m128i added = _mm_add_epi32(next, _mm_load_si128(constants));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, added);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(added, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xf0));   // A B C D
  _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));  // E F G H
}

#endif

}  // namespace

void sha256_compress_portable(Sha256State& state, const std::uint8_t* blocks,
                              std::size_t num_blocks) {
  for (; num_blocks > 0; --num_blocks, blocks += kSha256BlockBytes) {
    std::uint32_t w[kRounds];
    for (int i = 0; i < 16; ++i) w[i] = read_big_endian(blocks + 4 * i);
    for (int i = 16; i < kRounds; ++i) {
      const std::uint32_t s0 = rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const std::uint32_t s1 = rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (int i = 0; i < kRounds; ++i) {
      const std::uint32_t s1 = rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25);
      const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kConstants[i] + w[i];
      const std::uint32_t s0 = rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22);
      const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const Sha256State added = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < added.size(); ++i) state[i] += added[i];
  }
}

Sha256Compress sha256_compress_by_instructions() {
#if defined(__x86_64__)
  const std::vector<std::string> features = cpu_features();
  const auto has = [&](const char* name) {
    return std::binary_search(features.begin(), features.end(), name);
  };
  // Every processor with SHA instructions has SSSE3, as every one with SSE 4.1.
  if (has("sha_ni") && has("sse4_1")) return compress_by_instructions;
#endif
  return nullptr;
}

void sha256_of_padded(Sha256Compress compress, const std::uint8_t* message, std::size_t num_bytes,
                      std::uint8_t* digest) {
  Sha256State state = kInitial;
  compress(state, message, num_bytes / kSha256BlockBytes);
  for (std::size_t i = 0; i < state.size(); ++i) write_big_endian(state[i], 4, digest + 4 * i);
}

std::size_t sha256_padded_bytes(std::size_t num_bytes) {
  return (num_bytes + 1 + 8 + kSha256BlockBytes - 1) / kSha256BlockBytes * kSha256BlockBytes;
}

void sha256_pad(std::uint8_t* message, std::size_t num_bytes) {
  const std::size_t end = sha256_padded_bytes(num_bytes);
  std::memset(message + num_bytes, 0, end - num_bytes);
  message[num_bytes] = 0x80;
  write_big_endian(std::uint64_t{8} * num_bytes, 8, message + end - 8);  // the text's bits
}

}  // namespace pellucid
