// Finds the tokens of a vocabulary, and those that are parts of a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

namespace pellucid {

// Hashes of texts: polynomials modulo a prime, at a point that each process draws, so that nobody
// can write a file whose tokens share their hashes. A part of a text is hashed without its bytes.
class TextHasher {
  __extension__ typedef unsigned __int128 Product;

 public:
  TextHasher() : powers_{1} {
    std::random_device device;
    point_ = ((static_cast<std::uint64_t>(device()) << 29) ^ device()) % (kPrime - 1000) + 500;
  }

  // Of the text up to each byte, from none to all.
  void prefixes(std::string_view text, std::vector<std::uint64_t>& found) {
    found.assign(1, 0);
    for (const char byte : text) {
      found.push_back(reduce(static_cast<Product>(found.back()) * point_ +
                             static_cast<unsigned char>(byte) + 1));
    }
    while (powers_.size() < found.size()) {
      powers_.push_back(reduce(static_cast<Product>(powers_.back()) * point_));
    }
  }

  // Of the bytes from `begin` to `end` of a text with these prefixes.
  std::uint64_t part(const std::vector<std::uint64_t>& prefixes, std::size_t begin,
                     std::size_t end) const {
    const std::uint64_t before =
        reduce(static_cast<Product>(prefixes[begin]) * powers_[end - begin]);
    return prefixes[end] >= before ? prefixes[end] - before : prefixes[end] + kPrime - before;
  }

 private:
  static constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;

  static std::uint64_t reduce(Product product) {
    std::uint64_t sum =
        static_cast<std::uint64_t>(product & kPrime) + static_cast<std::uint64_t>(product >> 61);
    sum = (sum & kPrime) + (sum >> 61);
    return sum >= kPrime ? sum - kPrime : sum;
  }

  std::uint64_t point_;
  std::vector<std::uint64_t> powers_;
};

// Finds tokens by their texts, which are all different.
class TokenTable {
 public:
  static constexpr std::int32_t kNone = -1;

  explicit TokenTable(std::vector<std::string_view> texts) : texts_(std::move(texts)) {
    std::size_t size = 16;
    while (size < 2 * texts_.size()) size *= 2;
    slots_.assign(size, Slot{0, kNone});
    std::vector<std::uint64_t> prefixes;
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      hasher_.prefixes(texts_[i], prefixes);
      std::size_t at = slot_of(prefixes.back());
      while (slots_[at].token != kNone) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = {prefixes.back(), static_cast<std::int32_t>(i)};
    }
  }

  void hash(std::string_view text, std::vector<std::uint64_t>& prefixes) {
    hasher_.prefixes(text, prefixes);
  }

  // The token that is the bytes from `begin` to `end` of a text with these prefixes; kNone if none.
  std::int32_t find(std::string_view text, const std::vector<std::uint64_t>& prefixes,
                    std::size_t begin, std::size_t end) const {
    const std::uint64_t hash = hasher_.part(prefixes, begin, end);
    for (std::size_t at = slot_of(hash); slots_[at].token != kNone;
         at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].hash == hash &&
          texts_[static_cast<std::size_t>(slots_[at].token)] == text.substr(begin, end - begin)) {
        return slots_[at].token;
      }
    }
    return kNone;
  }

 private:
  struct Slot {
    std::uint64_t hash;
    std::int32_t token;
  };

  std::size_t slot_of(std::uint64_t hash) const {
    return static_cast<std::size_t>((hash * 0x9E3779B97F4A7C15u) >> 20) & (slots_.size() - 1);
  }

  std::vector<std::string_view> texts_;
  TextHasher hasher_;
  std::vector<Slot> slots_;
};

}  // namespace pellucid
